"""What TriRE does to the weights of a layer in its phases: which it moves, which it keeps, which it goes back to."""

from __future__ import annotations

import torch
from torch import Tensor

from budgeted.methods.masks import strongest

RETAIN, REVISE, REWIND = range(3)


def directed(
    gradients: list[Tensor], shared: list[Tensor], task: list[Tensor], on_stream: list[Tensor], phase: int, scale: float
) -> None:
    """Gradients of masked weights: inside S of what is replayed, but in rewind; outside of the stream."""
    for gradient, held, own, given in zip(gradients, shared, task, on_stream, strict=True):
        gradient.mul_(torch.zeros_like(held) if phase == REWIND else held)
        gradient.add_(given * free(held, own, phase), alpha=scale)


def of_stream(gradients: list[Tensor], shared: list[Tensor], task: list[Tensor], phase: int) -> None:
    for gradient, held, own in zip(gradients, shared, task, strict=True):
        gradient.mul_(free(held, own, phase))


def free(shared: Tensor, task: Tensor, phase: int) -> Tensor:
    """Weights that the stream moves: those outside S, in revise the task's part of them."""
    return task & ~shared if phase == REVISE else ~shared


def extracted(
    weight: Tensor,
    gradient: Tensor,
    wins: Tensor,
    past: Tensor,
    draws: Tensor,
    channels: int,
    count: int,
    dropout: float,
) -> Tensor:
    """Mask of a task's part of a layer: of the channels that won most, less those dropped as winners of earlier tasks,
    the weights with the highest |w| + |gradient|."""
    staying = draws < torch.exp(-dropout * past / past.max().clamp(min=1))
    scores = torch.where(staying, wins, wins - wins.max() - 1)  # one that is dropped stands behind all others
    winning = strongest(scores, channels)
    importance = (weight.abs() + gradient.abs()).flatten(1)
    return strongest(importance.masked_fill(~winning[:, None], -torch.inf), count).view(weight.shape)


def count_wins(wins: Tensor, feature: Tensor, winning: int) -> None:
    """Of every sample, the channels that are most active anywhere."""
    activity = feature.amax(1) if feature.ndim == 3 else feature.flatten(2).amax(2) if feature.ndim > 2 else feature
    places = activity.topk(winning, 1).indices
    wins += torch.zeros_like(activity).scatter_(1, places, 1.0).sum(0)


def both(gradients: list[Tensor], on_stream: list[Tensor], scale: float) -> None:
    for gradient, given in zip(gradients, on_stream, strict=True):
        gradient.add_(given, alpha=scale)


def go_back(weight: Tensor, before: Tensor, shared: Tensor) -> None:
    weight.copy_(torch.where(shared, weight, before))


def follow(slow: list[Tensor], now: list[Tensor], share: float) -> None:
    torch._foreach_lerp_(slow, now, share)


def unite(shared: Tensor, task: Tensor) -> None:
    shared.logical_or_(task)


def keep_up(kept: dict[str, Tensor], now: dict[str, Tensor]) -> None:
    """Copies of tensors that are new; rows that came to others are taken as they are."""
    for name, tensor in now.items():
        old = kept.get(name)
        if old is None or old.shape != tensor.shape:
            kept[name] = tensor.detach().clone()
            if old is not None:
                kept[name][: len(old)] = old
