"""A trace at sizes that were never traced, from two traces at sizes that were.

Two traces of one forward that run the same operators differ just in sizes: of the inputs (batch, length) and of
parameters (the rows of a head that grows). Every size inside is then a simple expression of those that vary: the size
itself (`length`), a product (`batch * length`), or one of these moved or scaled (`length + 1`, `height / 2`). Where two
expressions fit both traces the simpler one is taken; that the choice was right is for a third trace to show.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from budgeted.budget.trace import Op, Trace, Value

Sizes = tuple[int, ...]


class NotAlike(Exception):
    """Two traces that do not run the same operators, or whose sizes no expression explains."""


@dataclass(frozen=True, slots=True)
class Expression:
    """factors * (slope * variable + offset), over a common denominator."""

    factors: tuple[int, ...]  # numbers of variables, multiplied
    variable: int | None  # the one that is scaled and moved; None: offset alone
    slope: int
    offset: int
    denominator: int = 1

    def at(self, values: Sequence[int]) -> int | None:
        """The size where the variables have these values; None where it would be no whole number."""
        found, rest = divmod(
            self.offset + (0 if self.variable is None else self.slope * values[self.variable]), self.denominator
        )
        if rest:
            return None
        for factor in self.factors:
            found *= values[factor]
        return found


class Variables:
    """The sizes that differ between two traces; those that go together (batch of words and of mask) are one."""

    def __init__(self, first: Sizes, second: Sizes) -> None:
        if len(first) != len(second):
            raise NotAlike
        pairs = {pair: None for pair in zip(first, second, strict=True) if pair[0] != pair[1]}
        numbers = {pair: number for number, pair in enumerate(pairs)}
        self.first = tuple(a for a, _ in pairs)
        self.second = tuple(b for _, b in pairs)
        self._place = [numbers.get(pair) for pair in zip(first, second, strict=True)]
        self._fixed = first
        self._explained: dict[tuple[int, int], Expression] = {}

    def __len__(self) -> int:
        return len(self.first)

    def of(self, sizes: Sizes) -> tuple[int, ...] | None:
        """Their values in these sizes; None if anything else differs too, or what goes together does not."""
        values: list[int | None] = [None] * len(self)
        for size, fixed, variable in zip(sizes, self._fixed, self._place, strict=True):
            if variable is None:
                if size != fixed:
                    return None
            elif values[variable] is None:
                values[variable] = size
            elif values[variable] != size:
                return None
        return tuple(value for value in values if value is not None)

    def explain(self, first: int, second: int) -> Expression:
        """The simplest expression that is `first` in the first trace and `second` in the second."""
        found = self._explained.get((first, second))
        if found is None:
            found = self._explained[first, second] = self._simplest(first, second)
        return found

    def _simplest(self, first: int, second: int) -> Expression:
        if first == second:
            return Expression((), None, 0, first)
        numbers = range(len(self))
        products = [
            factors
            for count in (0, 1, 2)
            for factors in itertools.combinations_with_replacement(numbers, count)
            if not first % self._product(factors, self.first) and not second % self._product(factors, self.second)
        ]
        inner = [
            (factors, first // self._product(factors, self.first), second // self._product(factors, self.second))
            for factors in products
        ]
        for factors, a, b in inner:
            if a == b:
                return Expression(factors, None, 0, a)
        for whole in (True, False):
            for factors, a, b in inner:
                for number in numbers:
                    slope = Fraction(b - a, self.second[number] - self.first[number])
                    # a stride divides; any other fraction is a rounding that the two traces do not show
                    if slope.denominator == 1 if whole else abs(slope.numerator) == 1:
                        offset = a * slope.denominator - slope.numerator * self.first[number]
                        return Expression(factors, number, slope.numerator, offset, slope.denominator)
        raise NotAlike

    @staticmethod
    def _product(factors: Sequence[int], values: Sequence[int]) -> int:
        found = 1
        for factor in factors:
            found *= values[factor]
        return found


class LiftedTrace:
    """What `first` would be at other sizes, learnt from how `second` differs from it."""

    def __init__(self, first: Trace, first_sizes: Sizes, second: Trace, second_sizes: Sizes) -> None:
        self.variables = Variables(first_sizes, second_sizes)
        self._first = first
        self._sizes: dict[int, tuple[Expression, ...]] = {}
        self._shapes: dict[tuple[Sizes, Sizes], tuple[Expression, ...]] = {}  # a layer's shapes come many times
        self._partner: dict[int, Value] = {}
        self._arguments: list[dict[str, Any]] = []
        if len(first.ops) != len(second.ops) or len(first.roots) != len(second.roots):
            raise NotAlike
        for a, b in zip(first.ops, second.ops, strict=True):
            same = a.name == b.name and a.path == b.path and a.differentiable == b.differentiable
            if not same or a.checkpoint != b.checkpoint or a.arguments.keys() != b.arguments.keys():
                raise NotAlike
            self._arguments.append({name: self._pair(a.arguments[name], b.arguments[name]) for name in a.arguments})
            self._pair(a.inputs, b.inputs)
            self._pair(a.outputs, b.outputs)
        self._pair(first.roots, second.roots)
        self._batch = self.variables.explain(first.batch, second.batch)
        inside = {expression for shape in self._shapes.values() for expression in shape}
        self._inside = tuple(inside | {self._batch})

    def covers(self, sizes: Sizes) -> tuple[int, ...] | None:
        """The variables' values at these sizes, if every size inside is a whole number there and none is a lone 1.

        A size of 1 is broadcast, summed and squeezed like no other: what holds for 2 and 3 need not hold there.
        """
        values = self.variables.of(sizes)
        if values is None:
            return None
        for expression in self._inside:
            found = expression.at(values)
            if found is None or found < 0 or (found == 1 and (expression.factors or expression.variable is not None)):
                return None
        return values

    def at(self, values: Sequence[int]) -> tuple[list[Op], dict[int, int], int]:
        """The operators there, how many elements each value of the first trace (by id) has, and the batch."""
        known: dict[int, Value] = {}
        shapes = {
            id(shape): tuple([_whole(expression.at(values)) for expression in shape]) for shape in self._shapes.values()
        }

        def value(old: Value) -> Value:
            new = known.get(id(old))
            if new is None:
                shape = shapes[id(self._sizes[id(old)])]
                new = Value(shape, old.floating, old.parameter, old.producer, old.from_input)
                known[id(old)] = new
            return new

        def argument(pattern: Any) -> Any:
            if isinstance(pattern, Value):
                return value(pattern)
            if isinstance(pattern, Expression):
                return pattern.at(values)
            if isinstance(pattern, list):
                return [argument(item) for item in pattern]
            return pattern

        ops = [
            Op(
                name=op.name,
                index=op.index,
                arguments={name: argument(pattern) for name, pattern in arguments.items()},
                inputs=tuple(map(value, op.inputs)),
                outputs=tuple(map(value, op.outputs)),
                path=op.path,
                modules=op.modules,
                differentiable=op.differentiable,
                checkpoint=op.checkpoint,
                recomputed=op.recomputed,
            )
            for op, arguments in zip(self._first.ops, self._arguments, strict=True)
        ]
        return ops, {old: new.numel for old, new in known.items()}, _whole(self._batch.at(values))

    def _pair(self, first: Any, second: Any) -> Any:
        """A pattern of both: values and lists as they are, whole numbers that differ as expressions."""
        if isinstance(first, Value):
            return self._pair_values(first, second)
        if isinstance(first, list | tuple):
            if not isinstance(second, list | tuple) or len(first) != len(second):
                raise NotAlike
            return [self._pair(a, b) for a, b in zip(first, second, strict=True)]
        if isinstance(first, int) and not isinstance(first, bool) and first != second and isinstance(second, int):
            return self.variables.explain(first, second)
        return first

    def _pair_values(self, first: Value, second: Any) -> Value:
        partner = self._partner.get(id(first))
        if partner is not None:
            if partner is not second:
                raise NotAlike
            return first
        if not isinstance(second, Value) or len(first.shape) != len(second.shape):
            raise NotAlike
        if (first.parameter, first.producer, first.floating) != (second.parameter, second.producer, second.floating):
            raise NotAlike
        self._partner[id(first)] = second
        pair = first.shape, second.shape
        if pair not in self._shapes:
            self._shapes[pair] = tuple(self.variables.explain(a, b) for a, b in zip(*pair, strict=True))
        self._sizes[id(first)] = self._shapes[pair]
        return first


def _whole(size: int | None) -> int:
    if size is None:
        raise NotAlike
    return size
