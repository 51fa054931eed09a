"""Holm's correction against closed testing by brute force; effect sizes against the test that they belong to."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgeted.runs.multiple import effect, holm
from budgeted.runs.statistics import NoStatistic, paired, welch

CHANCES = st.lists(st.floats(0, 1), min_size=1, max_size=6)
VALUES = st.lists(st.integers(-50, 50).map(float), min_size=4, max_size=6)


@given(CHANCES)
def test_holm_is_closed_testing_with_bonferroni(p_values: list[float]) -> None:
    places = range(len(p_values))
    subsets = [set(each) for each in chain.from_iterable(combinations(places, n) for n in range(1, len(p_values) + 1))]
    for place, corrected in enumerate(holm(p_values)):
        worst = max(min(1.0, len(each) * min(p_values[i] for i in each)) for each in subsets if place in each)
        assert corrected == pytest.approx(worst)


def test_what_is_no_chance_is_refused() -> None:
    assert holm([]) == []
    with pytest.raises(NoStatistic):
        holm([0.1, float("nan")])


@given(VALUES, VALUES)
def test_an_interval_leaves_out_nothing_exactly_where_the_test_finds_a_difference(
    first: list[float], second: list[float]
) -> None:
    by_seed = [dict(enumerate(values[:4])) for values in (first, second)]
    for comparison in (welch(first, second), paired(*by_seed)):
        size = effect(comparison)
        if size is None:
            assert comparison.standard_error == 0 or comparison.degrees <= 1
            continue
        assert size.low <= size.size * 1.5 + 1e-6 if size.size > 0 else size.size * 1.5 - 1e-6 <= size.high
        if abs(comparison.p_value - 0.05) > 1e-4:
            assert (size.low > 0 or size.high < 0) == (comparison.p_value < 0.05)


def test_the_size_is_that_of_the_books() -> None:
    """Differences 1, 2, 3: their mean is two standard deviations; Hedges' factor for 2 degrees is 1/sqrt(pi)."""
    found = effect(paired({1: 1.0, 2: 2.0, 3: 3.0}, {1: 0.0, 2: 0.0, 3: 0.0}))
    assert found is not None
    assert found.size == pytest.approx(2 / 3.141592653589793**0.5)
    assert effect(paired({1: 1.0, 2: 2.0}, {1: 0.0, 2: 0.0})) is None


def test_a_difference_far_beyond_the_spread_has_an_interval_too() -> None:
    """Where scipy's distribution gives up: three runs that hardly differ, a hundred points apart."""
    for apart in (1e2, 1e4, 1e6):
        found = effect(paired({1: apart, 2: apart + 0.1, 3: apart + 0.3}, {1: 0.0, 2: 0.0, 3: 0.0}))
        assert found is not None
        assert 0 < found.low < found.size
        assert found.high > found.low
