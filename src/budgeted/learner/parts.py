"""The parts that a method names, made by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from budgeted.errors import UnknownName
from budgeted.learner.settings import LearnerSettings
from budgeted.replay import (
    ClassBalanced,
    GreedyBalanced,
    Reservoir,
    Retrieval,
    SARSettings,
    Selection,
    SimilarityAwareRetrieval,
    Uniform,
    Unlimited,
)

SELECTIONS: dict[str, Callable[[], Selection]] = {
    "greedy-balanced": GreedyBalanced,
    "reservoir": Reservoir,
    "unlimited": Unlimited,
}
RETRIEVALS: dict[str, str] = {
    "uniform": "every stored sample is equally likely",
    "class-balanced": "every class is equally likely, then every sample of it",
    "sar": "similarity-aware: the least used first, counting the uses of similar classes",
}


def make_selection(name: str) -> Selection:
    if name not in SELECTIONS:
        raise UnknownName("selection", name, SELECTIONS)
    return SELECTIONS[name]()


def make_retrieval(name: str, settings: SARSettings, classes: int | None, coordinates: int) -> Retrieval:
    """`classes` reserves the bytes of that many at once; `coordinates` is the number of sampled weights."""
    if name == "uniform":
        return Uniform()
    if name == "class-balanced":
        return ClassBalanced()
    if name == "sar":
        return SimilarityAwareRetrieval(settings, classes or 0, coordinates)
    raise UnknownName("retrieval", name, RETRIEVALS)


def make_optimizer(settings: LearnerSettings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, momentum=settings.momentum, weight_decay=decay, fused=True)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, rate, weight_decay=decay, fused=True)


def make_schedule(settings: LearnerSettings, optimizer: Optimizer, steps: int | None) -> LRScheduler | None:
    if settings.schedule == "constant":
        return None
    return CosineAnnealingLR(optimizer, max(1, steps or 1))
