"""The growing head: a new class adds a row, and nothing that was learned moves. The same for every method.

The new row starts as a linear layer's default would (uniform within 1 / sqrt(features)), from the run's own generator,
or from what the class's first sample looks like beside others. The optimizer keeps what it knows of the old rows; the
new row starts with zero moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@torch.no_grad()
def grow(head: nn.Linear, classes: int, optimizer: Optimizer, generator: np.random.Generator) -> None:
    """Give the head `classes` outputs; rows that exist, and the optimizer's state of them, stay as they are."""
    added = classes - head.out_features
    if added <= 0:
        return
    bound = 1 / math.sqrt(head.in_features)
    for name, columns in (("weight", (head.in_features,)), ("bias", ())):
        old = head._parameters[name]
        if old is None:
            continue
        fresh = generator.uniform(-bound, bound, (added, *columns)).astype(np.float32)
        new = nn.Parameter(torch.cat([old, torch.from_numpy(fresh).to(old)]))
        _replace(optimizer, old, new)
        head._parameters[name] = new
    head.out_features = classes


def row_towards(features: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Row and bias of a class whose only sample's features come first, with those of other classes behind, beside the
    rows of these. It points from the middle of the others to the sample and is as long as their rows are in the mean;
    half way between both it says what they say in the mean, so that it neither takes all samples nor none."""
    first, others = features[0], features[1:].mean(0)
    away = first - others
    row = away * (weight.norm(dim=1).mean() / away.norm().clamp(min=torch.finfo(away.dtype).tiny))
    between = (first + others) / 2
    said = (weight @ between).mean() if bias is None else (weight @ between + bias).mean()
    return row, said - row @ between


def _replace(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter) -> None:
    for group in optimizer.param_groups:
        group["params"] = [new if parameter is old else parameter for parameter in group["params"]]
    state = optimizer.state.pop(old, None)
    if state:
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.ndim == old.ndim and len(value) == len(old):
                padded = value.new_zeros((len(new), *value.shape[1:]))
                padded[: len(value)] = value
                state[key] = padded
        optimizer.state[new] = state


def carried_over(old: Mapping[str, Tensor], fresh: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was kept by name for the tensors of a model that has grown: rows and tensors that came since are those of
    `fresh`, what is gone is let go."""
    for name, new in fresh.items():
        known = old.get(name)
        if known is not None and known.shape == new.shape:
            fresh[name] = known
        elif known is not None and known.shape[1:] == new.shape[1:] and len(known) < len(new):
            new[: len(known)] = known
    return fresh
