"""Fused optimizers: what torch's single-tensor algorithm costs, and one product more to unscale."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd
from torch.utils._python_dispatch import _disable_current_modes

from budgeted.audit.call import Call, Counting, OperatorCosts

_HYPER = {
    "_fused_sgd": ("weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    "_fused_adagrad": ("weight_decay", "lr_decay", "eps", "maximize"),
    "_fused_adam": ("beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize"),
    "_fused_adamw": ("beta1", "beta2", "weight_decay", "eps", "amsgrad", "maximize"),
}


@lru_cache(maxsize=256)
def _step_per_element(algorithm: str, options: tuple[tuple[str, Any], ...], first: bool, costs: OperatorCosts) -> int:
    """The slope of torch's single-tensor algorithm: its cost on two elements less its cost on one."""
    hyper: dict[str, Any] = {"foreach": False, "fused": False, "lr": 1e-3, **dict(options)}

    def cost(size: int) -> int:
        one: list[Tensor] = [torch.zeros(size)]
        count = [torch.ones(())]
        state = [[torch.zeros(size)] for _ in range(4)]
        momentum: list[Tensor | None] = [None if first else torch.zeros(size)]

        def step() -> None:
            if algorithm == "_fused_sgd":
                sgd(one, state[0], momentum, **hyper)
            elif algorithm == "_fused_adagrad":
                adagrad(one, state[0], state[1], count, **hyper)
            else:
                decoupled = algorithm == "_fused_adamw"
                adam(one, state[0], state[1], state[2], state[3], count, decoupled_weight_decay=decoupled, **hyper)

        return costs.of_running(step)

    with _disable_current_modes(), torch.no_grad():
        return cost(2) - cost(1)


def _fused_optimizer(call: Call) -> int:
    options = tuple((name, call.arg(name)) for name in _HYPER[call.base])
    slope = _step_per_element(call.base, options, bool(call.arg("is_first_step")), call.costs)
    unscale = call.arg("grad_scale") is not None
    return (slope + unscale) * sum(int(x.numel()) for x in call.arg("self"))


RULES: dict[str, Counting] = dict.fromkeys(_HYPER, _fused_optimizer)
