"""From a trace to prices: per block, forward and backward, for any set of trainable parameters.

The backward pass is derived, not run. A gradient flows through an operator if the operator leads to the loss and one
of its inputs depends on a parameter that is trained; it is computed just for those inputs. This is what
`loss.backward(inputs=trained)` executes, for a prefix of frozen blocks as for any other set. A checkpointed region that
the backward reaches is run forwards again, and that is part of the backward's price. Where the backward passes does not
depend on sizes, so it is found once for all of them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from budgeted.budget import prices
from budgeted.budget.cost import Cost, total
from budgeted.budget.prices import OpPrice
from budgeted.budget.refusals import UnpricedOperator, UnpricedOperatorWarning
from budgeted.budget.trace import Op, Trace, Value

Unpriced = Literal["refuse", "warn"]


@dataclass(frozen=True, slots=True)
class BlockPrices:
    """What one pass costs, block by block, for the whole batch."""

    forward: tuple[Cost, ...]
    backward: tuple[Cost, ...]
    batch: int

    @property
    def total(self) -> Cost:
        return total(self.forward) + total(self.backward)


@dataclass(frozen=True, slots=True)
class _Passage:
    """Where a backward passes, whatever the sizes are."""

    visited: list[tuple[int, list[int], bool]]
    """operators, each with its inputs that get a gradient, and whether a weight is among them"""
    added: list[tuple[Value, int, int]]
    """values that get several gradients, with how many are added to the first, and in which block"""


@dataclass(slots=True)
class Pricer:
    """Prices one trace. `block_of[i]` is the block of operator i (all in block 0 if not given)."""

    trace: Trace
    block_of: Sequence[int] = ()
    blocks: int = 1
    unpriced: Unpriced = "refuse"
    whole: Sequence[str | None] = ()
    """per operator: the compiled module that it lies in, whose backward is run as a whole; None: in none"""
    left_out: tuple[str, ...] = ()
    _prices: list[OpPrice] = field(default_factory=list)
    _batch: int | None = None  # at other sizes than the trace's
    _elements: Mapping[int, int] | None = None  # of every value (by id), at other sizes than the trace's
    _passages: dict[object, _Passage] = field(default_factory=dict)  # at all sizes
    _read_again: list[tuple[Value, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.block_of:
            self.block_of = [0] * len(self.trace.ops)
        self._read_again = _read_again(self.trace)
        missing: dict[str, None] = {}
        for op in self.trace.ops:
            function = prices.find(op.name)
            if function is None:
                missing[f"{op.name} (in {op.path or 'the model or its loss'})"] = None
            self._prices.append(OpPrice() if function is None else function(op))
        self.left_out = tuple(missing)
        if missing and self.unpriced == "refuse":
            raise UnpricedOperator(self.left_out)
        if missing:
            warnings.warn(f"left out of the price: {', '.join(missing)}", UnpricedOperatorWarning, stacklevel=3)

    def at_other_sizes(self, ops: Sequence[Op], elements: Mapping[int, int], batch: int) -> Pricer:
        """The same where the operators have these sizes; what is left out was said already."""
        found = copy.copy(self)
        functions = (prices.find(op.name) for op in ops)
        found._prices = [OpPrice() if f is None else f(op) for f, op in zip(functions, ops, strict=True)]
        found._elements, found._batch = elements, batch
        return found

    def forward(self) -> tuple[Cost, ...]:
        costs = [[0, 0] for _ in range(self.blocks)]
        for op, price in zip(self.trace.ops, self._prices, strict=True):
            block = costs[self.block_of[op.index]]
            block[0] += price.paper_forward
            block[1] += price.forward
        return tuple(Cost(paper, real) for paper, real in costs)

    def backward(self, trained: frozenset[int] | None = None) -> tuple[Cost, ...]:
        """Cost of the backward pass per block when just the parameters `trained` (indices) get a gradient."""
        if trained is None:
            trained = self.trace.trainable()
        return self._backward(trained, ())

    def backward_to(self, value: Value) -> Cost:
        """Cost of the gradient at one value alone: what lies between it and the loss."""
        return total(self._backward(frozenset(), (value,)))

    def _backward(self, trained: frozenset[int], towards: Sequence[Value]) -> tuple[Cost, ...]:
        key = trained, *map(id, towards)
        if key not in self._passages:
            self._passages[key] = self._passage(_flows(self.trace, trained, towards))
        passage = self._passages[key]
        costs = [[0, 0] for _ in range(self.blocks)]
        reached: set[int | None] = set()
        for index, wanted, of_weight in passage.visited:
            price, block = self._prices[index], costs[self.block_of[index]]
            gradients = price.gradients
            block[1] += price.shared + sum([gradients[place] for place in wanted if place < len(gradients)])
            # rule `paper`: a layer whose weight is trained costs its whole backward, also at the frozen
            # boundary where the gradient of its input is not computed
            block[0] += price.paper_input + (price.paper_weight if of_weight else 0)
            if price.shared or any(gradients):
                reached.add(self.trace.ops[index].checkpoint)  # it needs what was not kept: the region is run again
        if reached - {None}:
            for op, price in zip(self.trace.ops, self._prices, strict=True):
                if op.recomputed and op.checkpoint in reached:
                    block = costs[self.block_of[op.index]]
                    block[0] += price.paper_forward
                    block[1] += price.forward
        for value, count, number in passage.added:
            costs[number][1] += count * (value.numel if self._elements is None else self._elements[id(value)])
        return tuple(Cost(paper, real) for paper, real in costs)

    def _passage(self, flows: set[int]) -> _Passage:
        partial = (flows, *_executed(self.trace, flows))
        full, compiled = partial, set()
        if any(self.whole):
            everything = _flows(self.trace, self.trace.trainable(), ())
            full = (everything, *_executed(self.trace, everything))
            compiled = {name for name, ran in zip(self.whole, partial[1], strict=True) if ran and name is not None}
        visited: list[tuple[int, list[int], bool]] = []
        added: list[tuple[Value, int, int]] = []
        for op in self.trace.ops:
            as_a_whole = bool(compiled) and self.whole[op.index] in compiled
            flows, executed, arrivals = full if as_a_whole else partial
            if not executed[op.index]:
                continue
            wanted = [place for place, value in enumerate(op.inputs) if id(value) in flows]
            visited.append((op.index, wanted, any(not op.inputs[place].from_input for place in wanted)))
            for value in op.outputs:  # a value read k times sums k gradients
                if arrivals.get(id(value), 0) > 1:
                    added.append((value, arrivals[id(value)] - 1, self.block_of[op.index]))
        for value, reader in self._read_again:
            if partial[2].get(id(value), 0) > 1:
                added.append((value, partial[2][id(value)] - 1, self.block_of[reader]))
        return _Passage(visited, added)

    def prices(self, trained: frozenset[int] | None = None) -> BlockPrices:
        batch = self.trace.batch if self._batch is None else self._batch
        return BlockPrices(self.forward(), self.backward(trained), batch)


def _flows(trace: Trace, trained: frozenset[int], towards: Sequence[Value]) -> set[int]:
    """The values (by id) that a gradient towards a trained parameter, or towards a given value, passes through."""
    flows = {id(value) for value in towards}
    for op in trace.ops:
        reached = False
        for value in op.inputs:
            if value.parameter is not None and value.parameter in trained:
                flows.add(id(value))
            reached = reached or id(value) in flows
        if reached and op.differentiable:
            flows.update(id(value) for value in op.outputs if value.floating)
    return flows


def _executed(trace: Trace, flows: set[int]) -> tuple[list[bool], dict[int, int]]:
    """Which operators the backward pass visits, and how many gradients arrive at each value."""
    arrivals: dict[int, int] = {}
    for root in trace.roots:
        if id(root) in flows:
            arrivals[id(root)] = 1
    executed = [False] * len(trace.ops)
    for op in reversed(trace.ops):
        if op.differentiable and any(id(value) in arrivals for value in op.outputs):
            executed[op.index] = True
            for value in op.inputs:
                if id(value) in flows:
                    arrivals[id(value)] = arrivals.get(id(value), 0) + 1
    return executed, arrivals


def _read_again(trace: Trace) -> list[tuple[Value, int]]:
    """Parameters that are read several times, with their first reader."""
    readers: dict[int, list[tuple[Value, int]]] = {}
    for op in trace.ops:
        for value in op.inputs:
            if value.parameter is not None:
                readers.setdefault(id(value), []).append((value, op.index))
    return [found[0] for found in readers.values() if len(found) > 1]
