"""The price of an optimizer's step: operations per parameter element, found by watching one step of its own algorithm.

A copy of the optimizer with the same settings takes two steps on a tiny parameter, one tensor at a time; the second is
counted with the prices of elementwise operators. So any elementwise optimizer is priced, not just the ones we know.
Rule `paper` does not count the optimizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from budgeted.budget import prices
from budgeted.budget.cost import Cost
from budgeted.budget.pricing import UnpricedOperator
from budgeted.budget.trace import trace_call

_TINY = 512
_PLAIN_LOOP = {"foreach": False, "fused": False, "capturable": False}


def operations_per_element(optimizer: Optimizer) -> float:
    """FLOP (rule `real`) that one step spends on one trained parameter element; the first group's settings count."""
    accepted = inspect.signature(type(optimizer).__init__).parameters
    settings: dict[str, Any] = {
        key: value for key, value in optimizer.param_groups[0].items() if key in accepted and key != "params"
    }
    settings.update({key: value for key, value in _PLAIN_LOOP.items() if key in accepted})
    settings = {key: float(v) if isinstance(v, torch.Tensor) else v for key, v in settings.items()}
    parameter = nn.Parameter(torch.full((_TINY,), 0.5))
    copy = type(optimizer)([parameter], **settings)
    operations = 0
    for _ in range(2):  # the first step also makes the state
        parameter.grad = torch.full((_TINY,), 0.25)
        operations = 0
        for op in trace_call(copy.step):
            price = prices.find(op.name)
            if price is None:
                raise UnpricedOperator([f"{op.name} (in {type(optimizer).__name__}.step)"])
            # bias corrections on one-element tensors are no work per parameter
            operations += price(op).forward if op.outputs and op.out.numel >= _TINY else 0
    return operations / _TINY


def step_cost(per_element: float, trained: Iterable[nn.Parameter]) -> Cost:
    """What one step costs when just `trained` have a gradient."""
    return Cost(0, round(per_element * sum(parameter.numel() for parameter in trained)))
