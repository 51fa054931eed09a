"""The price of an optimizer's step: operations per parameter element, found by watching one step of its own algorithm.

A copy of the optimizer with the same settings takes a few steps on a tiny parameter, one tensor at a time; the last is
counted with the prices of elementwise operators. So any elementwise optimizer is priced, not just the ones we know.
One whose work follows from the shape of a parameter says so (`priced_by_shape`): each shape is watched by itself.
Rule `paper` does not count the optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from budgeted.budget import prices
from budgeted.budget.cost import Cost
from budgeted.budget.refusals import UnpricedBackward, UnpricedOperator
from budgeted.budget.trace import Op, trace_call

_TINY = 512
_STEPS = 8  # the first steps make the state, and some algorithms warm up
_PLAIN_LOOP = {"foreach": False, "fused": False, "capturable": False}


class OptimizerPrice:
    """FLOP (rule `real`) of a step per element, for each of the optimizer's parameter groups; or by shape."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._by_shape = bool(getattr(optimizer, "priced_by_shape", False))
        self._of_shape: dict[tuple[int, tuple[int, ...]], int] = {}
        self._groups: list[float] = []
        if not self._by_shape:
            self._groups = [_per_element(optimizer, group) for group in optimizer.param_groups]

    def step(self, trained: Collection[nn.Parameter]) -> Cost:
        """What one step costs when just `trained` have a gradient; parameters the optimizer does not hold are free."""
        if self._by_shape:
            return self._step_by_shape({id(parameter) for parameter in trained})
        for group in self._optimizer.param_groups[len(self._groups) :]:  # added since
            self._groups.append(_per_element(self._optimizer, group))
        wanted = {id(parameter) for parameter in trained}
        operations = sum(
            per_element * sum(p.numel() for p in group["params"] if id(p) in wanted)
            for per_element, group in zip(self._groups, self._optimizer.param_groups, strict=True)
        )
        return Cost(0, round(operations))

    def _step_by_shape(self, wanted: set[int]) -> Cost:
        operations = 0
        for number, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) in wanted:
                    key = number, tuple(parameter.shape)
                    if key not in self._of_shape:
                        # without data: a large matrix would take long to iterate on
                        self._of_shape[key] = _watched_step(self._optimizer, group, key[1], device="meta")
                    operations += self._of_shape[key]
        return Cost(0, operations)


def _per_element(optimizer: Optimizer, group: dict[str, Any]) -> float:
    # bias corrections on one-element tensors are no work per parameter
    return _watched_step(optimizer, group, (_TINY,), least=_TINY) / _TINY


def _watched_step(
    optimizer: Optimizer, group: dict[str, Any], shape: tuple[int, ...], *, least: int = 0, device: str = "cpu"
) -> int:
    """Operations of one step on a parameter of this shape, those on tensors of fewer than `least` elements left out."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    settings = {key: value for key, value in group.items() if key != "params" and (anything or key in accepted)}
    settings.update({key: value for key, value in _PLAIN_LOOP.items() if key in settings})
    settings = {key: float(v) if isinstance(v, torch.Tensor) else v for key, v in settings.items()}
    parameter = nn.Parameter(torch.full(shape, 0.5, device=device))
    ops: list[Op] = []
    try:
        copy = type(optimizer)([parameter], **settings)
        for _ in range(_STEPS):
            parameter.grad = torch.full(shape, 0.25, device=device)
            ops = trace_call(copy.step)
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise UnpricedBackward(
            f"the step of {type(optimizer).__name__} cannot be priced ({type(error).__name__}: {reason}): "
            "leave the optimizer out of the price"
        ) from error
    operations = 0
    for op in ops:
        price = prices.find(op.name)
        if price is None:
            raise UnpricedOperator([f"{op.name} (in {type(optimizer).__name__}.step)"])
        operations += price(op).forward if op.outputs and op.out.numel >= least else 0
    return operations
