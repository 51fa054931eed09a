"""What repeated runs allow one to say: spread, tests between methods, and whether the seeds suffice to tell.

Welch's test compares groups of independent runs; the paired test compares runs that share their seeds (the
same stream order and test set), which removes what the seed alone contributes. Both are Student t statistics
of a difference whose squared standard error is a sum of variance / count terms, two terms for Welch's and one
for the paired test; so one set of formulas serves both, and the power of either follows from the noncentral t
distribution.

Every test uses the unbiased variance (ddof 1). `ddof` concerns the standard deviation shown: the paper shows
ddof 0, which understates the spread of 3 runs by 18 percent. A single run has no standard deviation, never
one of 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import optimize, stats

from budgeted.errors import BudgetedError, UnknownName

Mark = Literal["best", "tied", "worse", "untested"]

LEVEL = 0.05
POWER = 0.8
MOST_SEEDS = 100_000
"""Beyond this `seeds_needed` gives up: the difference is of no practical interest."""


class NoStatistic(BudgetedError):
    """The runs do not determine the statistic; the line says what is missing."""


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of `count` runs; `sd` is None for a single run."""

    mean: float
    sd: float | None
    count: int
    ddof: int


@dataclass(frozen=True)
class Comparison:
    """A t test of one difference of means, first minus second.

    `variances` and `counts` have two entries for Welch's test and one, that of the differences, for the
    paired test.
    """

    test: Literal["welch", "paired"]
    difference: float
    variances: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def standard_error(self) -> float:
        return _error_and_degrees(self.variances, self.counts)[0]

    @property
    def degrees(self) -> float:
        """Degrees of freedom, by Welch and Satterthwaite."""
        return _error_and_degrees(self.variances, self.counts)[1]

    @property
    def statistic(self) -> float:
        if self.standard_error > 0:
            return self.difference / self.standard_error
        # Without any spread the limit: certain, unless there is no difference either.
        return math.copysign(math.inf, self.difference) if self.difference else 0.0

    @property
    def p_value(self) -> float:
        """Two-sided."""
        return float(2 * stats.t.sf(abs(self.statistic), self.degrees))

    def interval(self, level: float = 1 - LEVEL) -> tuple[float, float]:
        """Confidence interval of the difference."""
        half = float(stats.t.ppf((1 + level) / 2, self.degrees)) * self.standard_error
        return self.difference - half, self.difference + half


@dataclass(frozen=True)
class Row:
    """One method of a table: its summary, and how it stands against the best one."""

    method: str
    summary: Summary
    mark: Mark
    """`tied`: not significantly worse than the best; `untested`: it or the best has a single run."""
    p_value: float | None

    def cell(self, style: str = "markdown", digits: int = 2, scale: float = 1.0) -> str:
        """The value as table text: best bold, tied underlined, as in the paper."""
        if style not in _DECORATIONS:
            raise UnknownName("table style", style, _DECORATIONS)
        bold, underline, plus_minus = _DECORATIONS[style]
        text = format_mean_sd(self.summary, digits, scale, plus_minus)
        if self.mark == "best":
            return bold.format(text)
        return underline.format(text) if self.mark == "tied" else text


_DECORATIONS: dict[str, tuple[str, str, str]] = {
    "markdown": ("**{}**", "<u>{}</u>", "±"),
    "latex": (r"\textbf{{{}}}", r"\underline{{{}}}", r"$\pm$"),
    "rich": ("[bold]{}[/bold]", "[underline]{}[/underline]", "±"),
    "plain": ("{}", "{}", "±"),
}


PLUS_MINUS = {style: sign for style, (_, _, sign) in _DECORATIONS.items()}


def summarise(values: Sequence[float], ddof: int = 1) -> Summary:
    """Mean and standard deviation of repeated runs; `ddof=0` for the paper's."""
    if ddof not in (0, 1):
        raise NoStatistic(f"no standard deviation has ddof {ddof}: give 1 (unbiased variance) or 0 (the paper's)")
    _check(values)
    count = len(values)
    sd = None if count == 1 else math.sqrt(_variance(values) * (count - 1) / (count - ddof))
    return Summary(_mean(values), sd, count, ddof)


def confidence_interval(values: Sequence[float], level: float = 1 - LEVEL) -> tuple[float, float]:
    """Student's t interval of the mean over at least two runs."""
    _check(values, least=2)
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * math.sqrt(_variance(values) / len(values))
    return _mean(values) - half, _mean(values) + half


def welch(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Welch's unequal-variances t test between two groups of at least two runs each."""
    _check(first, least=2)
    _check(second, least=2)
    return Comparison(
        "welch",
        _mean(first) - _mean(second),
        (_variance(first), _variance(second)),
        (len(first), len(second)),
    )


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Comparison:
    """The paired t test between two methods run on the same seeds; the mappings go from seed to value."""
    if single := sorted(set(first) ^ set(second)):
        raise NoStatistic(
            f"seed {single[0]} was run for one method only: run both on the same seeds or use Welch's test"
        )
    differences = [first[seed] - second[seed] for seed in sorted(first)]
    _check(differences, least=2)
    return Comparison("paired", _mean(differences), (_variance(differences),), (len(differences),))


def power_of(comparison: Comparison, difference: float) -> float:
    """Chance that such a test finds a true `difference`, taking the observed variances for the true ones."""
    return _power(difference, *_error_and_degrees(comparison.variances, comparison.counts))


def smallest_detectable(comparison: Comparison) -> float:
    """The smallest true difference that as many runs with these variances would find with chance POWER."""
    error, degrees = _error_and_degrees(comparison.variances, comparison.counts)
    if error == 0:
        return 0.0
    upper = 1.0
    while _power(upper, 1.0, degrees) < POWER:
        upper *= 2
    ratio = optimize.brentq(lambda ratio: _power(ratio, 1.0, degrees) - POWER, 0.0, upper, xtol=1e-9)
    return float(ratio) * error


def seeds_needed(comparison: Comparison) -> int | None:
    """Seeds per method that would find the observed difference with chance POWER; None above MOST_SEEDS."""

    def enough(seeds: int) -> bool:
        error, degrees = _error_and_degrees(comparison.variances, (seeds,) * len(comparison.variances))
        return _power(comparison.difference, error, degrees) >= POWER

    if comparison.difference == 0 or not enough(MOST_SEEDS):
        return None
    return _first_true(enough, 2, MOST_SEEDS)


def too_few(comparison: Comparison) -> str | None:
    """A warning where the runs cannot tell the two methods apart, None where they can."""
    if comparison.p_value < LEVEL:
        return None
    counts = f"{' and '.join(map(str, comparison.counts))} runs"
    if comparison.standard_error == 0:
        return f"{counts} show neither a difference nor a spread: check that the two methods differ"
    size = abs(comparison.difference)
    text = (
        f"{counts} cannot tell a difference of {size:.3g} "
        f"({comparison.test} test, p {comparison.p_value:.2g}): "
        f"they find one of {smallest_detectable(comparison):.3g} with chance {POWER:g}"
    )
    if size == 0:
        return text
    seeds = seeds_needed(comparison)
    needed = f"{seeds:,}" if seeds else f"more than {MOST_SEEDS:,}"
    return f"{text}; {size:.3g} would take {needed} seeds each"


def rank(groups: Mapping[str, Sequence[float]], ddof: int = 1) -> list[Row]:
    """Rows in the order given: the highest mean, and every method that Welch's test does not tell from it.

    As in the paper there is no correction for the number of methods compared; more methods, more chance
    findings.
    """
    if not groups:
        raise NoStatistic("a table needs at least one method with a run")
    summaries = {method: summarise(values, ddof) for method, values in groups.items()}
    best = max(summaries, key=lambda method: summaries[method].mean)
    rows: list[Row] = []
    for method, summary in summaries.items():
        mark: Mark = "best"
        p_value: float | None = None
        if summary.mean != summaries[best].mean:
            mark = "untested"
            if min(summary.count, summaries[best].count) > 1:
                p_value = welch(groups[method], groups[best]).p_value
                mark = "worse" if p_value < LEVEL else "tied"
        rows.append(Row(method, summary, mark, p_value))
    return rows


def format_mean_sd(summary: Summary, digits: int = 2, scale: float = 1.0, plus_minus: str = "±") -> str:
    """`64.38±0.32`, or `64.38 (1 run)` without a spread to show; `scale=100` turns fractions into percent."""
    mean = f"{summary.mean * scale:z.{digits}f}"
    return f"{mean} (1 run)" if summary.sd is None else f"{mean}{plus_minus}{summary.sd * scale:.{digits}f}"


def _error_and_degrees(variances: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    largest = max(variances)
    if largest == 0:
        return 0.0, float(sum(counts) - len(counts))
    # Degrees of freedom do not depend on the unit; relative variances keep squares from underflow.
    terms = [variance / largest / count for variance, count in zip(variances, counts, strict=True)]
    degrees = sum(terms) ** 2 / sum(term**2 / (count - 1) for term, count in zip(terms, counts, strict=True))
    return math.sqrt(sum(terms) * largest), degrees


def _power(difference: float, error: float, degrees: float) -> float:
    if error == 0:
        return 1.0 if difference else LEVEL
    critical = float(stats.t.ppf(1 - LEVEL / 2, degrees))
    shift = abs(difference) / error
    # The far tail is below 3e-7 from a shift of 5 on, where scipy may also answer nan for it.
    far = float(stats.nct.cdf(-critical, degrees, shift)) if shift < 5 else 0.0
    return float(stats.nct.sf(critical, degrees, shift)) + far


def _first_true(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Smallest number in [low, high] that holds, for a condition that stays true once it is."""
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    # The mean of equal floats need not equal them; their variance is 0 all the same.
    return 0.0 if min(values) == max(values) else float(np.var(np.asarray(values, dtype=np.float64), ddof=1))


def _check(values: Sequence[float], least: int = 1) -> None:
    if len(values) < least:
        raise NoStatistic(f"{len(values)} of at least {least} runs: run more seeds")
    if not all(math.isfinite(value) for value in values):
        raise NoStatistic("a run's result is not a finite number: repeat that run or leave it out")
