"""Prices at sizes that were never traced: an exact polynomial in batch, length and the rows of a growing head.

From two traces follows the trace at any other sizes (`lifted`). It is priced on a small grid, and the polynomial
through it, in whole numbers, gives every price there is: per block, for any frozen set, under both rules. A new shape
then costs a few sums instead of a trace.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from budgeted.budget.cost import Cost
from budgeted.budget.lifted import LiftedTrace, NotAlike, Sizes
from budgeted.budget.pricing import BlockPrices, Pricer
from budgeted.budget.trace import Trace, Value

_DEGREE = 3
"""highest power of one size that a price may hold: attention is a square, a product over three places a cube"""
REACH = 8
"""how far beyond the sizes that were traced, as a factor: a forward may take another way at quite another size"""


class Polynomials:
    """Every price of one forward as a polynomial of the sizes that vary between two traces of it."""

    def __init__(
        self, pricer: Pricer, feature: Value | None, first_sizes: Sizes, second: Trace, second_sizes: Sizes
    ) -> None:
        """`pricer` prices the first trace, `feature` is a value in it; NotAlike if the two have no polynomial."""
        self._pricer = pricer
        self._feature = feature
        self._lifted = LiftedTrace(pricer.trace, first_sizes, second, second_sizes)
        variables = self._lifted.variables
        if not len(variables):
            raise NotAlike
        steps = [abs(b - a) for a, b in zip(variables.first, variables.second, strict=True)]
        lowest = [min(pair) for pair in zip(variables.first, variables.second, strict=True)]
        # a size of 1 shows where it stands, but it is broadcast, and priced, like no other: no polynomial goes by it
        starts = [low + step if low == 1 else low for low, step in zip(lowest, steps, strict=True)]
        self._seen = [sorted(pair) for pair in zip(variables.first, variables.second, strict=True)]
        self._apart = list(steps)
        # sizes that went together in all that was traced: either may stand for the other by mistake
        self._together = set(itertools.combinations(range(len(variables)), 2))
        self._made: dict[tuple[int, ...], Pricer] = {}
        self._axes = [self._axis(number, starts, step) for number, step in enumerate(steps)]
        self._nodes = [self._node(values) for values in itertools.product(*self._axes)]
        self._known: dict[object, list[Sequence[int]]] = {}
        self._weights: dict[Sizes, tuple[list[int], int]] = {}

    def covers(self, sizes: Sizes) -> bool:
        """Does the polynomial speak of these sizes, and are they near enough to what was traced?

        Where all that was traced was a multiple of 8, say, a size in between may be padded or cut: it is not covered.
        """
        values = self._lifted.covers(sizes)
        return values is not None and all(
            seen[0] <= REACH * value and value <= REACH * seen[-1] and not (value - seen[0]) % apart
            for value, seen, apart in zip(values, self._seen, self._apart, strict=True)
        )

    def explains(self, pricer: Pricer, feature: Value | None, sizes: Sizes) -> bool | None:
        """Are these prices, of a trace at these sizes, to the last operation what it says? None if it does not speak of
        these sizes."""
        values = self._lifted.covers(sizes)
        if values is None:
            return None
        everything = pricer.trace.trainable()
        half = frozenset(sorted(everything)[len(everything) // 2 :])
        for trained in (everything, half):
            if self.prices(sizes, trained) != pricer.prices(trained):
                return False
        if feature is not None and self.to_feature(sizes) != pricer.backward_to(feature):
            return False
        for number, (value, seen) in enumerate(zip(values, self._seen, strict=True)):
            self._apart[number] = math.gcd(self._apart[number], value - seen[0])
            seen[:] = min(value, seen[0]), max(value, seen[-1])
        pairs = zip(values, self._lifted.variables.first, self._lifted.variables.second, strict=True)
        moved = [Fraction(value - first, second - first) for value, first, second in pairs]
        self._together = {(a, b) for a, b in self._together if moved[a] == moved[b]}
        return True

    @property
    def separated(self) -> bool:
        """Whether traces that agree have shown which size is which."""
        return not self._together

    def prices(self, sizes: Sizes, trained: frozenset[int]) -> BlockPrices:
        numbers = self.numbers(("prices", trained), lambda pricer: _flat(pricer.prices(trained)), sizes)
        costs = [Cost(paper, real) for paper, real in zip(numbers[1::2], numbers[2::2], strict=True)]
        half = len(costs) // 2
        return BlockPrices(tuple(costs[:half]), tuple(costs[half:]), numbers[0])

    def to_feature(self, sizes: Sizes) -> Cost:
        """Running backwards to the feature, and no further."""
        feature = self._feature
        assert feature is not None
        return Cost(*self.numbers("feature", lambda pricer: _pair(pricer.backward_to(feature)), sizes))

    def numbers(self, key: object, of: Callable[[Pricer], Sequence[int]], sizes: Sizes) -> list[int]:
        """Whole numbers that follow from a pricer, at these sizes; `key` names them."""
        if key not in self._known:
            self._known[key] = [of(node) for node in self._nodes]
        return self._combined(key, sizes)

    def _combined(self, key: object, sizes: Sizes) -> list[int]:
        if sizes not in self._weights:
            values = self._lifted.covers(sizes)
            if values is None:
                raise NotAlike
            self._weights[sizes] = self._weights_at(values)
        weights, denominator = self._weights[sizes]
        found = []
        for column in zip(*self._known[key], strict=True):
            whole, rest = divmod(sum(w * number for w, number in zip(weights, column, strict=True)), denominator)
            if rest:
                raise NotAlike  # a polynomial through whole numbers of work is whole where work is done
            found.append(whole)
        return found

    def _weights_at(self, values: Sequence[int]) -> tuple[list[int], int]:
        """What each node counts for at these values (Lagrange), over a common denominator."""
        lines = [
            [
                math.prod((Fraction(value - other, node - other) for other in axis if other != node), start=Fraction(1))
                for node in axis
            ]
            for value, axis in zip(values, self._axes, strict=True)
        ]
        weights = [math.prod(choice, start=Fraction(1)) for choice in itertools.product(*lines)]
        denominator = math.lcm(*(weight.denominator for weight in weights))
        return [int(weight * denominator) for weight in weights], denominator

    def _axis(self, number: int, starts: Sequence[int], step: int) -> list[int]:
        """As many points along one size as the degree of the prices in it asks for."""
        everything = self._pricer.trace.trainable()
        rows: list[list[int]] = []
        for count in range(_DEGREE + 2):
            values = list(starts)
            values[number] += count * step
            rows.append(_flat(self._node(values).prices(everything)))
            if count >= 2 and not any(_differences(rows)):
                return [starts[number] + place * step for place in range(count)]
        raise NotAlike

    def _node(self, values: Sequence[int]) -> Pricer:
        key = tuple(values)
        if key not in self._made:
            self._made[key] = self._pricer.at_other_sizes(*self._lifted.at(values))
        return self._made[key]


def _pair(cost: Cost) -> tuple[int, int]:
    return cost.paper, cost.real


def _flat(prices: BlockPrices) -> list[int]:
    found = [prices.batch]
    for cost in (*prices.forward, *prices.backward):
        found += (cost.paper, cost.real)
    return found


def _differences(rows: Sequence[Sequence[int]]) -> list[int]:
    """The last difference of every column: 0 for a polynomial of a lower degree than there are rows but one."""
    while len(rows) > 1:
        rows = [[b - a for a, b in zip(first, second, strict=True)] for first, second in itertools.pairwise(rows)]
    return list(rows[0])
