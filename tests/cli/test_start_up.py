"""What is quick must stay quick: help and lists load no torch, the lists that they print are the true ones."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from rich.console import Console

import budgeted
from budgeted import freezing, learner, methods, models, problems, replay, streams
from budgeted.bench.recipe_costs import cost_of
from budgeted.bench.recipes import RECIPES
from budgeted.bench.speed import kept_rate
from budgeted.cli import listing, main
from budgeted.cli.commands import COMMANDS, summary
from budgeted.cli.listing import What, _known, made
from budgeted.registry import Registry
from budgeted.streams import bongard
from tests.markdown import ROOT, table_rows

LOADED = "; import sys; print(','.join(sys.modules))"
LATER = [budgeted, freezing, learner, methods, models, problems, replay, streams, bongard]
REGISTRIES: dict[str, Registry[Any]] = {
    "methods": methods.METHODS,
    "freezing": freezing.POLICIES,
    "retrieval": replay.RETRIEVALS,
    "selection": replay.SELECTIONS,
    "codecs": replay.CODECS,
    "problems": problems.PROBLEMS,
}


def modules_after(code: str) -> set[str]:
    """In memory after running the code in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code + LOADED], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split(","))


def loaded_by(code: str) -> set[str]:
    """Packages in memory after running the code in a process of its own."""
    return {name.partition(".")[0] for name in modules_after(code)}


def test_help_and_lists_need_no_torch() -> None:
    help_text = "from budgeted.cli.commands import overview; overview()"
    lists = "; ".join(f"budgeted.cli.main(['list', '{what}'])" for what in get_args(What) if what != "recipes")
    for code in ("import budgeted", help_text, f"import budgeted.cli; {lists}"):
        assert not {"torch", "numpy", "scipy"} & loaded_by(code), code


def test_the_learner_comes_without_scipy() -> None:
    assert not {"scipy", "sklearn", "matplotlib", "transformers", "tyro"} & loaded_by("from budgeted import Learner")


def test_the_learner_comes_without_parts_that_nobody_named() -> None:
    """Every module takes time to import, and to take down at the end of the process."""
    loaded = modules_after("from budgeted import Learner")
    parts = {each.__module__ for registry in REGISTRIES.values() for each in registry.values()}
    usual = {f"budgeted.{file}" for file in ("freezing.policies", "replay.codec", "replay.retrieval",
                                             "replay.selection", "problems.classification")}  # fmt: skip
    assert parts & loaded == usual
    rooms = ("audit", "runs", "bench", "cli", "plugin", "integrations", "streams", "models.registry", "learner.saving")
    assert not [name for name in loaded if name.removeprefix("budgeted.").startswith(rooms)]


@pytest.mark.parametrize("kind", REGISTRIES)
def test_a_file_registers_what_is_said_of_it(kind: str) -> None:
    """Ours alone: other tests may have registered parts of their own."""
    registry = REGISTRIES[kind]
    ours = {name: each.__module__ for name, each in registry.items() if each.__module__.startswith("budgeted.")}
    assert registry._written_in == ours


def test_a_name_of_ours_is_taken_before_its_file_is_imported() -> None:
    code = """
from budgeted import BudgetedError, METHODS, Method
assert 'budgeted.methods.er' not in __import__('sys').modules
try:
    METHODS.register('er')(type('Mine', (Method,), {}))
except BudgetedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "there is a method 'er' already: choose another name\n"


def test_hours_of_recipes_come_from_a_speed_that_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("budgeted.bench.recipe_costs.rate", lambda: 1e10)
    main(["list", "recipes", "--json"])
    first = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    known = first["components"]
    assert known["hours here"] == pytest.approx((known["FLOP, about"] / 1e10 + 5 * known["runs"]) / 3600)
    assert first["bongard-hoi"]["hours here"] is None
    listing = "import budgeted.cli; budgeted.cli.main(['list', 'recipes'])"
    assert not {"torch", "numpy", "scipy"} & loaded_by(listing)  # by the speed that was kept
    kept = tmp_path / "budgeted" / "speed.json"
    for damaged in ('{"of": [], "rate": 1e99}', '{"rate": "nan"}', "[", "7"):
        kept.write_text(damaged)
        main(["list", "recipes", "--json"])
        assert json.loads(capsys.readouterr().out) == list(first.values())
        assert kept_rate() == 1e10


def test_a_listing_of_recipes_fits_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("budgeted.cli.listing.kept_rate", lambda: 1e10)
    monkeypatch.setattr("budgeted.cli.listing.wide_console", lambda: Console(width=80))
    main(["list", "recipes"])
    shown = capsys.readouterr().out
    assert all(row["name"] in shown for row in _known("recipes"))  # none is cut
    assert "counted" in shown


def test_costs_written_down_are_those_of_the_recipes() -> None:
    """Of the recipes of one small network on one data set: all take minutes."""
    written = json.loads(Path(listing.__file__).with_name(listing.COSTS).read_text())
    recipes = {name: make().runs for name, make in RECIPES.items()}
    of = {name: {(run.network, run.dataset) for run in runs} for name, runs in recipes.items()}
    looked_at = [name for name, found in of.items() if found == {("resnet20", "cifar10")}]
    assert len(looked_at) > 5
    for name in looked_at:
        assert written[name] == cost_of(recipes[name]).total, "run `python -m budgeted.cli.listing`"
    assert {*written} <= {*recipes}


@pytest.mark.parametrize("what", get_args(What))
def test_the_lists_written_down_are_what_there_is(what: What) -> None:
    assert _known(what) == made(what), "run `python -m budgeted.cli.listing` to write the lists anew"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_says_what_it_does(name: str) -> None:
    file, _, kind = COMMANDS[name].partition(":")
    command = getattr(importlib.import_module(f"budgeted.cli.{file}"), kind)
    assert callable(command.run_)
    first = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
    assert " ".join(summary(name).split()) == first
    assert first.endswith(".")


@pytest.mark.parametrize("package", LATER, ids=lambda package: package.__name__)
def test_names_that_come_later_are_those_of_their_files_and_types_see_the_same(package: Any) -> None:
    come = file_of(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    for name, file in come.items():
        assert getattr(package, name) is getattr(importlib.import_module(f"{package.__name__}.{file}"), name)
        assert name not in package._FILES  # or importing the file would hide what is in it
    typed = {
        alias.name: node.module
        for checked in ast.parse(Path(package.__file__).read_text()).body
        if isinstance(checked, ast.If)
        for node in ast.walk(checked)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {name: f"{package.__name__}.{file}" for name, file in come.items()}
    assert {*typed} <= {*package.__all__}
    with pytest.raises(AttributeError, match="no attribute 'Lerner'"):
        _ = package.Lerner


def file_of(package: Any) -> dict[str, str]:
    return {name: file for file, names in package._FILES.items() for name in names}


def test_the_page_of_stable_names_lists_them_all() -> None:
    rows = [row for row in table_rows(ROOT / "docs" / "stable_names.md", "Stable names") if row[1].startswith("`")]
    shown = {name: row[1].strip("`") for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert shown == file_of(budgeted)
