"""Recipes run, go on after a kill, and share what they have in common."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from budgeted.bench import query, recipes
from budgeted.bench.measured import MEASUREMENTS
from budgeted.bench.places_of_work import LocalProcesses
from budgeted.bench.protocols import at_seeds
from budgeted.bench.recipe_costs import cost_of, price
from budgeted.bench.sweep import MOST_LOSSES, Place, export, identity, places, sweep
from budgeted.bench.sweep_table import Seen, SweepTable
from budgeted.bench.table import find_runs
from budgeted.cli import main
from budgeted.cli.console import say
from budgeted.cli.output import Forgiving
from budgeted.cli.sweep import _told, part_of
from budgeted.errors import BudgetedError, Terminated, UnknownName
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import RunFolder
from tests.markdown import ROOT

SMALL = RunConfig(method="er", model="mlp", slots=30, limit=60, eval_every=30, iterations=0.5)


def test_runs_are_made_once_and_known_by_their_configuration(tmp_path: Path) -> None:
    runs = [SMALL, replace(SMALL, seed=2)]
    ended = list(sweep(runs, tmp_path, None, workers=2))
    assert [error for _, error in ended] == [None, None]
    assert {place.state for place in places(runs, tmp_path)} == {"finished"}
    assert sorted(tmp_path.iterdir()) == sorted(place.folder for place in places(runs, tmp_path))
    # Another folder name, another data folder: still the same run.
    moved = tmp_path / "elsewhere" / "first"
    moved.parent.mkdir()
    places(runs, tmp_path)[0].folder.rename(moved)
    assert places([replace(SMALL, data="other", checkpoint_every=7)], tmp_path)[0].folder == moved
    assert list(sweep(runs, tmp_path, None, workers=1)) == []
    assert places([replace(SMALL, slots=31)], tmp_path)[0].state == "missing"


def test_a_killed_run_goes_on_and_ends_as_if_never_killed(tmp_path: Path) -> None:
    run = replace(SMALL, model="resnet20", limit=120, checkpoint_every=10, iterations=1.0)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert [error for _, error in sweep([run], whole, None, 1)] == [None]
    folder = places([run], cut)[0].folder
    config = tmp_path / "run.json"
    config.write_text(json.dumps({key: value for key, value in run.to_json().items() if value}))
    process = subprocess.Popen(
        [sys.executable, "-m", "budgeted", "run", "--config", str(config), "--out", str(folder), "--json"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert places([run], cut)[0].state == "interrupted"
    assert [error for _, error in sweep([run], cut, None, 1)] == [None]
    results = [json.loads((places([run], out)[0].folder / "summary.json").read_text()) for out in (whole, cut)]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["records_sha256"] == results[1]["records_sha256"]


SWEEP = """
import sys
from budgeted.bench import query, recipes
from budgeted.cli import main
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import RunFolder
runs = tuple(RunConfig(method="er", model="resnet20", seed=seed) for seed in (1, 2))
recipes.RECIPES["tiny"] = lambda: recipes.Recipe("none", runs)
sys.exit(main(["sweep", "tiny", "--out", sys.argv[1], "--workers", "2"]))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_is_ended_leaves_no_run_at_work(how: signal.Signals, tmp_path: Path) -> None:
    """By whatever signal: the runs hang on a pipe that the sweep holds."""
    process = subprocess.Popen([sys.executable, "-c", SWEEP, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob("*/executed_steps"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    folders = [RunFolder(path) for path in tmp_path.iterdir()]
    assert [folder.busy() for folder in folders] == [True, True]
    process.send_signal(how)
    assert process.wait() == (143 if how is signal.SIGTERM else -how)
    while any(folder.busy() for folder in folders) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(folder.busy() for folder in folders)
    assert not any((folder.path / "summary.json").exists() for folder in folders)
    assert sorted(tmp_path.iterdir()) == sorted(folder.path for folder in folders)


def test_two_sweeps_on_one_folder_finish_what_is_to_be_done_once(tmp_path: Path) -> None:
    runs = [SMALL, replace(SMALL, seed=2)]
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(lambda: list(sweep(runs, tmp_path, None, workers=1))) for _ in range(2)]
        errors = [error for each in ended for _, error in each.result()]
    assert errors == [None] * len(errors)
    assert {place.state for place in places(runs, tmp_path)} == {"finished"}
    summaries = [json.loads((place.folder / "summary.json").read_text()) for place in places(runs, tmp_path)]
    assert [summary["sittings"] for summary in summaries] == [1, 1]


def test_a_run_that_another_process_is_at_comes_after_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [SMALL, replace(SMALL, seed=2), replace(SMALL, seed=3)]
    first = places(runs, tmp_path)[0].folder
    ended = sweep(runs, tmp_path, None, workers=1)
    with RunFolder(first).locked(), caplog.at_level(logging.WARNING):
        assert [next(ended)[0].config.seed for _ in range(2)] == [2, 3]
        assert not (first / "summary.json").exists()
    assert [(place.config.seed, error) for place, error in ended] == [(1, None)]
    assert caplog.messages == [f"{first.name}: another process is at it"]  # once, however often it was looked at
    assert {place.state for place in places(runs, tmp_path)} == {"finished"}


def test_runs_are_found_while_another_process_drops_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of an array look at one folder, each while the others are at work."""
    list(sweep([SMALL], tmp_path, None, workers=1))
    (folder,) = tmp_path.iterdir()
    looked, scan = [], os.scandir

    def vanishing(path: str | Path = ".") -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "000000007":
            os.rmdir(path)
            looked.append(path)
        return scan(path)

    looks: list[Callable[[], list[Path]]] = [
        lambda: [place.folder for place in places([SMALL], tmp_path)],
        lambda: [run.path for run in find_runs([tmp_path])],
        lambda: [run.path for run in query.look([tmp_path]).runs],
    ]
    for look in looks:
        (folder / "checkpoints" / "000000007").mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", vanishing)
            assert look() == [folder]
    assert len(looked) == 3


def test_a_run_that_fails_says_why_and_stops_no_other(tmp_path: Path) -> None:
    impossible = replace(SMALL, memory="10B", slots=None)
    ended = {place.config.memory: error for place, error in sweep([impossible, SMALL], tmp_path, None, 1)}
    assert ended[None] is None
    assert "smallest possible" in str(ended["10B"])


def test_exported_records_hold_no_folder_of_this_machine(tmp_path: Path) -> None:
    out, records = tmp_path / "runs", tmp_path / "records"
    run = replace(SMALL, limit=30)
    list(sweep([run], out, str(tmp_path), 1))
    assert export(places([run, SMALL], out), records) == 1
    texts = [path.read_text() for path in records.rglob("*") if path.is_file()]
    assert len(texts) == 4
    assert all(str(tmp_path) not in text for text in texts)
    assert places([run], records)[0].state == "finished"


def test_every_recipe_is_made_of_distinct_runs_with_valid_settings() -> None:
    for name in recipes.RECIPES:
        made = recipes.recipe(name)
        assert made.question
        assert [bool(made.runs), made.measures is not None, bool(made.command)].count(True) == 1
        assert len({identity(run.to_json()) for run in made.runs}) == len(made.runs)
        for run in {run.method + str(run.settings): run for run in made.runs}.values():
            run.build_settings(flips=True)
    with pytest.raises(UnknownName, match="components"):
        recipes.recipe("component")
    with pytest.raises(BudgetedError, match="--workers"):
        list(sweep([SMALL], Path(), None, 0))


def test_the_command_shows_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "components", "--out", str(tmp_path), "--show"]) == 0
    assert f"{len(recipes.components().runs)} missing" in capsys.readouterr().err
    assert main(["sweep", "components", "--out", str(tmp_path), "--seeds", "9", "8", "--show"]) == 0
    assert "12 missing" in capsys.readouterr().err
    assert main(["sweep", "components", "--out", str(tmp_path), "--part", "2/4", "--show"]) == 0
    assert "5 missing" in capsys.readouterr().err
    for wrong in ("0/4", "5/4", "a/b", "2"):
        assert main(["sweep", "components", "--part", wrong, "--show"]) == 2
        assert "is no part" in capsys.readouterr().err
    assert main(["sweep", "components", "--out", str(tmp_path), "--part", "99/99", "--show"]) == 0
    assert f"has no runs: there are {len(recipes.components().runs)}, " in capsys.readouterr().err
    assert main(["sweep", "components", "--on", "127.0.0.1:1"]) == 2
    assert "no Ray cluster answers" in capsys.readouterr().err
    assert main(["list", "recipes", "--json"]) == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} == set(recipes.RECIPES)


def test_the_papers_recipes_find_the_records_that_exist() -> None:
    """Under the paper's own names; runs that were made before are not made again."""
    for name, finished in {"Table 4": 15, "table-6": 8, "figure-7": 6, "Figure 3": 10, "table-3": 6}.items():
        found = places(recipes.recipe(name).runs, ROOT / "results")
        assert sum(place.state == "finished" for place in found) >= finished, name
    tables, figures = range(1, 23), [number for number in range(1, 22) if number != 2]  # Figure 2 is a drawing
    named = {number for name in MEASUREMENTS for number in map(int, re.findall(r"\d+", name))} | {20}
    for kind, numbers in (("table", tables), ("figure", figures)):
        for number in numbers:
            assert f"{kind}-{number}" in recipes.RECIPES or (kind == "figure" and number in named), (kind, number)


def test_parts_are_disjoint_and_whole() -> None:
    runs = recipes.components().runs
    parts = [part_of(runs, f"{number}/5") for number in range(1, 6)]
    assert sorted(identity(run.to_json()) for part in parts for run in part) == sorted(
        identity(run.to_json()) for run in runs
    )


def test_more_seeds_leave_what_is_finished(tmp_path: Path) -> None:
    runs = at_seeds([SMALL], (1,))
    assert [error for _, error in sweep(runs, tmp_path, None, 1)] == [None]
    more = places(at_seeds(runs, (1, 4, 4)), tmp_path)
    assert [(place.config.seed, place.state) for place in more] == [(1, "finished"), (4, "missing")]


OWN = """
from budgeted.bench.protocols import Recipe, over_seeds
from budgeted.runs.config import RunConfig

def mine():
    run = RunConfig(method="er", model="mlp", slots=30, limit=60, eval_every=30, iterations=0.5)
    return Recipe("Does it run?", over_seeds([run], (1,)))

number = 3
"""


def test_a_recipe_of_ones_own_is_swept_and_seen_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("budgeted.cli.sweep.measured_rate", lambda: 1e9)
    own, out = tmp_path / "own.py", tmp_path / "runs"
    own.write_text(OWN)
    assert main(["sweep", f"{own}:mine", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert "Does it run?" in printed.err
    assert "1 run: about" in printed.err
    assert "1 run: 1 finished" in printed.err
    assert "| er |" in printed.out
    assert main(["sweep", f"{own}:number"]) == 2
    assert "is no recipe" in capsys.readouterr().err
    with pytest.raises(BudgetedError, match=r"which recipe of .*\.py\? Give it as .*\.py:NAME"):
        recipes.recipe(str(own))
    table = SweepTable(places([SMALL, replace(SMALL, seed=2)], out))
    seen = table.seen()
    assert [run.state for run in seen] == ["finished", "waiting"]
    assert (seen[0].samples, seen[0].of, seen[0].share) == (60, 60, 1.0)
    assert seen[0].a_auc == pytest.approx(json.loads(next(out.glob("*/summary.json")).read_text())["a_auc"])
    assert table.seconds_left(seen) is None  # nothing has moved since it was made


@pytest.mark.parametrize(("how", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupted_sweep_says_how_far_it_is(
    how: type[BaseException],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Ctrl-C, or by SIGTERM as of `scancel`."""

    def interrupted(*_: object, **__: object) -> Iterator[tuple[Place, str | None]]:
        raise how
        yield

    monkeypatch.setattr("budgeted.cli.sweep.measured_rate", lambda: 1e9)
    monkeypatch.setattr("budgeted.cli.sweep.sweep", interrupted)
    own = tmp_path / "own.py"
    own.write_text(OWN)
    assert main(["sweep", f"{own}:mine", "--out", str(tmp_path / "runs")]) == code
    assert capsys.readouterr().err.endswith("1 missing: the same command goes on from here\nbudgeted: interrupted\n")


def test_the_live_table_is_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vanilla-cifar100-gaussian-1be033af-seed1", "vanilla-fashion-mnist-disjoint-9049fc5b-seed1")
    runs = [Seen(name, "finished", 50_000, 50_000, 0.567, 774_123_456_789_012) for name in names]
    monkeypatch.setattr(SweepTable, "seen", lambda _: runs)
    file = io.StringIO()
    Console(width=80, height=40, file=file).print(SweepTable([]))
    shown = file.getvalue()
    lines = [line.split() for line in shown.splitlines()]
    assert [names[0], "finished", "100%", "56.7", "774.12TFLOP"] in lines
    assert "".join(line[0] for line in lines if line and line[0] in names[1]) == names[1]  # on two lines
    assert "…" not in shown
    assert {"so", "A_AUC,", "spent", "(rule"} <= {word for line in lines for word in line}


@pytest.mark.parametrize("name", ["er-digits-gaussian-a755ba1a-seed1", "vanilla-fashion-mnist-disjoint-9049fc5b-seed1"])
def test_a_table_higher_than_the_terminal_says_what_it_leaves_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And keeps its last line: 30 runs in 24 lines, with names that take one line or two."""
    runs = [Seen(name, "at work", 10, 100)] * 2 + [Seen(name, "waiting", 0, 100)] * 28
    monkeypatch.setattr(SweepTable, "seen", lambda _: runs)
    file = io.StringIO()
    Console(width=80, height=24, file=file).print(SweepTable([]))
    lines = file.getvalue().splitlines()
    assert 20 <= len(lines) <= 22
    shown = sum("waiting" in line for line in lines[:-2])
    assert lines[-2:] == [f"(not shown: {28 - shown} waiting)", "30 runs: 2 at work, 28 waiting; 0FLOP spent"]


def test_no_time_is_left_when_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Seen("a", "waiting", 0, 100), Seen("b", "waiting", 0, 100)]
    monkeypatch.setattr(SweepTable, "seen", lambda _: runs)
    table = SweepTable([])
    assert "left" in table.line([Seen("a", "finished", 100, 100), Seen("b", "waiting", 0, 100)])
    assert "left" not in table.line([Seen("a", "finished", 100, 100), Seen("b", "failed", 0, 100)])


class Terminal(Forgiving):
    """A terminal of 80 columns that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = ""

    def write(self, text: str, /) -> int:
        self.written += text
        return len(text)

    def isatty(self) -> bool:
        return True


def test_on_a_terminal_lines_are_broken_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown, text = Terminal(), cost_of([SMALL]).said(1e9)
    say(text, shown)
    lines = shown.written.splitlines()
    assert max(map(len, lines)) <= 80 < len(text)
    assert " ".join(line.strip() for line in lines) == text


def test_what_is_logged_comes_above_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is taken away, the line written, and the table drawn anew; the line is broken between words."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    shown, log = Terminal(), logging.getLogger()
    handler = logging.StreamHandler(shown)
    log.addHandler(handler)
    try:
        with _told([Place(SMALL, Path("nowhere"), "missing")], shown):
            begun = len(shown.written)
            log.warning("another process is at it, waiting")
            said = shown.written[begun:]
        log.warning("after it")
    finally:
        log.removeHandler(handler)
    before, _, after = said.partition("another process is at it, waiting")
    assert before.endswith("\x1b[2K")  # the last line of the table is erased
    assert "nowhere" in after
    assert shown.written.endswith("after it\n")


def test_a_run_whose_process_is_killed_is_begun_again(tmp_path: Path) -> None:
    """Up to a number of times: one that always dies is reported."""

    class Dies(LocalProcesses):
        asked = 0

        def run(self, order: str, config: RunConfig) -> tuple[int, str]:
            self.asked += 1
            return (-9, "killed") if self.asked <= deaths else super().run(order, config)

    for deaths, error in ((MOST_LOSSES, None), (MOST_LOSSES + 1, "killed")):
        place_of_work = Dies()
        run = replace(SMALL, limit=30, seed=deaths)
        assert [found for _, found in sweep([run], tmp_path, None, place_of_work)] == [error]
        assert place_of_work.asked == MOST_LOSSES + 1


def test_what_a_recipe_costs_is_said_before_it_starts() -> None:
    """Iterations at the price of a step, or the budget; and all test images at every evaluation."""
    forward, step = price("mlp", (1, 8, 8), 10)
    assert step > 2 * forward > 0
    run = replace(SMALL, limit=100, eval_every=30, iterations=2.0, eval_samples=50)
    cost = cost_of([run, run])
    assert (cost.training, cost.evaluation) == (2 * step * 16 * 100 * 2, 2 * forward * 50 * 4)
    assert cost_of([replace(run, iterations=None, compute="3GMAC")]).training == 6 * 10**9
    assert cost_of([replace(run, dataset="bongard-drawn-pn", model="llava-tiny")]).unpriced == 1
