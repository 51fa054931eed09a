"""Where the optimizer would put the parameters if it stepped on some gradients now; neither they nor its state move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from budgeted.budget import Purpose
from budgeted.errors import BudgetedError
from budgeted.network.network import Network


def foreseen(network: Network, purpose: Purpose, gradients: Mapping[str, Tensor], *, plain: bool) -> dict[str, Tensor]:
    """The parameters that have gradients, a step of the network's optimizer further; `plain`: of SGD without more, at
    the optimizer's present rates. Charged to `purpose`."""
    named = {id(p): name for name, p in network.model.named_parameters() if name in gradients}
    found: dict[str, Tensor] = {}
    for group in network.optimizer.param_groups:
        own = [p for p in group["params"] if id(p) in named]
        if not own:
            continue
        names = [named[id(p)] for p in own]
        given = [p.detach() for p in own], [gradients[name] for name in names]
        rate, decay = float(group["lr"]), float(group["weight_decay"])
        if plain:
            moved = network.run(purpose, _sgd, *given, [], rate, 0.0, 0.0)
        elif isinstance(network.optimizer, SGD):
            kept = _state(network.optimizer, own, "momentum_buffer") if group["momentum"] else []
            moved = network.run(purpose, _sgd, *given, kept, rate, decay, float(group["momentum"]))
        elif isinstance(network.optimizer, Adam):
            first, second = (_state(network.optimizer, own, name) for name in ("exp_avg", "exp_avg_sq"))
            ages = [1 + float(network.optimizer.state.get(p, {}).get("step", 0)) for p in own]
            decoupled = isinstance(network.optimizer, AdamW)
            corrections = [[1 - beta**age for age in ages] for beta in group["betas"]]
            moved = network.run(
                purpose, _adam, *given, first, second, *corrections, rate, decay, decoupled, *group["betas"],
                group["eps"],
            )  # fmt: skip
        else:
            raise BudgetedError(
                f"nobody knows here how {type(network.optimizer).__name__} steps: give --set retrieval.virtual=sgd"
            )
        found |= zip(names, moved, strict=True)
    return found


def _state(optimizer: Optimizer, parameters: Sequence[Tensor], name: str) -> list[Tensor]:
    """What the optimizer remembers of each parameter; nothing before its first step."""
    states: list[Mapping[str, Any]] = [optimizer.state.get(p, {}) for p in parameters]  # asking makes none
    return [torch.zeros_like(p) if (kept := state.get(name)) is None else kept
            for p, state in zip(parameters, states, strict=True)]  # fmt: skip


def _sgd(
    parameters: list[Tensor], gradients: list[Tensor], kept: list[Tensor], rate: float, decay: float, momentum: float
) -> list[Tensor]:
    found = []
    for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if decay:
            gradient = gradient + decay * parameter
        if kept:
            gradient = momentum * kept[place] + gradient
        found.append(parameter - rate * gradient)
    return found


def _adam(
    parameters: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    of_first: list[float],
    of_second: list[float],
    rate: float,
    decay: float,
    decoupled: bool,
    beta1: float,
    beta2: float,
    eps: float,
) -> list[Tensor]:
    """`of_first` and `of_second`: what the averages, which began at zero, are divided by."""
    found = []
    for place, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if decay and not decoupled:
            gradient = gradient + decay * parameter
        mean = beta1 * first[place] + (1 - beta1) * gradient
        square = beta2 * second[place] + (1 - beta2) * (gradient * gradient)
        step = mean / ((square / of_second[place]).sqrt() + eps)
        if decay and decoupled:
            parameter = (1 - rate * decay) * parameter
        found.append(parameter - (rate / of_first[place]) * step)
    return found
