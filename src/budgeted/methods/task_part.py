"""The part of a network that a task leaves behind: how it is found, and which half of a batch moves which weights.

The weights that tasks have left behind are shared by all that come after; a task's part is a mask over every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from budgeted.methods.masks import strongest


def count_wins(wins: Tensor, feature: Tensor, winning: int) -> None:
    """Of every sample, the channels that are most active anywhere."""
    activity = feature.amax(1) if feature.ndim == 3 else feature.flatten(2).amax(2) if feature.ndim > 2 else feature
    wins += torch.zeros_like(activity).scatter_(1, activity.topk(winning, 1).indices, 1.0).sum(0)


def extracted(
    weight: Tensor, gradient: Tensor, wins: Tensor, past: Tensor, draws: Tensor, channels: int, count: int,
    dropout: float,
) -> Tensor:  # fmt: skip
    """Mask of a task's part of a layer: of the channels that won most, less those dropped as winners of earlier tasks,
    the weights with the highest |w| + |gradient|."""
    staying = draws < torch.exp(-dropout * past / past.max().clamp(min=1))
    scores = torch.where(staying, wins, wins - wins.max() - 1)  # one that is dropped stands behind all others
    winning = strongest(scores, channels)
    importance = (weight.abs() + gradient.abs()).flatten(1)
    return strongest(importance.masked_fill(~winning[:, None], -torch.inf), count).view(weight.shape)


def directed(
    gradients: list[Tensor], on_stream: list[Tensor | None], shared: list[Tensor | None], task: list[Tensor | None],
    revised: bool, rewound: bool, memory_alone: bool, scale: float,
) -> None:  # fmt: skip
    """Weights without a mask learn from both; of the others, the shared from what is replayed, unless the rest is
    rewound, and the rest from the stream, or the task's part of it if that is revised. Where batches are of the memory
    alone, it is the stream to the rest."""
    for gradient, given, held, own in zip(gradients, on_stream, shared, task, strict=True):
        if held is not None and own is not None:
            free = own & ~held if revised else ~held
            if given is not None:
                gradient.mul_(torch.zeros_like(held) if rewound else held)
                given = given * free
            else:
                gradient.mul_(free | held if memory_alone and not rewound else free)
        if given is not None:
            gradient.add_(given, alpha=scale)


def go_back(weight: Tensor, before: Tensor, shared: Tensor) -> None:
    """All weights but the shared are as they were."""
    weight.copy_(torch.where(shared, weight, before))
