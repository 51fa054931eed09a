"""Several tests at once, and how large a difference is: Holm's correction, and Hedges' g with its interval.

Of twenty comparisons between methods that do not differ, one comes out below 5 % by chance. Holm's procedure keeps the
chance of even one such finding at 5 %, whatever the tests have to do with each other, and gives away less than
Bonferroni's. An effect size says how large a difference is beside the spread of the runs, which no p value does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import optimize, stats

from budgeted.runs.statistics import LEVEL, Comparison, NoStatistic

_FAR = 1e4  # a shift that no run has


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values corrected for their number, in the order given: significant where they are below the level."""
    if any(not 0 <= p <= 1 for p in p_values):
        raise NoStatistic("a p value is between 0 and 1: leave out what is none")
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


@dataclass(frozen=True)
class Effect:
    """A standardised difference (Hedges' g) and its interval."""

    size: float
    low: float
    high: float


def effect(comparison: Comparison, level: float = 1 - LEVEL) -> Effect | None:
    """How many standard deviations the difference is; None where there is no spread to measure it by.

    Of the paired test: of the differences by seed. Of Welch's: of the runs, by the mean of the two variances. Corrected
    for few runs by Hedges' factor; the interval is that of the noncentral t distribution, so it is wide for few runs.
    """
    degrees = comparison.degrees
    if comparison.standard_error == 0 or degrees <= 1:  # two pairs: the correction would be 0, the interval everything
        return None
    spread = math.sqrt(sum(comparison.variances) / len(comparison.variances))
    scale = comparison.standard_error / spread  # from the t statistic to standard deviations
    unbiased = math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees - 1) / 2)) / math.sqrt(degrees / 2)
    low, high = (_shift(comparison.statistic, degrees, chance) for chance in ((1 + level) / 2, (1 - level) / 2))
    return Effect(unbiased * comparison.statistic * scale, unbiased * low * scale, unbiased * high * scale)


def _shift(statistic: float, degrees: float, chance: float) -> float:
    """The noncentrality under which a t statistic up to this one has that chance."""

    def off(shift: float) -> float:
        found = float(stats.nct.cdf(statistic, degrees, shift))
        if math.isnan(found):  # too far out for scipy to tell from none, or all
            found = float(shift < statistic)
        return found - chance

    low, high = statistic - 1.0, statistic + 1.0
    while off(low) < 0 and low > -_FAR:
        low -= 2 * (statistic - low)
    while off(high) > 0 and high < _FAR:
        high += 2 * (high - statistic)
    return float(optimize.brentq(off, low, high, xtol=1e-6))
