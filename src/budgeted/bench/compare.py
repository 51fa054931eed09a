"""Two rows of a table against each other, in plain sentences: is there a difference, how large, and at what price.

Tests are paired by seed where both rows have two seeds in common, else Welch's. Each p stands for itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from budgeted.bench.row_labels import differences
from budgeted.bench.seed_tests import METRICS, compared
from budgeted.bench.table import Group, cautions, chosen
from budgeted.budget import format_bytes, format_compute
from budgeted.errors import BudgetedError
from budgeted.runs.multiple import Effect, effect
from budgeted.runs.statistics import LEVEL, MOST_SEEDS, Comparison, format_mean_sd, seeds_needed, summarise

ALL_METRICS = {**METRICS, "f_last": "F_last"}
_SAME = 0.005  # of an amount: what rounds to no percent
_EQUAL = "the same"


@dataclass(frozen=True)
class Difference:
    """One row against the other in one metric, in points."""

    metric: str
    test: Comparison

    @property
    def told(self) -> bool:
        return self.test.p_value < LEVEL

    @property
    def effect(self) -> Effect | None:
        return effect(self.test)

    @property
    def more_seeds(self) -> int | None:
        """How many more of both rows would find such a difference with chance 0.8; None: more than anybody runs."""
        needed = None if self.test.standard_error == 0 else seeds_needed(self.test)
        return None if needed is None else max(0, needed - min(self.test.counts))


def two_of(groups: Sequence[Group], rows: Sequence[str]) -> tuple[Group, Group]:
    """The rows that are named, in that order; the only two, if none is."""
    found = {group.label: group for group in chosen(groups, rows)}
    if rows and len(found) != len(rows):
        raise BudgetedError(f"{rows[0]!r} is named twice: name two different rows")
    names = list(rows or found)
    if len(names) == 2:
        return found[names[0]], found[names[1]]
    if len(groups) < 2:
        raise BudgetedError(f"there is one row, {names[0]}: give folders with another one to compare it with")
    example = shlex.join(["--rows", *(group.label for group in groups[:2])])
    raise BudgetedError(f"{len(names)} rows are no pair: name two of the {len(groups)} that are here, as in {example}")


def by_metric(one: Group, other: Group) -> list[Difference]:
    """In every metric that both rows have, where they have two seeds."""
    found = ((metric, compared(one, other, metric)) for metric in ALL_METRICS)
    return [Difference(metric, test) for metric, test in found if test is not None]


def sentences(one: Group, other: Group, ddof: int = 1) -> Iterator[str]:
    """What there is to say of the two, a paragraph a line."""
    found = by_metric(one, other)
    for difference in found:
        yield _sentence(difference, one, other, ddof)
    if not found:
        yield (
            f"{one.label} ({_seeds(one)}) and {other.label} ({_seeds(other)}) have too few seeds for a test: with one "
            "a difference cannot be told from chance. Run both on two or more."
        )
    yield from (_spent(group) for group in (one, other))
    yield _ratios(one, other)
    yield _configurations(one, other)
    yield from cautions([one, other])


def as_json(one: Group, other: Group) -> dict[str, Any]:
    """The same for a program; what cannot be given is null."""
    return {
        "rows": [_row(group) for group in (one, other)],
        "tests": [_test(difference) for difference in by_metric(one, other)],
        "differences": {key: list(values) for key, values in _differences(one, other).items()},
        "cautions": cautions([one, other]),
    }


# -- in words ---------------------------------------------------------------------------------------------------------


def _sentence(difference: Difference, one: Group, other: Group, ddof: int) -> str:
    test, name = difference.test, ALL_METRICS[difference.metric]
    if test.test == "paired":
        how, on = "paired t test", f"on the {test.counts[0]} seeds that both have"
    else:
        how, on = "Welch's t test", f"over {test.counts[0]} and {test.counts[1]} seeds, which they do not share"
    low, high = test.interval()
    size = difference.effect
    g = "" if size is None else f", Hedges' g {size.size:+.2f} ({size.low:+.2f} to {size.high:+.2f})"
    numbers = f"95 % interval {low:+.2f} to {high:+.2f}, {how}, p {test.p_value:.2g}{g}"
    values = (group.values(difference.metric) for group in (one, other))
    means = " and ".join(format_mean_sd(summarise(each, ddof), 2, 100) for each in values)
    if difference.told:
        said = f"{one.label} is {abs(test.difference):.2f} points {_word(difference)} than {other.label} {on}"
        return f"{name}, {means} %: {said} ({numbers})."
    said = f"{one.label} cannot be told from {other.label} {on}: {test.difference:+.2f} points ({numbers})"
    return f"{name}, {means} %: {said}. {_needed(difference)}"


def _word(difference: Difference) -> str:
    """Forgetting is the better the less there is of it."""
    less_is_better = difference.metric == "f_last"
    return "better" if (difference.test.difference > 0) is not less_is_better else "worse"


def _needed(difference: Difference) -> str:
    if difference.test.standard_error == 0:
        return "They show neither a difference nor a spread: check that the two rows differ."
    more = difference.more_seeds
    if more is None:
        return f"To tell such a difference would take more than {MOST_SEEDS:,} seeds."
    return f"To tell such a difference with chance 0.8 would take about {more:,} more seeds of both."


def _seeds(group: Group) -> str:
    return f"seed{'s' * (len(group.runs) > 1)} {', '.join(run.seed for run in group.runs)}"


def _spent(group: Group) -> str:
    real = format_compute(round(float(np.mean(group.spent("real")))), "real")
    paper = format_compute(round(float(np.mean(group.spent("paper")))), "paper")
    held = format_bytes(round(_mean(group, "bytes")))
    slots = f" with {_mean(group, 'slots'):,.0f} slots" if group.values("slots") else ""
    steps = f"{_mean(group, 'iterations'):,.0f} steps and {_mean(group, 'train_seconds'):,.0f} s of training"
    return f"{group.label} executed {real} (rule real; {paper} by rule paper) in {steps}, and held {held}{slots}."


def _ratios(one: Group, other: Group) -> str:
    compute = _ratio(float(np.mean(one.spent("real"))), float(np.mean(other.spent("real"))))
    held = _ratio(_mean(one, "bytes"), _mean(other, "bytes"))
    than = "as" if compute == _EQUAL else "than"
    return f"So {one.label} executed {compute} compute {than} {other.label}, and held {held} bytes."


def _ratio(one: float, other: float) -> str:
    if other == 0 or abs(one / other - 1) < _SAME:
        return _EQUAL
    return f"{100 * abs(one / other - 1):.0f} % {'more' if one > other else 'less'}"


def _configurations(one: Group, other: Group) -> str:
    found = _differences(one, other)
    if not found:
        return "Their configurations differ in nothing."
    told = (f"{key} {_value(first)} against {_value(second)}" for key, (first, second) in found.items())
    return f"Their configurations differ in {'; '.join(told)}."


def _value(value: Any) -> str:
    return "not given" if value is None else str(value)


def _differences(one: Group, other: Group) -> dict[str, tuple[Any, Any]]:
    return differences(one.runs[0].config, other.runs[0].config)


def _mean(group: Group, key: str) -> float:
    return float(np.mean(group.values(key)))


# -- for a program ----------------------------------------------------------------------------------------------------


def _row(group: Group) -> dict[str, Any]:
    return {
        "row": group.label,
        "by_seed": {metric: group.by_seed(metric) for metric in ALL_METRICS},
        "spent_real": float(np.mean(group.spent("real"))),
        "spent_paper": float(np.mean(group.spent("paper"))),
        "bytes": _mean(group, "bytes"),
        "slots": _mean(group, "slots") if group.values("slots") else None,
        "iterations": _mean(group, "iterations"),
        "train_seconds": _mean(group, "train_seconds"),
    }


def _test(difference: Difference) -> dict[str, Any]:
    test, size = difference.test, difference.effect
    return {
        "metric": difference.metric,
        "test": test.test,
        "seeds": list(test.counts),
        "points": test.difference,
        "interval": list(test.interval()),
        "p": test.p_value,
        "told": difference.told,
        "hedges_g": None if size is None else size.size,
        "hedges_g_interval": None if size is None else [size.low, size.high],
        "more_seeds": 0 if difference.told else difference.more_seeds,
    }
