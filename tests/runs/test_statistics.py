"""Tests and power against scipy, hand computations and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from budgeted.errors import BudgetedError
from budgeted.runs.multiple import holm
from budgeted.runs.statistics import (
    Comparison,
    confidence_interval,
    format_mean_sd,
    paired,
    power_of,
    rank,
    seeds_needed,
    smallest_detectable,
    summarise,
    too_few,
    welch,
)

groups = st.lists(st.integers(-1000, 1000).map(lambda tenths: tenths / 10), min_size=2, max_size=12)


def seeded(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


def test_summary_by_hand() -> None:
    assert summarise([1.0, 2.0, 6.0]).sd == pytest.approx(math.sqrt(7))
    assert summarise([1.0, 2.0, 6.0], ddof=0).sd == pytest.approx(math.sqrt(14 / 3))
    assert summarise([1.0, 2.0, 6.0]).mean == 3
    assert summarise([1.0, 2.0, 6.0]).count == 3


@pytest.mark.parametrize("ddof", [0, 1])
def test_one_run_has_no_spread(ddof: int) -> None:
    summary = summarise([0.5], ddof)
    assert summary.sd is None
    assert format_mean_sd(summary) == "0.50 (1 run)"


def test_format() -> None:
    assert format_mean_sd(summarise([0.64, 0.65, 0.66]), scale=100) == "65.00±1.00"
    assert format_mean_sd(summarise([1.0, 2.0]), digits=1, plus_minus=" +- ") == "1.5 +- 0.7"
    assert format_mean_sd(summarise([-0.0001, 0.0])) == "0.00±0.00"


def test_holm_by_hand() -> None:
    """Of m tests the smallest p counts m times, the next m - 1 times, and none less than one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@settings(deadline=None)
@given(groups)
def test_confidence_interval_equals_scipy(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    expected = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert confidence_interval(values) == pytest.approx(expected)


@settings(deadline=None)
@given(groups, groups)
def test_welch_equals_scipy(first: list[float], second: list[float]) -> None:
    assume(len(set(first)) > 1 and len(set(second)) > 1)
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = welch(first, second)
    assert found.statistic == pytest.approx(expected.statistic, abs=1e-9)
    assert found.degrees == pytest.approx(expected.df)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-12)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()), abs=1e-9)


@settings(deadline=None)
@given(groups, st.data())
def test_paired_equals_scipy(first: list[float], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.floats(-100, 100), min_size=len(first), max_size=len(first)))
    differences = np.subtract(first, second)
    assume(np.ptp(differences) > 1e-6)
    expected = stats.ttest_rel(first, second)
    # The order in which seeds are listed must not matter.
    found = paired(seeded(first), dict(reversed(seeded(second).items())))
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-12)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval()))


def test_no_spread_takes_the_limits_without_a_warning() -> None:
    assert welch([0.1] * 3, [0.1] * 3).p_value == 1
    assert welch([0.1] * 3, [0.2] * 3).p_value == 0
    assert smallest_detectable(welch([0.1] * 3, [0.2] * 3)) == 0
    # One constant group is an ordinary case: a one-sample test on the other.
    expected = stats.ttest_1samp([1.0, 2.0, 4.0], 0.1).pvalue
    assert welch([1.0, 2.0, 4.0], [0.1] * 3).p_value == pytest.approx(expected)


def test_power_of_welch_equals_simulation() -> None:
    generator = np.random.default_rng(7)
    # True standard deviations 1 and 1, so that Welch's degrees of freedom are near those assumed.
    comparison = Comparison("welch", 0.0, (1.0, 1.0), (6, 6))
    first, second = generator.normal(1.5, 1, (20_000, 6)), generator.normal(0, 1, (20_000, 6))
    found = stats.ttest_ind(first, second, axis=1, equal_var=False).pvalue < 0.05
    assert power_of(comparison, 1.5) == pytest.approx(found.mean(), abs=0.02)
    assert power_of(comparison, -1.5) == pytest.approx(power_of(comparison, 1.5))


def test_power_of_the_paired_test_equals_simulation() -> None:
    generator = np.random.default_rng(8)
    comparison = Comparison("paired", 0.0, (4.0,), (5,))
    found = stats.ttest_1samp(generator.normal(3.0, 2, (20_000, 5)), 0, axis=1).pvalue < 0.05
    # Exact up to the simulation's standard error of 0.0035.
    assert power_of(comparison, 3.0) == pytest.approx(found.mean(), abs=0.012)
    assert power_of(comparison, 0.0) == pytest.approx(0.05)


variances = st.floats(0.01, 100)


@settings(deadline=None)
@given(variances, variances, st.integers(2, 40), st.integers(2, 40))
def test_smallest_detectable_has_the_asked_power(v1: float, v2: float, n1: int, n2: int) -> None:
    for comparison in (Comparison("welch", 0.0, (v1, v2), (n1, n2)), Comparison("paired", 0.0, (v1,), (n1,))):
        assert power_of(comparison, smallest_detectable(comparison)) == pytest.approx(0.8, abs=1e-5)


@settings(deadline=None)
@given(variances, variances, st.floats(0.5, 20))
def test_seeds_needed_is_the_first_number_that_suffices(v1: float, v2: float, difference: float) -> None:
    for observed in ((v1, v2), (v1,)):
        seeds = seeds_needed(Comparison("welch", difference, observed, (3,) * len(observed)))
        assert seeds is not None
        enough = Comparison("welch", difference, observed, (seeds,) * len(observed))
        assert power_of(enough, difference) >= 0.8
        if seeds > 2:
            fewer = Comparison("welch", difference, observed, (seeds - 1,) * len(observed))
            assert power_of(fewer, difference) < 0.8


def test_seeds_needed_of_textbook_cases() -> None:
    # A two-sample comparison of means one standard deviation apart needs 17 per group; half of one, 64.
    assert seeds_needed(Comparison("welch", 1.0, (1.0, 1.0), (3, 3))) == 17
    assert seeds_needed(Comparison("welch", 0.5, (1.0, 1.0), (3, 3))) == 64
    # One sample at half a standard deviation: 34.
    assert seeds_needed(Comparison("paired", 0.5, (1.0,), (3,))) == 34
    assert seeds_needed(Comparison("welch", 0.0, (1.0, 1.0), (3, 3))) is None
    assert seeds_needed(Comparison("welch", 1e-4, (1.0, 1.0), (3, 3))) is None


def test_too_few_tells_what_would_do() -> None:
    first, second = [1.0, 2.0, 3.0], [1.5, 3.5, 1.5]
    comparison = welch(first, second)
    text = too_few(comparison)
    assert text is not None
    assert "3 and 3 runs cannot tell a difference of 0.167" in text
    assert f"one of {smallest_detectable(comparison):.3g} with chance 0.8" in text
    assert f"would take {seeds_needed(comparison):,} seeds each" in text
    assert "paired test" in (too_few(paired(seeded(first), seeded(second))) or "")


def test_too_few_is_silent_where_the_runs_tell() -> None:
    assert too_few(welch([10.0, 10.1, 10.2], [1.0, 1.2, 1.1])) is None


def test_too_few_of_equal_means() -> None:
    text = too_few(welch([1.0, 3.0], [3.0, 1.0]))
    assert text is not None
    assert "would take" not in text
    same = seeded([0.1, 0.3])
    assert "neither a difference nor a spread" in (too_few(paired(same, same)) or "")
    tiny = too_few(welch([1.0, 3.0, 2.0], [3.0, 1.0, 2.00001]))
    assert "more than 100,000 seeds" in (tiny or "")


def test_ranks_mark_the_best_and_those_it_cannot_be_told_from() -> None:
    runs = {
        "er": [50.0, 50.5, 51.0],
        "ours": [64.0, 64.6, 65.2],
        "vanilla": [63.0, 64.0, 65.0],
        "once": [10.0],
    }
    rows = {row.method: row for row in rank(runs)}
    assert list(rows) == list(runs)
    assert {method: row.mark for method, row in rows.items()} == {
        "er": "worse",
        "ours": "best",
        "vanilla": "tied",
        "once": "untested",
    }
    assert rows["vanilla"].p_value == pytest.approx(
        stats.ttest_ind(runs["vanilla"], runs["ours"], equal_var=False).pvalue
    )
    assert rows["ours"].cell() == "**64.60±0.60**"
    assert rows["vanilla"].cell("latex", digits=1) == r"\underline{64.0$\pm$1.0}"
    assert rows["er"].cell("latex") == r"50.50$\pm$0.50"
    assert rows["ours"].cell("rich") == "[bold]64.60±0.60[/bold]"
    assert rows["once"].cell() == "10.00 (1 run)"
    assert next(row for row in rank(runs, ddof=0) if row.method == "er").cell("plain") == "50.50±0.41"


def test_a_single_best_run_tests_nothing() -> None:
    runs = {"a": [3.0, 4.0], "b": [11.0], "c": [9.0, 9.1]}
    marks = [row.mark for row in rank(runs)]
    assert marks == ["untested", "best", "untested"]


def test_equal_means_are_all_best() -> None:
    assert [row.mark for row in rank({"a": [1.0, 3.0], "b": [2.0, 2.0]})] == ["best", "best"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: summarise([]), "run more seeds"),
        (lambda: summarise([1.0, math.nan]), "finite"),
        (lambda: summarise([1.0, 2.0], ddof=2), "ddof"),
        (lambda: confidence_interval([1.0]), "at least 2"),
        (lambda: welch([1.0], [1.0, 2.0]), "at least 2"),
        (lambda: paired({1: 1.0, 2: 2.0}, {1: 1.0, 3: 2.0}), "seed 2 was run for one method only"),
        (lambda: rank({}), "at least one method"),
        (lambda: rank({"a": []}), "run more seeds"),
        (lambda: rank({"a": [1.0]})[0].cell("latx"), "did you mean 'latex'"),
    ],
)
def test_impossible_statistics_are_one_line_errors(wrong, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BudgetedError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)
