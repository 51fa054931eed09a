"""A cost under both rules at once, so that no number travels without its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from budgeted.budget.units import Rule, format_compute


@dataclass(frozen=True, slots=True)
class Cost:
    """What something costs: `paper` in MAC, `real` in FLOP."""

    paper: int = 0
    real: int = 0

    def under(self, rule: Rule) -> int:
        return self.paper if rule == "paper" else self.real

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.paper + other.paper, self.real + other.real)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.paper - other.paper, self.real - other.real)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.paper * times, self.real * times)

    __rmul__ = __mul__

    def __str__(self) -> str:
        return f"{format_compute(self.paper, 'paper')} / {format_compute(self.real, 'real')}"


NOTHING = Cost()


def total(costs: Iterable[Cost]) -> Cost:
    paper = real = 0
    for cost in costs:
        paper += cost.paper
        real += cost.real
    return Cost(paper, real)
