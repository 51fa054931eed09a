"""The documents say what is so: tables are complete, snippets and commands run and print what is shown, links lead
somewhere."""

from __future__ import annotations

import dataclasses
import json
import re
import runpy
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted import cli, streams
from budgeted.bench.published import MULTIPLIERS, PAPER_SETTINGS, SLOT_REASONS
from budgeted.budget import prices
from budgeted.budget.prices import elementwise
from budgeted.budget.trace import Op, Value
from budgeted.cli.commands import read
from budgeted.cli.run import RunCommand
from budgeted.cli.set_argument import with_pairs
from budgeted.freezing.policies import POLICIES
from budgeted.learner import Augmentation, LearnerSettings
from budgeted.learner.settings import setting_names
from budgeted.methods import METHODS
from budgeted.methods.vanilla import Vanilla
from budgeted.replay import RETRIEVALS, SELECTIONS, SARSettings
from budgeted.runs.config import RunConfig, read_config
from tests.markdown import ROOT, anchors, fences, links, run, table_rows

PAGES = sorted((ROOT / "docs").glob("*.md"))
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
HOW_TO = sorted((ROOT / "docs" / "how").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES, *METHOD_PAGES, *HOW_TO]
PRICES = ROOT / "docs" / "prices.md"
RUN = ROOT / "docs" / "run.md"
PROGRAM = ".venv/bin/budgeted"


@pytest.mark.parametrize("page", [*PAGES, *METHOD_PAGES], ids=lambda page: page.stem)
def test_snippets_run_and_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prices, "_PRICES", dict(prices._PRICES))  # a page may register a price
    monkeypatch.setattr(METHODS, "_known", dict(METHODS))  # or a method; all are loaded before
    (tmp_path / "results").symlink_to(ROOT / "results")  # a page may read records
    monkeypatch.chdir(tmp_path)
    snippets = fences(page, "python")
    assert snippets or page in METHOD_PAGES
    names: dict[str, Any] = {"__name__": page.stem}  # a page reads from top to bottom: its snippets share their names
    with torch.random.fork_rng():
        for snippet in snippets:
            printed = run(snippet.text, str(page), snippet.line, names)
            if snippet.output is not None:
                assert printed == snippet.output, f"{page.name}, line {snippet.line}"


def test_the_quantisers_of_the_page_are_those_of_the_record() -> None:
    record = json.loads((ROOT / "results" / "quantisers.json").read_text())
    page = (ROOT / "docs" / "methods" / "remind.md").read_text(encoding="utf-8")
    for kind in ("plain", "rectified"):
        left = [[run["left"] for run in record[f"{kind}, {name}"]] for name in ("ours", "staying", "faiss")]
        cells = [f"{statistics.fmean(each):.4f} ± {statistics.stdev(each):.4f}" for each in left]
        assert f"| {kind} | {' | '.join(cells)} |" in page


def test_what_is_broken_on_purpose_is_that_of_the_record_and_still_applies() -> None:
    bench = runpy.run_path(str(ROOT / "benchmarks" / "mutations.py"))
    record = json.loads((ROOT / "results" / "mutations.json").read_text())
    for each in bench["BREAKAGES"]:
        each.applied((ROOT / "src" / "budgeted" / each.file).read_text(encoding="utf-8"))
    tried = [(each.method, each.what, each.test) for each in bench["BREAKAGES"]]
    assert [(each["method"], each["broken"], each["caught"]) for each in record] == tried
    assert bench["table"](record) in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_price_is_written_down() -> None:
    written = set(re.findall(r"`(\w+)`", PRICES.read_text(encoding="utf-8")))
    assert [name for name in prices.priced_operators() if name not in written] == []


@pytest.mark.parametrize(
    ("heading", "table"),
    [("Activations", elementwise.ACTIVATIONS), ("Elementwise arithmetic", elementwise.ARITHMETIC)],
)
def test_operations_per_element_are_those_of_the_code(heading: str, table: dict[str, tuple[int, int]]) -> None:
    shown = {
        name: (int(cells[1]), int(cells[2]))
        for cells in table_rows(PRICES, heading)
        if cells[1].isdigit() and cells[2].isdigit()
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert shown == table


def amount(formula: str, elements: dict[str, int]) -> int | None:
    """A formula such as 3X, N or 0; None for one that says more."""
    found = re.fullmatch(r"(?:each:? )?(\d*)([XN])(?: \+ sum)?", formula)
    return int(found[1] or 1) * elements[found[2]] if found else 0 if formula == "0" else None


@pytest.mark.parametrize("heading", ["Reductions and losses", "Elementwise arithmetic"])
def test_formulas_are_those_of_the_code(heading: str) -> None:
    reduces = heading.startswith("Reductions")
    checked = 0
    for names, forward, gradient in table_rows(PRICES, heading):
        if forward.isdigit():
            continue  # the table per element has a test of its own
        for name in re.findall(r"`(\w+)`", names):
            inputs = tuple(Value((6, 4), True) for _ in range(2 if gradient.startswith("each") else 1))
            out = Value((6,) if reduces else (6, 4), True)
            arguments = {"self": inputs[0], "target": inputs[-1]}
            found = prices._PRICES[name](Op(name, 0, arguments, inputs, (out,), "", (), True))
            elements = {"X": 24, "N": out.numel}
            for formula, price in ((forward, found.forward), (gradient, found.gradients[0])):
                expected = amount(formula, elements)
                assert expected in (None, price), f"{name}: {formula}"
                checked += expected is not None
            assert (found.paper_forward, found.paper_weight, found.paper_input) == (0, 0, 0)
    assert checked > 20


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in links(page):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors(target), f"{path}#{anchor}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    known = re.findall(r"([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in known] == []
    assert [page for page in known if page not in (*pages, "index.md", "CONTRIBUTING.md", "CHANGELOG.md")] == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_commands_name_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for script in re.findall(r"(?:benchmarks|tests|docs)/[\w/]+\.\w+", text):
        assert (ROOT / script).exists(), script
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in re.findall(r"`make (\w+)`|^ +make (\w+)$", text, re.MULTILINE):
        assert "".join(target) in targets, target


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def commands(page: Path) -> list[list[str]]:
    """The arguments of every budgeted command in a page: of its `sh` blocks, and of blocks that are only indented."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    blocks = [block.text for block in fences(page, "sh")]
    blocks += re.findall(rf"^ {{4}}{re.escape(PROGRAM)} .*$", prose, re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line.replace("$seed", "1")) for line in lines]
    return [arguments[1:] for arguments in words if arguments[:1] == [PROGRAM]]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES, *METHOD_PAGES], ids=lambda page: page.stem)
def test_commands_are_understood(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    for toml in fences(page, "toml"):
        Path("first.toml").write_text(toml.text)
    for arguments in commands(page):
        parsed = read(arguments)
        if isinstance(parsed, RunCommand) and parsed.resume is None:
            config = dataclasses.replace(parsed.run, settings=with_pairs(parsed.run.settings, parsed.set))
            config.build_settings(flips=False)  # names of methods, parts and settings exist
            config.budget()


def test_the_commands_of_the_page_on_runs_work_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (toml,) = fences(RUN, "toml")
    Path("first.toml").write_text(toml.text)
    small = ["--model", "mlp", "--limit", "40", "--eval-every", "20"]
    for arguments in commands(RUN):
        more = small if arguments[0] == "run" and "--resume" not in arguments else []
        assert cli.main([*arguments, *more]) == 0, (arguments, capsys.readouterr().err)
    shown = capsys.readouterr().out
    assert "| al-sar" in shown
    assert "with one seed a difference cannot be told from chance" in shown
    assert Path("runs.png").stat().st_size > 1000
    weights = [json.loads(path.read_text())["weights_sha256"] for path in Path("runs").glob("*/summary.json")]
    assert len(weights) == len(list(Path("runs").iterdir())) > len(set(weights))  # two commands make the same run
    assert len(Path("runs.csv").read_text().splitlines()) == 1 + len(set(weights))

    written = {path.name for path in Path("runs/first").iterdir()}
    assert {name.rstrip("/") for row in table_rows(RUN, "The run folder") for name in quoted(row[0])} == written
    summary = json.loads(Path("runs/first/summary.json").read_text())
    assert [name for row in table_rows(RUN, "Summary") for name in quoted(row[0])] == list(summary)
    for line in Path("runs/first/records.jsonl").read_text().splitlines():
        assert [name for row in table_rows(RUN, "Records") for name in quoted(row[0])] == list(json.loads(line))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_shows(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for block in fences(page, "console"):
        command, *shown = block.text.splitlines()
        program, *arguments = command.removeprefix("$ ").split()
        assert program == PROGRAM
        assert cli.main(arguments) == 0
        assert [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()] == shown


def known_settings() -> set[str]:
    """Of every part by any name, but the method's own."""
    parts = [{"freezing": name} for name in POLICIES] + [{"retrieval": name} for name in RETRIEVALS]
    parts += [{"selection": name} for name in SELECTIONS]
    names = {name for part in parts for name in setting_names(Vanilla().with_parts(**part))}
    return {name for name in names if not name.startswith("method.")}


def test_every_setting_is_written_down_with_its_default() -> None:
    defaults: dict[str, list[str]] = {}
    parts: list[tuple[str, Any]] = [("learner", LearnerSettings), ("augmentation", Augmentation)]
    parts += [("retrieval", kind.settings_type()) for kind in RETRIEVALS.values()]
    parts += [("selection", kind.settings_type()) for kind in SELECTIONS.values()]
    parts += [*(("freezing", kind) for kind in POLICIES.values())]
    for part, kind in parts:
        for item in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            defaults.setdefault(f"{part}.{item.name}", []).append(str(item.default))
    defaults["augmentation.flip"] = ["by data set"]
    shown = {quoted(row[0])[0]: row[1] for row in table_rows(RUN, "Other settings")}
    assert set(shown) == known_settings()
    assert [name for name, default in shown.items() if {default} != set(defaults[name])] == []


def test_every_flag_is_written_down_with_its_default() -> None:
    shown = {quoted(row[0])[0]: row[1] for row in table_rows(RUN, "Flags")}
    kinds: tuple[Any, ...] = (RunConfig, RunCommand)
    fields = [
        item
        for kind in kinds
        for item in dataclasses.fields(kind)
        if item.name not in ("settings", "sources", "usual", "run")
    ]
    words: dict[Any, str] = {None: "none", False: "off", "": "by data set"}
    expected = {
        f"--{item.name.replace('_', '-')}": str(words.get(item.default, item.default))
        for item in fields
        if item.name != "set"
    }
    assert shown == {**expected, "--set KEY=VALUE": ""}


def test_the_config_file_is_read(tmp_path: Path) -> None:
    (toml,) = fences(RUN, "toml")
    path = tmp_path / "first.toml"
    path.write_text(toml.text)
    config = RunConfig.from_mapping(read_config(path), str(path))
    settings = config.build_settings(flips=False)
    assert (config.method, config.eval_every, config.budget().bytes) == ("sar", 50, 400_000)
    assert (settings.learner.learning_rate, settings.retrieval["normalisation"]) == (1e-3, "class")


@pytest.mark.parametrize("rule", ["paper", "real"])
def test_slots_are_those_of_a_plan(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table_rows(ROOT / "docs" / "budgets.md", "Slots at 7,998,016 bytes")
    column = ["paper", "real"].index(rule) + 1
    shown = {quoted(row[0])[0]: int(row[column]) for row in rows}
    found = {}
    for name in METHODS:
        if METHODS[name].codec != "raw":  # how many slots there are, only the data can say
            continue
        budget = ["--dataset", "cifar10", "--model", "resnet32", "--memory", "7998016B", "--iterations", "1"]
        assert cli.main(["plan", "--method", name, *budget, "--rule", rule, "--no-measure", "--json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        found[name] = plan["slots"]
        assert 0 <= 7_998_016 - plan["bytes"]["total"] < plan["bytes"]["memory"] / plan["slots"]  # none more fits
    assert shown == found


def test_readings_of_sar_are_complete() -> None:
    rows = [row for row in table_rows(ROOT / "docs" / "replay.md", "Settings") if row[0].startswith("`")]
    assert {quoted(row[0])[0]: row[1] for row in rows} == {
        item.name: str(item.default) for item in dataclasses.fields(SARSettings)
    }


def test_deviations_name_settings_that_exist() -> None:
    known = known_settings()
    for page in ("al", "sar"):
        rows = table_rows(ROOT / "docs" / "methods" / f"{page}.md", "Deviations")
        assert all(len(row) == 5 for row in rows)
        assert {name for row in rows for name in quoted(row[4])} <= known


def test_every_method_and_policy_has_its_page() -> None:
    index = ROOT / "docs" / "methods.md"
    rows = {quoted(row[0])[0]: row[1:] for row in table_rows(index, "All methods")}
    assert {name: row[1] for name, row in rows.items()} == {
        name: "yes" if method.boundaries else "no" for name, method in METHODS.items()
    }
    policies = {quoted(row[0])[0]: row[-1] for row in table_rows(index, "Freezing policies")}
    assert list(policies) == list(POLICIES)
    linked = {page for page in METHOD_PAGES for cell in (*(row[-1] for row in rows.values()), *policies.values())
              if f"(methods/{page.name})" in cell}  # fmt: skip
    assert linked == set(METHOD_PAGES)
    for page in METHOD_PAGES:
        text = page.read_text(encoding="utf-8")
        for heading in ("When to use it", "Cost", "Bytes", "Deviations", "Command", "Result"):
            assert re.search(rf"^## {heading}$", text, re.MULTILINE), f"{page.name}: {heading}"


def test_the_costs_of_others_are_those_of_the_code() -> None:
    page = ROOT / "docs" / "costs.md"
    for name, *cells in table_rows(page, "Slots"):
        for (dataset, setting), cell in zip(PAPER_SETTINGS.items(), cells, strict=True):
            printed, ours, _ = cell.split(" / ")
            method = quoted(name)[0]
            assert printed == str(setting.rows.get(method, "-")), (method, dataset)
            assert printed in ("-", ours) or (dataset, method) in SLOT_REASONS, (method, dataset)
    shown = {quoted(row[0])[0]: tuple(row[1:4]) for row in table_rows(page, "Compute of an iteration")}
    assert shown == {
        name: tuple(value or "-" for value in (found.paper, found.charged, found.executed))
        for name, found in MULTIPLIERS.items()
        if name != "lider-x-der"  # it has no page of its own
    }
    index = {quoted(row[0])[0]: row[4] for row in table_rows(ROOT / "docs" / "methods.md", "All methods")}
    for row in table_rows(page, "Compute of an iteration"):
        name = quoted(row[0])[0]
        assert index[name].split()[0] in (row[5], "1"), name


TABLE_OF_RUNS = re.compile(
    r"<!-- (?P<command>(?:budgeted table|gain_over_stream|questions_table|datasets_table) .+?) -->\n\n"
    r"(?P<rows>(?:\|.*\n)+(?:\n\| steps in each fifth .*\n(?:\|.*\n)+)?)"
)


def test_tables_of_runs_are_those_of_their_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [(page, table) for page in TEXTS for table in TABLE_OF_RUNS.finditer(page.read_text(encoding="utf-8"))]
    assert any(page.stem == "findings" for page, _ in shown)
    monkeypatch.chdir(ROOT)
    for page, table in shown:
        program, *arguments = shlex.split(table["command"])
        if program == "budgeted":
            assert cli.main(arguments) == 0
        else:
            monkeypatch.setattr(sys, "argv", [program, *arguments])
            runpy.run_path(f"benchmarks/{program}.py", run_name="__main__")
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert table["rows"].replace("\n\n", "\n").splitlines() == rows, f"{page.name}: {table['command']}"


def test_data_sets_are_those_that_load() -> None:
    shown = [row[:5] for row in table_rows(ROOT / "docs" / "streams.md", "Data sets")]
    expected = []
    for info in map(streams.info, streams.names()):
        shape = "x".join(map(str, info.input_shape))
        expected.append([f"`{info.name}`", str(info.classes), shape, str(info.train_size), str(info.test_size)])
    assert shown == expected
    orders = [quoted(row[0])[0] for row in table_rows(ROOT / "docs" / "streams.md", "Orders")]
    assert tuple(orders) == streams.order_names()
