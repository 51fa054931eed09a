"""From a trace to prices: per block, forward and backward, for any set of trainable parameters.

The backward pass is derived, not run. A gradient flows through an operator if the operator leads to the loss and one
of its inputs depends on a parameter that is trained; it is computed just for those inputs. This is what
`loss.backward(inputs=trained)` executes, for a prefix of frozen blocks as for any other set. A checkpointed region that
the backward reaches is run forwards again, and that is part of the backward's price.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from budgeted.budget import prices
from budgeted.budget.cost import Cost, total
from budgeted.budget.prices import OpPrice
from budgeted.budget.refusals import UnpricedOperator, UnpricedOperatorWarning
from budgeted.budget.trace import Trace, Value

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

    def __post_init__(self) -> None:
        if not self.block_of:
            self.block_of = [0] * len(self.trace.ops)
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

    def of_another(self, trace: Trace) -> Pricer:
        """The same for a trace that runs the same operators on other sizes; what is left out was said already."""
        found = copy.copy(self)
        found.trace = trace
        functions = (prices.find(op.name) for op in trace.ops)
        found._prices = [OpPrice() if f is None else f(op) for f, op in zip(functions, trace.ops, strict=True)]
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
        return self._backward(_flows(self.trace, trained, ()))

    def backward_to(self, value: Value) -> Cost:
        """Cost of the gradient at one value alone: what lies between it and the loss."""
        return total(self._backward(_flows(self.trace, frozenset(), (value,))))

    def _backward(self, flows: set[int]) -> tuple[Cost, ...]:
        partial = (flows, *_executed(self.trace, flows))
        full, compiled = partial, set()
        if any(self.whole):
            everything = _flows(self.trace, self.trace.trainable(), ())
            full = (everything, *_executed(self.trace, everything))
            compiled = {name for name, ran in zip(self.whole, partial[1], strict=True) if ran and name is not None}
        costs = [[0, 0] for _ in range(self.blocks)]
        reached: set[int | None] = set()
        for op, price in zip(self.trace.ops, self._prices, strict=True):
            as_a_whole = bool(compiled) and self.whole[op.index] in compiled
            flows, executed, arrivals = full if as_a_whole else partial
            if not executed[op.index]:
                continue
            block = costs[self.block_of[op.index]]
            wanted = [id(value) in flows for value in op.inputs]
            block[1] += price.shared + sum(cost for cost, want in zip(price.gradients, wanted, strict=False) if want)
            # rule `paper`: a layer whose weight is trained costs its whole backward, also at the frozen
            # boundary where the gradient of its input is not computed
            weight_trained = any(want and not value.from_input for value, want in zip(op.inputs, wanted, strict=True))
            block[0] += price.paper_input + (price.paper_weight if weight_trained else 0)
            if price.shared or any(price.gradients):
                reached.add(op.checkpoint)  # it needs what was not kept: the region is run again
            for value in op.outputs:  # a value read k times sums k gradients
                block[1] += max(0, arrivals.get(id(value), 0) - 1) * value.numel
        for op, price in zip(self.trace.ops, self._prices, strict=True):
            if op.recomputed and op.checkpoint in reached:
                block = costs[self.block_of[op.index]]
                block[0] += price.paper_forward
                block[1] += price.forward
        for value, count, reader in _parameter_arrivals(self.trace, partial[2]):
            costs[self.block_of[reader]][1] += (count - 1) * value.numel
        return tuple(Cost(paper, real) for paper, real in costs)

    def prices(self, trained: frozenset[int] | None = None) -> BlockPrices:
        return BlockPrices(self.forward(), self.backward(trained), self.trace.batch)


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
        if not op.differentiable or not any(arrivals.get(id(value)) for value in op.outputs):
            continue
        executed[op.index] = True
        for value in op.inputs:
            if id(value) in flows:
                arrivals[id(value)] = arrivals.get(id(value), 0) + 1
    return executed, arrivals


def _parameter_arrivals(trace: Trace, arrivals: dict[int, int]) -> list[tuple[Value, int, int]]:
    """Parameters read by several operators, with the number of gradients and the first reader."""
    found: dict[int, tuple[Value, int, int]] = {}
    for op in trace.ops:
        for value in op.inputs:
            if value.parameter is not None and arrivals.get(id(value), 0) > 1:
                found.setdefault(id(value), (value, arrivals[id(value)], op.index))
    return list(found.values())
