"""Every row of a table against one of them: by seed where both have the seeds, corrected for how many are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from budgeted.bench.table import Group, by_common_seeds
from budgeted.bench.text_tables import csv_table, markdown_table
from budgeted.errors import UnknownName
from budgeted.runs.multiple import Effect, effect, holm
from budgeted.runs.statistics import LEVEL, Comparison, welch

METRICS = {"a_auc": "A_AUC", "a_last": "A_last"}


@dataclass(frozen=True)
class SeedTest:
    """One row against another in one metric, in points of accuracy."""

    metric: str
    one: str
    other: str
    test: Comparison
    effect: Effect | None
    p_holm: float
    """corrected for all rows of the table that are tested in this metric"""

    @property
    def sentence(self) -> str:
        """In plain words."""
        by = f"over {self.test.counts[0]} seeds in pairs" if self.test.test == "paired" else "over unpaired seeds"
        if self.p_holm < LEVEL:
            better = "better" if self.test.difference > 0 else "worse"
            said = f"{self.one} is {abs(self.test.difference):.2f} points {better} than {self.other}"
        else:
            said = f"{self.one} cannot be told from {self.other} ({self.test.difference:+.2f} points)"
        low, high = self.test.interval()
        return (
            f"{METRICS[self.metric]}: {said} {by}; 95 % interval {low:+.2f} to {high:+.2f}, p {self.test.p_value:.2g}, "
            f"corrected {self.p_holm:.2g}"
        )


def seed_tests(groups: Sequence[Group], against: str | None = None) -> list[SeedTest]:
    """Every other row against the one that is named, or against the best; rows with one seed are left out."""
    if against is not None and against not in (labels := [group.label for group in groups]):
        raise UnknownName("row", against, labels)
    found = []
    for metric in METRICS:
        best = max(groups, key=lambda group: float(np.mean(group.values(metric))))
        fixed = next((group for group in groups if group.label == against), best)
        tests = [(group, test) for group in groups if group is not fixed and (test := compared(group, fixed, metric))]
        corrected = holm([test.p_value for _, test in tests])
        found += [
            SeedTest(metric, group.label, fixed.label, test, effect(test), p)
            for (group, test), p in zip(tests, corrected, strict=True)
        ]
    return found


def compared(one: Group, other: Group, metric: str) -> Comparison | None:
    """By the seeds that both have where there are two, else Welch's test."""
    first, second = one.by_seed(metric), other.by_seed(metric)
    test = by_common_seeds(first, second)
    if test is None and min(len(first), len(second)) > 1:
        return welch(list(first.values()), list(second.values()))
    return test


_COLUMNS = ("metric", "row", "against", "points", "95 % interval", "test", "p", "p (Holm)", "Hedges' g", "its interval")


def as_markdown(tests: Sequence[SeedTest]) -> str:
    rows = []
    for each in tests:
        low, high = each.test.interval()
        size = "-" if each.effect is None else f"{each.effect.size:+.2f}"
        span = "-" if each.effect is None else f"{each.effect.low:+.2f} … {each.effect.high:+.2f}"
        rows.append((
            METRICS[each.metric], each.one, each.other, f"{each.test.difference:+.2f}", f"{low:+.2f} … {high:+.2f}",
            f"{each.test.test}, {'/'.join(map(str, each.test.counts))}", f"{each.test.p_value:.3g}",
            f"{'**' * (each.p_holm < LEVEL)}{each.p_holm:.3g}{'**' * (each.p_holm < LEVEL)}", size, span,
        ))  # fmt: skip
    return markdown_table(_COLUMNS, rows)


def as_csv(tests: Sequence[SeedTest]) -> str:
    heads = (
        "metric", "row", "against", "points", "low", "high", "test", "pairs_or_runs", "p", "p_holm", "g", "g_low",
        "g_high",
    )  # fmt: skip
    rows = []
    for each in tests:
        counts = "/".join(map(str, each.test.counts))
        numbers = (each.test.difference, *each.test.interval())
        size = each.effect
        sizes = [""] * 3 if size is None else [f"{value:.6g}" for value in (size.size, size.low, size.high)]
        rows.append(
            [each.metric, each.one, each.other, *(f"{value:.6g}" for value in numbers), each.test.test, counts,
             f"{each.test.p_value:.6g}", f"{each.p_holm:.6g}", *sizes]
        )  # fmt: skip
    return csv_table(heads, rows)
