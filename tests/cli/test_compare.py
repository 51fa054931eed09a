"""`budgeted compare`: what it says of two rows is what one computes by hand."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import pytest
from scipy import stats

from budgeted.bench.compare import by_metric, sentences
from budgeted.bench.table import find_runs, group_runs
from tests.cli.small import summaries
from tests.command_line import Capture, refused, said
from tests.markdown import ROOT

COMPONENTS = ROOT / "results" / "components"


def test_two_rows_are_compared_by_seed_in_every_metric(capsys: Capture) -> None:
    groups = {group.label: group for group in group_runs(find_runs([COMPONENTS]))}
    text = said(["compare", str(COMPONENTS), "--rows", "sar", "vanilla"], capsys)
    told = {line.partition(",")[0]: line for line in text.splitlines()}
    for metric, name in (("a_auc", "A_AUC"), ("a_last", "A_last"), ("f_last", "F_last")):
        one, other = ([100 * value for value in groups[label].values(metric)] for label in ("sar", "vanilla"))
        oracle = stats.ttest_rel(one, other)
        low, high = oracle.confidence_interval(0.95)
        line = told[name]
        assert f"{statistics.mean(one):.2f}±{statistics.stdev(one):.2f} and " in line
        assert f"95 % interval {low:+.2f} to {high:+.2f}, paired t test, p {oracle.pvalue:.2g}" in line
        assert ("cannot be told" in line) == (oracle.pvalue >= 0.05) == ("more seeds" in line)
    assert "sar is 2.64 points better than vanilla on the 3 seeds that both have" in told["A_AUC"]
    assert "differ in method sar against vanilla." in text


def test_the_seeds_that_it_asks_for_would_tell(capsys: Capture) -> None:
    groups = {group.label: group for group in group_runs(find_runs([COMPONENTS]))}
    (found, *_) = by_metric(groups["al-sar"], groups["vanilla"])
    needed = (found.more_seeds or 0) + 3
    effect = abs(found.test.difference) / found.test.variances[0] ** 0.5
    for seeds, enough in ((needed, True), (needed - 1, False)):
        critical, shift = stats.t.ppf(0.975, seeds - 1), effect * seeds**0.5
        power = stats.nct.sf(critical, seeds - 1, shift) + stats.nct.cdf(-critical, seeds - 1, shift)
        assert bool(power >= 0.8) is enough
    text = said(["compare", str(COMPONENTS), "--rows", "al-sar", "vanilla"], capsys)
    assert f"about {needed - 3} more seeds of both" in text
    assert "al-sar executed 12 % less compute than vanilla, and held the same bytes" in text


def test_of_two_rows_none_has_to_be_named_and_their_order_is_the_one_given(runs: Path, capsys: Capture) -> None:
    alone = said(["compare", str(runs)], capsys)
    assert "vanilla" in alone
    found = [json.loads(said(["compare", str(runs), "--rows", *rows, "--json"], capsys))
             for rows in (("er", "vanilla"), ("vanilla", "er"))]  # fmt: skip
    assert [each["row"] for each in found[0]["rows"]] == ["er", "vanilla"]
    assert found[0]["tests"][0]["points"] == pytest.approx(-found[1]["tests"][0]["points"])
    assert found[0]["rows"][0]["by_seed"]["a_auc"]["1"] == pytest.approx(100 * summaries(runs, "er")[0]["a_auc"])
    assert found[0]["differences"]["method"] == ["er", "vanilla"]


def test_one_seed_tells_nothing_and_what_is_damaged_is_left_out(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    text = said(["compare", str(runs), "--where", "seed=1"], capsys)
    assert "too few seeds for a test" in text
    copied = tmp_path / "runs"
    shutil.copytree(runs, copied)
    (copied / "er-2" / "summary.json").write_text("{")
    assert "too few seeds" in said(["compare", str(copied)], capsys)


def test_less_forgetting_is_better(runs: Path) -> None:
    one, other = group_runs(find_runs([runs]))
    for group, values in ((one, (0.1, 0.11)), (other, (0.3, 0.3102))):
        for run, value in zip(group.runs, values, strict=True):
            run.summary["f_last"] = value
    (line,) = [line for line in sentences(one, other) if line.startswith("F_last")]
    assert f"{one.label} is 20.01 points better than {other.label}" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give folders of runs"),
        (["RUNS", "--rows", "er", "vanila"], "did you mean 'vanilla'"),
        (["RUNS", "--rows", "er"], "name two of the 2 that are here, as in --rows"),
        (["RUNS", "--rows", "er", "er"], "named twice"),
        (["RUNS", "--where", "method=er"], "there is one row, er"),
        (["nowhere"], "nowhere is no folder"),
    ],
)
def test_mistakes(arguments: list[str], says: str, runs: Path, capsys: Capture) -> None:
    assert says in refused(["compare", *(str(runs) if each == "RUNS" else each for each in arguments)], capsys)


def test_the_page_shows_what_the_command_says(capsys: Capture) -> None:
    page = (ROOT / "docs" / "report.md").read_text()
    text = said(["compare", str(COMPONENTS), "--rows", "sar", "vanilla"], capsys)
    assert re.search(r"```text\n" + re.escape(text) + "```", page)


def test_rows_without_common_seeds_are_compared_by_welchs_test(runs: Path) -> None:
    one, other = group_runs(find_runs([runs]))
    for run in other.runs:
        run.config["seed"] += 10
    values = [[100 * value for value in group.values("a_auc")] for group in (one, other)]
    line = next(sentences(one, other))
    p = stats.ttest_ind(*values, equal_var=False).pvalue
    assert "over 2 and 2 seeds, which they do not share" in line
    assert f"Welch's t test, p {p:.2g}" in line
