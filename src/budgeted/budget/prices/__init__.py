"""Prices of operators, one file per family, both rules side by side.

A price is a function of one traced operator (`Op`: shapes and arguments) and answers with an `OpPrice`.
Rule `real` counts operations as executed: 1 for an arithmetic operation, comparison or selection on one
element, 2 for a multiply-accumulate, 1 per element read by a reduction, 0 for moving data. A fused operator
counts as its reference definition. Rule `paper` counts what the paper's counter counts: 1 per
multiply-accumulate of convolution and matrix product, 7 and 15 per element of batch norm, 1 and 1 per
element of an activation, the input elements of a pooling, and nothing else; a backward pass is always twice
the forward of a weighted layer, even where the gradient of the layer's input is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from budgeted.budget.trace import Op, Value


@dataclass(frozen=True, slots=True)
class OpPrice:
    """The price of one operator, forward and backward, under both rules."""

    forward: int = 0
    """rule `real`: operations of the forward"""
    gradients: tuple[int, ...] = ()
    """rule `real`: operations for the gradient of each tensor input, in the order of `Op.inputs`"""
    shared: int = 0
    """rule `real`: operations of the backward that are run once if any gradient is wanted"""
    paper_forward: int = 0
    """rule `paper`: the forward"""
    paper_weight: int = 0
    """rule `paper`: the parameters' part of the backward"""
    paper_input: int = 0
    """rule `paper`: the activations' part of the backward"""


PriceFunction = Callable[[Op], OpPrice]
_PRICES: dict[str, PriceFunction] = {}


def price_of(*names: str) -> Callable[[PriceFunction], PriceFunction]:
    """Register a price for aten operators (in-place forms share the name without its underscore)."""

    def register(function: PriceFunction) -> PriceFunction:
        for name in names:
            if name in _PRICES:
                raise ValueError(f"operator {name} has two prices")
            _PRICES[name] = function
        return function

    return register


def find(name: str) -> PriceFunction | None:
    return _PRICES.get(name)


def priced_operators() -> list[str]:
    return sorted(_PRICES)


def per_input(op: Op, **costs: int) -> tuple[int, ...]:
    """Gradient costs by argument name, laid out in the order of `op.inputs`."""
    by_value = {id(op.arguments.get(name)): cost for name, cost in costs.items()}
    return tuple(by_value.get(id(value), 0) for value in op.inputs)


def reduced(value: Value, like: Value) -> int:
    """Additions that sum a gradient shaped `like` back to a broadcast `value`."""
    return like.numel if value.numel < like.numel else 0


# the families register themselves
from budgeted.budget.prices import (  # noqa: E402, F401
    attention,
    convolution,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    reduction,
)
