"""The report says what the run folders say: of any age, chosen by conditions, with the paper's values beside."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
from pathlib import Path

import pytest

from budgeted.bench.query import look, row, sections, where
from budgeted.bench.report import command_of, write_report
from budgeted.bench.seed_tests import seed_tests
from budgeted.cli.commands import read
from budgeted.cli.run import RunCommand
from budgeted.errors import BudgetedError, UnknownName
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from tests.command_line import Capture, refused, said
from tests.markdown import ROOT

RESULTS = ROOT / "results"
COMPONENTS = RESULTS / "components"


def test_every_folder_of_results_that_was_ever_committed_is_read() -> None:
    found = look([RESULTS])
    assert found.unreadable == ()
    assert len(found.runs) == len(list(RESULTS.rglob("summary.json")))
    folders = {path.relative_to(RESULTS).parts[0] for path in RESULTS.rglob("summary.json")}
    named = {section.name for section in sections(found.runs, [RESULTS])}
    assert all(any(name.startswith(folder) for name in named) for folder in folders)
    assert all(any(name.startswith(folder) for folder in folders) for name in named)


def test_several_folders_are_experiments_as_when_their_parent_is_given(tmp_path: Path) -> None:
    def titled(*folders: Path) -> set[tuple[str, ...]]:
        parts = sections(look(folders).runs, folders)
        return {(part.title, *(group.label for group in part.groups)) for part in parts}

    of_parent = {part for part in titled(RESULTS) if part[0].startswith(("components:", "table-2:"))}
    assert titled(RESULTS / "components", RESULTS / "table-2") == of_parent
    same = tmp_path / "one" / "same", tmp_path / "two" / "same"
    for place in same:
        shutil.copytree(RESULTS / "full-size", place)
    assert {part[0].partition(":")[0] for part in titled(*same)} == {"one/same", "two/same"}
    single = sorted(path.parent for path in same[0].glob("*/summary.json"))
    assert titled(*single) == titled(same[0]) == titled(same[0], same[0])  # a run by its own folder is no experiment


def test_conditions_are_those_of_a_plain_loop() -> None:
    runs = look([RESULTS]).runs
    by_hand = [run for run in runs if run.config["method"] == "sar" and run.config["seed"] <= 2]
    assert where(runs, ["method=sar", "seed<=2"]) == by_hand
    hot = where(runs, ["retrieval.temperature>0.2"])
    assert {run.config["settings"]["retrieval.temperature"] for run in hot} >= {"0.5"}
    assert all(float(run.config["settings"]["retrieval.temperature"]) > 0.2 for run in hot)
    plain = where(runs, ["retrieval=none", "a_auc>0.5"])
    assert plain
    assert all(run.config.get("retrieval") is None and run.summary["a_auc"] > 0.5 for run in plain)
    short = where(runs, ["limit<=10000"])
    assert short == [run for run in runs if run.config["limit"] is not None and run.config["limit"] <= 10_000]
    with pytest.raises(UnknownName, match="methd"):
        where(runs, ["methd=er"])
    with pytest.raises(BudgetedError, match="no condition"):
        where(runs, ["sar"])


def test_the_tests_by_seed_are_those_of_scipy() -> None:
    from scipy import stats

    groups = sections(look([COMPONENTS]).runs, [COMPONENTS])[0].groups
    tests = {(each.metric, each.one): each for each in seed_tests(groups, "vanilla")}
    values = {group.label: {run.config["seed"]: 100 * run.summary["a_auc"] for run in group.runs} for group in groups}
    oracle = {
        label: stats.ttest_rel([own[seed] for seed in (1, 2, 3)], [values["vanilla"][seed] for seed in (1, 2, 3)])
        for label, own in values.items()
        if label != "vanilla"
    }
    for label, expected in oracle.items():
        found = tests["a_auc", label]
        assert found.test.p_value == pytest.approx(expected.pvalue)
        assert found.test.interval() == pytest.approx(expected.confidence_interval(0.95))
        assert found.p_holm >= found.test.p_value
    best = tests["a_auc", "vanilla retrieval=class-balanced"]
    assert best.p_holm == pytest.approx(4 * oracle["vanilla retrieval=class-balanced"].pvalue)
    assert "is 4.25 points better than vanilla over 3 seeds in pairs" in best.sentence


def test_a_report_holds_tables_tests_and_the_papers_values(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "report"
    text = said(["report", str(COMPONENTS), "--out", str(out), "--against", "vanilla", "--figures", "none"], capsys)
    assert "begin with" in text
    name = "cifar10-gaussian"
    page = (out / "report.md").read_text()
    assert "| vanilla retrieval=class-balanced | 1, 2, 3 | **56.34±0.22** |" in page  # as docs/findings.md has it
    assert "| al-sar | 53.22±1.31 | 64.38±0.32 | 59.98±2.48 | 72.57±0.79 | 146.80TMAC |" in page
    assert "of another size than the paper's" in page
    runs = list(csv.DictReader((out / name / "runs.csv").read_text().splitlines()))
    assert len(runs) == 15
    tests = list(csv.DictReader((out / name / "tests.csv").read_text().splitlines()))
    assert {test["against"] for test in tests} == {"vanilla"}
    assert (out / name / "table.tex").read_text().count(r"\midrule") == 1


def test_a_row_to_test_against_is_refused_if_no_part_has_it_and_missed_by_name(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "report"
    given = ["report", str(RESULTS), "--figures", "none", "--out", str(out), "--where", "dataset=cifar10"]
    assert "did you mean 'vanilla'" in refused([*given, "--against", "vanila"], capsys)
    assert not out.exists()
    said([*given, "--against", "vanilla"], capsys)
    missed = "There is no row vanilla here: tests are against the best row."
    assert missed in (out / "table-2-cifar10-gaussian" / "table.md").read_text()
    assert missed not in (out / "components-cifar10-gaussian" / "table.md").read_text()
    assert "table.md): 1 row\n" in (out / "report.md").read_text()


def test_at_the_papers_size_nothing_is_said_of_sizes(tmp_path: Path) -> None:
    found = look([RESULTS / "full-size"])
    write_report(found, found.runs, [RESULTS / "full-size"], tmp_path, figures="none")
    page = (tmp_path / "report.md").read_text()
    assert "Beside the paper" in page
    assert "another size" not in page


def test_figures_are_drawn_and_named_by_what_they_show(tmp_path: Path) -> None:
    found = look([COMPONENTS])
    runs = where(found.runs, ["seed<=2", "method!=sar"])
    written = write_report(found, runs, [COMPONENTS], tmp_path, figures="png")
    drawn = {path.stem for path in written.files if path.suffix == ".png"}
    assert drawn == {
        "accuracy",
        "dots",
        "compute",
        "frozen",
        "compute-by-purpose",
        "bytes-by-item",
        "spent",
    }  # all keep the same
    page = (tmp_path / "report.md").read_text()
    assert page.count("![") == len(drawn)
    assert "![Which blocks rested when: cifar10, gaussian stream](cifar10-gaussian/frozen.png)" in page


def test_accuracy_against_compute_is_not_drawn_where_all_rows_executed_the_same(tmp_path: Path) -> None:
    found = look([COMPONENTS])
    runs = where(found.runs, ["seed<=2", "retrieval=none", "method!=al", "method!=al-sar"])  # vanilla and sar
    spent = {run.config["method"]: run.summary["spent"]["real"] for run in runs}
    assert 1 < spent["sar"] / spent["vanilla"] < 1.01
    written = write_report(found, runs, [COMPONENTS], tmp_path, figures="png")
    assert "dots" in {path.stem for path in written.files}
    assert "compute" not in {path.stem for path in written.files}
    assert "compute.png" not in (tmp_path / "report.md").read_text()


def test_a_method_that_rests_by_design_says_so_beside_its_frozen_share(tmp_path: Path, capsys: Capture) -> None:
    folder = RESULTS / "table-2"
    lines = said(["table", str(folder)], capsys).splitlines()
    (row_of,) = [line for line in lines if line.startswith("| remind ")]
    assert " | 0.0‡ | " in row_of
    assert sum("‡" in line for line in lines) == 2
    note = (
        "‡: rests by design, which frozen % does not count and compute does: the front, once its base is over (remind)"
    )
    assert note in lines
    assert r"0.0$\ddagger$" in said(["table", str(folder), "--format", "latex"], capsys)
    assert "‡" not in said(["table", str(COMPONENTS)], capsys)
    assert "‡" not in said(["table", str(folder), "--format", "csv"], capsys)


def test_what_is_damaged_or_not_finished_is_named_and_hides_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(RESULTS / "full-size", runs)
    one, two, _ = sorted(path for path in runs.iterdir() if path.is_dir())
    summary = json.loads((one / "summary.json").read_text())
    (one / "summary.json").write_text(json.dumps({**summary, "a_auc": "high"}))
    (two / "summary.json").unlink()
    found = look([runs])
    report = write_report(found, found.runs, [runs], tmp_path / "report", figures="none")
    assert len(found.runs) == 1
    assert len(report.left_out) == 2
    assert "not finished" in (tmp_path / "report" / "report.md").read_text()


def test_the_command_of_a_run_makes_it_again() -> None:
    for run in look([RESULTS / "settings-sar", RESULTS / "methods", RESULTS / "win-full-size"]).runs:
        words = shlex.split(command_of(run.config, run.path.name))
        parsed = read(words[1:])
        assert isinstance(parsed, RunCommand)
        typed = parsed.run.with_usual().to_json()
        given = {**typed, "settings": dict(pair.split("=", 1) for pair in parsed.set)}
        wanted = {**dict.fromkeys(given), **run.config}
        for aside in ("data", "download"):
            given.pop(aside, None)
            wanted.pop(aside, None)
        told = {key: value for key, value in wanted.items() if value is not None}
        assert {key: given[key] for key in told} == told


def test_the_command_says_the_habits_that_the_method_has_left_since() -> None:
    then = {**METHODS["cram"].usual, "learner.learning_rate": "7e-3"}
    config = {**RunConfig(method="cram").to_json(), "usual": then}
    parsed = read(shlex.split(command_of(config, "again"))[1:])
    assert isinstance(parsed, RunCommand)
    assert parsed.set == ("learner.learning_rate=7e-3",)
    own = {**config, "method": "/gone/mine.py:Mine"}  # its file is not looked at
    assert command_of(own, "again").count("--set") == len(then)


def test_mistakes_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert "is no folder" in refused(["report", str(tmp_path / "none")], capsys)
    assert "no finished run" in refused(["report", str(tmp_path), "--out", str(tmp_path / "x")], capsys)


def test_a_row_has_what_was_typed_and_what_came_of_it() -> None:
    run = look([COMPONENTS]).runs[0]
    flat = row(run)
    assert flat["a_auc"] == run.summary["a_auc"]
    assert flat["budget"] == "1 it/sample, 5000000B"


def test_the_committed_report_is_that_of_the_records(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    made_by = (RESULTS / "report" / "report.md").read_text().partition("Made by `")[2].partition("`")[0]
    command = shlex.split(made_by)
    assert command[:2] == ["budgeted", "report"]
    command[command.index("--out") + 1] = str(tmp_path)
    said([*command[1:], "--figures", "none"], capsys)
    committed, anew = RESULTS / "report", tmp_path
    for kind in ("runs.csv", "tests.csv", "table.tex"):
        names = sorted(path.relative_to(anew) for path in anew.rglob(kind))
        assert names
        assert names == sorted(path.relative_to(committed) for path in committed.rglob(kind))
        for name in names:
            again = f"{name} is not what the records say: {made_by}"
            assert (anew / name).read_text() == (committed / name).read_text(), again
