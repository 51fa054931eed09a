"""`budgeted table`: what it prints is what one computes by hand."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from scipy import stats

from tests.cli.small import MEMORY, QUICK, summaries
from tests.command_line import Capture, refused, said


def cells(text: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("ddof", [1, 0])
def test_a_table_is_what_one_computes_by_hand(ddof: int, runs: Path, capsys: Capture) -> None:
    text = said(["table", str(runs), "--ddof", str(ddof)], capsys)
    table = cells(text)
    spread = statistics.stdev if ddof else statistics.pstdev
    for method in ("vanilla", "er"):
        seeds, a_auc, a_last, _, slots, steps, _, real, frozen, _ = table[method]
        found = summaries(runs, method)
        assert seeds == "1, 2"
        assert float(slots) == round(statistics.mean(summary["slots"] for summary in found))
        assert float(steps) == round(statistics.mean(summary["iterations"] for summary in found))
        for cell, key in ((a_auc, "a_auc"), (a_last, "a_last")):
            values = [100 * summary[key] for summary in found]
            assert f"{statistics.mean(values):.2f}±{spread(values):.2f}" in cell
        spent = statistics.mean(summary["spent"]["real"] for summary in found)
        assert float(real.removesuffix("MFLOP")) == pytest.approx(spent / 1e6, rel=1e-4)
        assert float(frozen) == 0
    means = {m: statistics.mean(s["a_auc"] for s in summaries(runs, m)) for m in ("vanilla", "er")}
    best = max(means, key=lambda method: means[method])
    assert table[best][1].startswith("**")
    assert [*table].index(best) == 2  # below the heading and the line under it
    assert f"ddof {ddof}" in text
    first, second = ([s["a_auc"] for s in summaries(runs, m)] for m in (best, "er" if best == "vanilla" else "vanilla"))
    p = stats.ttest_ind(first, second, equal_var=False).pvalue
    noted = re.search(r"p ([\d.e+-]+) \(Welch\)", text)
    assert noted is not None
    assert float(noted[1]) == pytest.approx(p, rel=5e-3)
    assert "warning" in text  # two seeds are too few to tell


def test_a_table_as_csv_and_as_a_figure(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    written, figure = tmp_path / "runs.csv", tmp_path / "runs.png"
    said(["table", str(runs / "er-1"), str(runs / "vanilla-1"), "--csv", str(written), "--figure", str(figure)], capsys)
    lines = [*csv.DictReader(io.StringIO(written.read_text()))]
    by_group = {line["group"]: line for line in lines}
    assert set(by_group) == {"er", "vanilla"}
    summary = summaries(runs, "er")[0]
    assert float(by_group["er"]["a_auc"]) == summary["a_auc"]
    assert int(by_group["er"]["spent_real"]) == summary["spent"]["real"]
    assert figure.read_bytes().startswith(b"\x89PNG")
    printed = said(["table", str(runs), "--format", "csv"], capsys)
    assert len([*csv.DictReader(io.StringIO(printed.strip()))]) == 4


def test_accuracy_against_compute_is_drawn_where_it_is(
    runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = []
    errorbar = Axes.errorbar

    def noted(axes: Axes, x: float, y: float, **more: Any) -> Any:
        marks.append((axes, x, y))
        return errorbar(axes, x, y, **more)

    monkeypatch.setattr(Axes, "errorbar", noted)
    figure = tmp_path / "tradeoff.png"
    said(["table", str(runs), "--tradeoff", str(figure)], capsys)
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert marks[0][0].get_xlabel() == "compute executed, MFLOP"
    expected = {
        (
            statistics.mean(summary["spent"]["real"] for summary in summaries(runs, method)) / 1e6,
            100 * statistics.mean(summary["a_auc"] for summary in summaries(runs, method)),
        )
        for method in ("vanilla", "er")
    }
    assert sorted((x, y) for _, x, y in marks) == [pytest.approx(place) for place in sorted(expected)]


def test_rows_are_tested_against_the_one_that_is_named(runs: Path, capsys: Capture) -> None:
    for one, other in (("vanilla", "er"), ("er", "vanilla")):
        text = said(["table", str(runs), "--against", one], capsys)
        first, second = ([s["a_auc"] for s in summaries(runs, method)] for method in (other, one))
        difference = 100 * (statistics.mean(first) - statistics.mean(second))
        assert f"A_AUC, {other} against {one}: {difference:+.2f} points" in text
        assert f"A_AUC, {one} against" not in text
    assert "did you mean 'vanilla'" in refused(["table", str(runs), "--against", "vanila"], capsys)


def test_a_table_of_some_rows(runs: Path, capsys: Capture) -> None:
    table = cells(said(["table", str(runs), "--rows", "er"], capsys))
    assert "er" in table
    assert "vanilla" not in table
    assert "did you mean 'vanilla'" in refused(["table", str(runs), "--rows", "er", "vanila"], capsys)


def test_one_seed_is_warned_of(runs: Path, capsys: Capture) -> None:
    text = said(["table", str(runs / "er-1"), str(runs / "vanilla-1")], capsys)
    assert "with one seed a difference cannot be told from chance" in text
    assert "±" not in cells(text)["er"][1]


def test_rows_are_runs_that_differ_in_the_seed_alone(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    other = ["--method", "er", "--set", "learner.learning_rate=1e-3", "--out", str(tmp_path / "other"), "--json"]
    said(["run", *QUICK, *MEMORY, *other], capsys)
    table = cells(said(["table", str(runs), str(tmp_path)], capsys))
    assert table["er"][0] == "1, 2"
    assert table["er learner.learning_rate=1e-3"][0] == "1"


def test_the_same_configuration_said_otherwise_is_the_same_row(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    """One iteration a sample is the default; it is one also when a flag says 1 or a file says 1."""
    (tmp_path / "config.json").write_text('{"iterations": 1}')
    for seed, flags in ((3, ["--iterations", "1"]), (4, ["--config", str(tmp_path / "config.json")])):
        out = ["--method", "er", "--seed", str(seed), "--out", str(tmp_path / "runs" / str(seed)), "--json"]
        said(["run", *QUICK, *MEMORY, *flags, *out], capsys)
    table = cells(said(["table", str(runs), str(tmp_path / "runs")], capsys))
    assert table["er"][0] == "1, 2, 3, 4"


def test_a_run_named_twice_counts_once(runs: Path, capsys: Capture) -> None:
    table = cells(said(["table", str(runs / "er-1"), str(runs)], capsys))
    assert table["er"][0] == "1, 2"
    assert math.isfinite(float(table["er"][-1]))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere is not there"),
        (["empty"], "holds no run"),
        ([], "run"),
        (["RUNS", "--ddof", "2"], "ddof 2"),
        (["RUNS", "--csv", "no/such/folder.csv"], "no/such"),
        (["RUNS", "--figure", "no/such/folder.png"], "no/such"),
        (["RUNS", "--figure", "figure.xyz"], "xyz"),
        (["RUNS", "--tradeoff", "no/such/folder.png"], "no/such"),
        (["RUNS", "--tradeoff", "figure"], "end its name in .png"),
        (["RUNS", "--format", "xml"], "xml"),
    ],
)
def test_mistakes_of_tables(
    arguments: list[str], says: str, runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    written = bool({"--csv", "--figure", "--tradeoff"} & {*arguments})  # which cannot be, after the table is printed
    arguments = [str(runs) if each == "RUNS" else each for each in arguments]
    assert says in refused(["table", *arguments], capsys, quiet=not written)


def test_an_unfinished_run_is_said(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((runs / "er-1" / "config.json").read_text())
    assert "holds no finished run" in refused(["table", str(unfinished)], capsys)
