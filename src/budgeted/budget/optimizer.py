"""The price of an optimizer's step: operations per parameter element, found by watching one step of its own algorithm.

A copy of the optimizer with the same settings takes a few steps on a tiny parameter, one tensor at a time; the last is
counted with the prices of elementwise operators. So any elementwise optimizer is priced, not just the ones we know.
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
    """FLOP (rule `real`) of a step per element, for each of the optimizer's parameter groups."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = [_per_element(optimizer, group) for group in optimizer.param_groups]

    def step(self, trained: Collection[nn.Parameter]) -> Cost:
        """What one step costs when just `trained` have a gradient; parameters the optimizer does not hold are free."""
        for group in self._optimizer.param_groups[len(self._groups) :]:  # added since
            self._groups.append(_per_element(self._optimizer, group))
        wanted = {id(parameter) for parameter in trained}
        operations = sum(
            per_element * sum(p.numel() for p in group["params"] if id(p) in wanted)
            for per_element, group in zip(self._groups, self._optimizer.param_groups, strict=True)
        )
        return Cost(0, round(operations))


def _per_element(optimizer: Optimizer, group: dict[str, Any]) -> float:
    accepted = inspect.signature(type(optimizer).__init__).parameters
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    settings = {key: value for key, value in group.items() if key != "params" and (anything or key in accepted)}
    settings.update({key: value for key, value in _PLAIN_LOOP.items() if key in settings})
    settings = {key: float(v) if isinstance(v, torch.Tensor) else v for key, v in settings.items()}
    parameter = nn.Parameter(torch.full((_TINY,), 0.5))
    ops: list[Op] = []
    try:
        copy = type(optimizer)([parameter], **settings)
        for _ in range(_STEPS):
            parameter.grad = torch.full((_TINY,), 0.25)
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
        # bias corrections on one-element tensors are no work per parameter
        operations += price(op).forward if op.outputs and op.out.numel >= _TINY else 0
    return operations / _TINY
