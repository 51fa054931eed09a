"""The parts that a method names, made by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from budgeted.errors import UnknownName
from budgeted.learner.settings import LearnerSettings, Settings
from budgeted.methods import Method
from budgeted.replay import (
    AdversarialShapley,
    ClassBalanced,
    GreedyBalanced,
    GreedyQuota,
    MaximallyInterfered,
    Reservoir,
    Retrieval,
    Selection,
    ShapleySelection,
    SimilarityAwareRetrieval,
    Uniform,
    Unlimited,
)
from budgeted.replay.importance import LeastImportant

SELECTIONS: dict[str, Callable[[], Selection]] = {
    "greedy-balanced": GreedyBalanced,
    "greedy-quota": GreedyQuota,
    "reservoir": Reservoir,
    "unlimited": Unlimited,
    "least-important": LeastImportant,
    "aser": ShapleySelection,
}
RETRIEVALS: dict[str, str] = {
    "uniform": "every stored sample is equally likely",
    "class-balanced": "every class is equally likely, then every sample of it",
    "sar": "similarity-aware: the least used first, counting the uses of similar classes",
    "mir": "those whose loss would rise most by an update on what just arrived",
    "aser": "those of value for what is stored and of none for what just arrived, by Shapley values",
}


def make_selection(name: str, settings: Settings) -> Selection:
    if name not in SELECTIONS:
        raise UnknownName("selection", name, SELECTIONS)
    if name == "aser":
        return ShapleySelection(settings.aser)
    return SELECTIONS[name]()


def make_retrieval(method: Method, settings: Settings, classes: int | None, coordinates: int) -> Retrieval:
    """`classes` reserves the bytes of that many at once; `coordinates` is the number of sampled weights."""
    name, batch = method.retrieval, settings.learner.batch_size
    standing_in = 0 if int(batch * method.stream_share) else batch // 2
    if name == "uniform":
        return Uniform()
    if name == "class-balanced":
        return ClassBalanced()
    if name == "sar":
        return SimilarityAwareRetrieval(settings.retrieval, classes or 0, coordinates)
    if name == "mir":
        return MaximallyInterfered(settings.mir, standing_in)
    if name == "aser":
        return AdversarialShapley(settings.aser, standing_in)
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
