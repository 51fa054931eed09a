"""Weights drawn from a seed: a network is wired without storage, then filled from one generator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)
Draw = Callable[[str, nn.Module, torch.Generator], None]
DRAWN = (nn.Conv2d, nn.Linear, nn.BatchNorm2d)  # the kinds of module that `draw` fills


def initialised(wire: Callable[[], Model], seed: int, fill: Draw | None = None) -> Model:
    """What `wire` builds, with every parameter drawn, by `fill` or by `draw`, from a generator seeded by `seed`.

    Wiring happens on the meta device, where torch's own initialisation draws nothing: the global random
    state stays as it is, and no weight is drawn twice.
    """
    with torch.device("meta"):
        model = wire()
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, module in model.named_modules():
        (fill or draw)(name, module, generator)
    return model


def draw(name: str, module: nn.Module, generator: torch.Generator) -> None:
    """Fill one module's own parameters and buffers, in the order of registration."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        # torch's own law for a linear layer: uniform within 1/sqrt(inputs), weight and bias alike.
        bound = 1 / math.sqrt(module.in_features)
        for parameter in module.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    elif isinstance(module, nn.BatchNorm2d):
        module.reset_parameters()  # ones, zeros and fresh statistics: draws nothing
    elif [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        # Left alone it would keep whatever bytes its memory held.
        raise NotImplementedError(f"no initialisation for {type(module).__name__} at {name!r}: add one here")
