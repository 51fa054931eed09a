"""The shapes that one forward was met in: the first few are traced, the others follow from them.

Two traces give a polynomial, a third one that agrees with it to the last operation makes it trusted; where several
sizes vary, as many as it takes to tell them apart. What it does not cover is traced as ever: sizes of 1, sizes far from
those that were traced, and forwards whose prices are no polynomial (one that takes another way at another size, or
rounds sizes differently).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import nn

from budgeted.budget import NOTHING, BlockPrices, Cost, Pricer, Rule, total
from budgeted.budget.across_sizes import Polynomials
from budgeted.budget.lifted import NotAlike, Sizes
from budgeted.freezing.chain import BlockChain

_KEPT = 6
"""traces kept to learn from"""
_TRUSTED = 3
"""traces that have to agree: what two alone would tell is not asked for"""
_ATTEMPTS = 4
"""polynomials that a trace may prove wrong before every shape is traced"""


class PricedShape(Protocol):
    """One input shape's chain and prices."""

    chain: BlockChain

    def prices(self, frozen: frozenset[int]) -> BlockPrices: ...
    def saved(self, rule: Rule) -> tuple[int, ...]: ...
    def to_feature(self) -> Cost: ...


@dataclass(slots=True)
class Traced:
    """A shape whose forward was traced."""

    sizes: Sizes
    chain: BlockChain
    pricer: Pricer

    def prices(self, frozen: frozenset[int]) -> BlockPrices:
        return self.pricer.prices(self.chain.trained(frozen))

    def saved(self, rule: Rule) -> tuple[int, ...]:
        return tuple(_saved(self.chain, rule)(self.pricer))

    def to_feature(self) -> Cost:
        return NOTHING if self.chain.feature is None else self.pricer.backward_to(self.chain.feature)


@dataclass(slots=True)
class Derived:
    """A shape whose prices follow from those of others."""

    sizes: Sizes
    chain: BlockChain
    polynomials: Polynomials

    def prices(self, frozen: frozenset[int]) -> BlockPrices:
        return self.polynomials.prices(self.sizes, self.chain.trained(frozen))

    def saved(self, rule: Rule) -> tuple[int, ...]:
        return tuple(self.polynomials.numbers(("saved", rule), _saved(self.chain, rule), self.sizes))

    def to_feature(self) -> Cost:
        return NOTHING if self.chain.feature is None else self.polynomials.to_feature(self.sizes)


def _saved(chain: BlockChain, rule: Rule) -> Callable[[Pricer], list[int]]:
    """Backward saved by freezing the first n blocks, for n from 0 to L-1."""
    trained = [chain.trained(range(n)) for n in range(len(chain))]

    def of(pricer: Pricer) -> list[int]:
        costs = [total(pricer.backward(each)).under(rule) for each in trained]
        return [costs[0] - cost for cost in costs]

    return of


@dataclass(slots=True)
class PricedShapes:
    """All shapes of one forward."""

    traced: list[Traced] = field(default_factory=list)
    _base: Traced | None = None  # the trace that the polynomials are written over
    _polynomials: Polynomials | None = None
    _trusted: bool = False
    _wrong: int = 0

    def derive(self, sizes: Sizes) -> Derived | None:
        """This shape from those that were traced, if they tell."""
        if self._trusted and self._base is not None and self._polynomials is not None:
            try:
                if self._polynomials.covers(sizes):
                    return Derived(sizes, self._base.chain, self._polynomials)
            except NotAlike:
                pass
        return None

    def add(self, shape: Traced) -> None:
        """A shape that was traced: it confirms the polynomials, or others are learnt with its help."""
        self.traced.append(shape)
        del self.traced[:-_KEPT]
        if self._wrong > _ATTEMPTS or len(self.traced) < _TRUSTED:
            return
        agrees = self._agrees(shape)
        if agrees and self._polynomials is not None:
            self._trusted = self._polynomials.separated
        else:
            self._wrong += agrees is False
            self._learn(shape)

    def replace_parameters(self, parameters: Sequence[nn.Parameter]) -> None:
        """They are others now, by the same names: hold on to none of the old ones."""
        for shape in self.traced if self._base is None else (self._base, *self.traced):
            shape.chain.trace.parameters[:] = parameters

    def _learn(self, shape: Traced) -> None:
        self._polynomials, self._trusted = None, False
        others = [other for other in self.traced[:-1] if other.sizes != shape.sizes]
        # the more sizes differ between the two, the more shapes they speak of
        for other in sorted(others, key=lambda other: -_differing(other.sizes, shape.sizes)):
            if other.chain.blocks != shape.chain.blocks:
                continue
            try:
                found = Polynomials(other.pricer, other.chain.feature, other.sizes, shape.pricer.trace, shape.sizes)
            except NotAlike:
                continue
            self._base, self._polynomials = other, found
            found_by_others = [self._agrees(third) for third in self.traced[:-1] if third is not other]
            if False not in found_by_others:
                self._trusted = True in found_by_others and found.separated
                return
            self._polynomials = None

    def _agrees(self, shape: Traced) -> bool | None:
        """Does the trace agree with the polynomials? None if they do not speak of it, or there are none."""
        if self._polynomials is None:
            return None
        try:
            return self._polynomials.explains(shape.pricer, shape.chain.feature, shape.sizes)
        except NotAlike:
            return False


def _differing(first: Sizes, second: Sizes) -> int:
    return sum(a != b for a, b in zip(first, second, strict=True))
