"""The parts that a method names, made by name or taken as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from budgeted.errors import BudgetedError
from budgeted.learner.settings import LearnerSettings
from budgeted.methods import METHODS, Method
from budgeted.replay import RETRIEVALS, SELECTIONS, Facts, Retrieval, Selection

T = TypeVar("T")


def make_method(given: Method | type[Method] | str, settings: Mapping[str, Any]) -> Method:
    """A method of its own for one learner, by name, by class, or like the one given."""
    if isinstance(given, str):
        given = METHODS[given]
    if isinstance(given, Method):
        return dataclasses.replace(given, **settings)
    if isinstance(given, type) and issubclass(given, Method):
        return _made(f"method {given.name!r}", lambda: given(**settings))
    raise BudgetedError(f"{given!r} is no method: give a name such as 'al-sar', a class made from Method, or one of it")


def make_selection(part: Selection | str, settings: Mapping[str, Any]) -> Selection:
    if isinstance(part, str):
        kind = SELECTIONS[part]
        return _made(f"selection {part!r}", lambda: kind.made(settings))
    if not isinstance(part, Selection):
        raise BudgetedError(f"{part!r} is no selection: give a name such as 'reservoir', or one made from Selection")
    return part


def make_retrieval(part: Retrieval | str, settings: Mapping[str, Any], facts: Facts) -> Retrieval:
    if isinstance(part, str):
        kind = RETRIEVALS[part]
        return _made(f"retrieval {part!r}", lambda: kind.made(settings, facts))
    if not isinstance(part, Retrieval):
        raise BudgetedError(f"{part!r} is no retrieval: give a name such as 'sar', or one made from Retrieval")
    return part


def _made(what: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except TypeError as error:
        raise BudgetedError(f"{what}: {error}") from error


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
