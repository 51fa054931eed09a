"""`budgeted table`: what it prints is what one computes by hand."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from budgeted.bench.figures import COLOURS, dark, draw_dots, draw_over_stream
from budgeted.bench.table import RunResult, find_runs, group_runs, legend
from budgeted.cli import main
from budgeted.runs.config import RunConfig
from tests.cli.small import MEMORY, QUICK, summaries
from tests.command_line import Capture, refused, said
from tests.markdown import ROOT


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


def test_a_method_of_ones_own_goes_by_its_file_and_by_its_content_where_that_differs(tmp_path: Path) -> None:
    def run(method: str, seed: int, sources: dict[str, str]) -> RunResult:
        config = asdict(RunConfig(method=method, seed=seed, sources=sources))
        return RunResult(tmp_path, {"config": config, "a_auc": 0.5, "a_last": 0.5})

    first, other = ("/here/focal.py", "1234567890"), ("/there/focal.py", "abcdefghij")
    plain = run("er", 1, {})
    mine = [run(f"{path}:Focal", seed, {path: "1234567890"}) for path, seed in ((first[0], 1), (other[0], 2))]
    labels = {group.label: len(group.runs) for group in group_runs([plain, *mine])}
    assert labels == {"er": 1, "focal.py:Focal": 2}  # one content, two folders
    changed = run(f"lider-{other[0]}:Focal", 1, dict([other])), run(f"lider-{first[0]}:Focal", 1, dict([first]))
    labels = {group.label: len(group.runs) for group in group_runs([plain, *changed])}
    assert labels == {"er": 1, "lider-focal.py:Focal focal.py@12345678": 1, "lider-focal.py:Focal focal.py@abcdefgh": 1}


def test_a_copy_of_a_run_is_no_second_run(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(runs, copied)
    alone, both = (said(["table", *map(str, folders)], capsys) for folders in ([runs], [runs, copied]))
    assert cells(both) == cells(alone)
    assert "left out: 4" in both
    assert "left out" not in alone
    other = find_runs([runs / "er-1"])[0]
    again = RunResult(tmp_path, {**other.summary, "weights_sha256": "0" * 64})  # the same seed, another outcome
    assert [len(group.runs) for group in group_runs([other, other, again])] == [2]
    assert any("er has a seed more than once" in line for line in legend(group_runs([other, again]), 1, None))


def test_runs_from_before_a_habit_of_their_method_are_a_row_of_their_own(tmp_path: Path) -> None:
    def run(method: str, seed: int, **usual: str) -> RunResult:
        habits = {f"learner.{key}": value for key, value in usual.items()}
        config = asdict(RunConfig(method=method, seed=seed, usual=habits))
        return RunResult(tmp_path, {"config": config, "a_auc": 0.5, "a_last": 0.5})

    old, plain = run("cram", 1, optimizer="muon"), run("er", 1)
    new = [run("cram", seed, optimizer="muon", mirrored="true") for seed in (2, 3)]
    labels = {group.label: len(group.runs) for group in group_runs([old, *new, plain])}
    assert labels == {"cram": 1, "cram learner.mirrored=true": 2, "er": 1}
    assert {group.label for group in group_runs([*new, plain])} == {"cram", "er"}


def test_a_table_of_those_that_were_asked_for(runs: Path, capsys: Capture) -> None:
    text = said(["table", str(runs), "--where", "method=er", "seed<=1"], capsys)
    assert [*cells(text)][2:] == ["er"]
    assert cells(text)["er"][0] == "1"
    assert "no finished run for which" in refused(["table", str(runs), "--where", "seed>7"], capsys)
    assert "unknown key" in refused(["table", str(runs), "--where", "sead=1"], capsys)


def test_rows_of_different_tasks_are_said_not_to_compare(capsys: Capture) -> None:
    folders = [str(ROOT / "results" / name) for name in ("components", "components-disjoint")]
    assert "2 tasks (data sets, streams): rows of different ones do not compare" in said(["table", *folders], capsys)
    assert "tasks" not in said(["table", folders[0]], capsys)


def watched(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures, as they are when they are written."""
    found: list[Figure] = []
    before = Figure.savefig

    def save(self: Figure, *given: Any, **named: Any) -> None:
        found.append(self)
        before(self, *given, **named)

    monkeypatch.setattr(Figure, "savefig", save)
    return found


def test_no_seed_lies_outside_of_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = watched(monkeypatch)
    runs = [run for run in find_runs([ROOT / "results" / "win-full-size"]) if run.config["method"] == "cram"]
    (group,) = group_runs(runs)
    draw_dots([group], tmp_path / "dots.png")
    for axes, key in zip(figures[0].axes, ("a_auc", "a_last"), strict=True):
        low, high = axes.get_xlim()
        assert all(low < 100 * value < high for value in group.values(key))


def test_curves_of_one_panel_differ_in_grey_and_their_names_can_be_read(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watched(monkeypatch)
    draw_over_stream(group_runs(find_runs([runs])), tmp_path / "curves.png")
    assert len({str(line.get_linestyle()) for line in figures[0].axes[0].lines}) == 2
    for colour in COLOURS:
        parts = np.array([int(dark(colour)[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        assert 1.05 / (np.dot((0.2126, 0.7152, 0.0722), linear) + 0.05) >= 4.45  # whole numbers round


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
    assert marks[0][0].get_xlabel() == "compute executed, MFLOP (rule real)"
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


def test_a_record_from_before_there_was_a_setting_is_no_row_of_its_own() -> None:
    now = RunConfig(method="er").to_json()
    before = {key: value for key, value in now.items() if key not in ("resize", "test_share", "eval_precision")}
    runs = [
        RunResult(Path("run"), {"config": {**config, "seed": seed}, "a_auc": 0.5})
        for seed, config in enumerate((now, before))
    ]
    (group,) = group_runs(runs)
    assert group.label == "er"


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
        (["nowhere"], "nowhere is no folder"),
        (["empty"], "holds no run"),
        ([], "run"),
        (["RUNS", "--ddof", "2"], "ddof 2"),
        (["RUNS", "--csv", "no/such/folder.csv"], "no/such"),
        (["RUNS", "--figure", "no/such/folder.png"], "no/such"),
        (["RUNS", "--figure", "figure.xyz"], "xyz"),
        (["RUNS", "--tradeoff", "no/such/folder.png"], "no/such"),
        (["RUNS", "--tradeoff", "figure"], "end its name in .png"),
        (["RUNS", "--dots", "figure.jpg"], "end its name in .png"),
    ],
)
def test_mistakes_of_tables(
    arguments: list[str], says: str, runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    arguments = [str(runs) if each == "RUNS" else each for each in arguments]
    assert says in refused(["table", *arguments], capsys)


def test_an_unfinished_run_is_said(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.json").write_text((runs / "er-1" / "config.json").read_text())
    assert "holds no finished run" in refused(["table", str(unfinished)], capsys)


def test_a_damaged_run_is_left_out_by_name_and_hides_no_other(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    copied = tmp_path / "runs"
    shutil.copytree(runs, copied)
    (copied / "er-2" / "summary.json").write_text("{")
    capsys.readouterr()
    assert main(["table", str(copied)]) == 0
    shown = capsys.readouterr()
    assert cells(shown.out)["er"][0] == "1"
    assert cells(shown.out)["vanilla"][0] == "1, 2"
    assert shown.err.startswith(f"left out: {copied / 'er-2' / 'summary.json'} ")
    for path in copied.glob("*/summary.json"):
        path.write_text("{")
    assert "is damaged" in (line := refused(["table", str(copied)], capsys))
    assert "and 3 more that cannot be read" in line


def test_differences_are_paired_by_seed_beside_welchs(runs: Path, capsys: Capture) -> None:
    text = said(["table", str(runs), "--against", "er"], capsys)
    first, second = ([s["a_auc"] for s in summaries(runs, method)] for method in ("vanilla", "er"))
    test = stats.ttest_rel(first, second)
    low, high = test.confidence_interval(0.95)
    noted = re.search(r"by seed \[(\S+), (\S+)\], p (\S+) \(paired, 2 seeds\)", text)
    assert noted is not None
    assert [float(noted[1]), float(noted[2])] == pytest.approx([100 * low, 100 * high], abs=0.01)
    assert float(noted[3]) == pytest.approx(test.pvalue, rel=5e-3)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_on_a_terminal_the_table_is_a_terminals(
    width: int, runs: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As wide as the terminal, with the same numbers; what does not fit is named."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    text = re.sub(r"\x1b\[[\d;]*m", "", said(["table", str(runs)], capsys))
    assert "|" not in text
    assert max(map(len, text.splitlines())) <= width
    values = [100 * summary["a_auc"] for summary in summaries(runs, "er")]
    assert f"{statistics.mean(values):.2f}±{statistics.stdev(values):.2f}" in text
    assert "digits · gaussian stream · mlp" in " ".join(text.split())
    assert ("too narrow here for" in text) == (width < 200)
    assert ("train s" in text.partition("─")[0]) == (width == 200)
    p = stats.ttest_ind(*([s["a_auc"] for s in summaries(runs, m)] for m in ("er", "vanilla")), equal_var=False).pvalue
    assert f"{p:.3g}" in text


def test_a_table_for_a_paper(runs: Path, capsys: Capture) -> None:
    text = said(["table", str(runs), "--format", "latex"], capsys)
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0].startswith(r"\begin{tabular}{llrrrrrrrrr}")
    assert body[-1] == r"\end{tabular}"
    rows = [line for line in body if line.endswith(r"\\")]
    assert [line.count("&") for line in rows] == [10, 10, 10]
    assert "A\\_AUC \\%" in rows[0]
    assert sum(r"\textbf{" in line for line in rows[1:]) == 2 or rows[1].count(r"\textbf{") == 2
    assert "±" not in "".join(body)
    assert "<u>" not in text


def test_every_figure_names_what_it_is_of(
    runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles, labels = [], []
    suptitle, annotate = Figure.suptitle, Axes.annotate

    def noted(figure: Figure, text: str, **more: Any) -> Any:
        titles.append(text)
        return suptitle(figure, text, **more)

    def named(axes: Axes, text: str, *places: Any, **more: Any) -> Any:
        labels.append(text.splitlines()[0])
        return annotate(axes, text, *places, **more)

    monkeypatch.setattr(Figure, "suptitle", noted)
    monkeypatch.setattr(Axes, "annotate", named)
    figures = {flag: tmp_path / f"{flag}.svg" for flag in ("figure", "dots", "tradeoff")}
    said(["table", str(runs), *(text for flag, path in figures.items() for text in (f"--{flag}", str(path)))], capsys)
    assert len(titles) == 3
    for title in titles:
        assert title.startswith("digits · gaussian stream · mlp · 1 iteration a sample · ")
        assert title.endswith("seeds 1, 2")
    assert sorted(labels) == ["er", "er", "vanilla", "vanilla"]  # beside the curves and beside the marks
    assert all(path.stat().st_size > 0 for path in figures.values())


def test_many_rows_get_a_panel_each(
    runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("budgeted.bench.figures.ROWS_IN_ONE_PANEL", 1)
    panels = []
    set_title = Axes.set_title

    def noted(axes: Axes, text: str, **more: Any) -> Any:
        panels.append(text)
        return set_title(axes, text, **more)

    monkeypatch.setattr(Axes, "set_title", noted)
    said(["table", str(runs), "--figure", str(tmp_path / "figure.png")], capsys)
    assert sorted(text.splitlines()[0] for text in panels) == ["er", "vanilla"]
    assert all("A_AUC" in text for text in panels)
