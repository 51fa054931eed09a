"""What a user gives a learner, in the forms that people write it, as the loop takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import nn

from budgeted import models
from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner.parts import make_method
from budgeted.learner.settings import Settings, from_pairs
from budgeted.methods import Method
from budgeted.problems import DataFacts, Problem

Data: TypeAlias = DataFacts | Problem | Sequence[int] | None
"""The facts of samples, a problem of another kind, the shape of an image, or nothing: images of 3 x 32 x 32."""


def facts_of(data: Data) -> DataFacts | Problem:
    if data is None:
        return DataFacts()
    if isinstance(data, (DataFacts, Problem)):
        return data
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise BudgetedError(f"{data!r} is no shape of samples: give one such as (3, 32, 32), or DataFacts")
    return DataFacts(tuple(data))


def model_of(model: nn.Module | str, data: DataFacts | Problem, seed: int) -> nn.Module:
    """A network by name is drawn from the learner's seed, for samples of the shape that was said."""
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, str):
        raise BudgetedError(f"{model!r} is no model: give a torch module, or a name such as 'resnet20'")
    if isinstance(data, Problem):
        raise BudgetedError(f"the model {model!r} goes by name only where classes are learned: build it, and give it")
    return models.build(model, input_shape=data.input_shape, seed=seed)


def settings_of(settings: Settings | None, method: Method | type[Method] | str, data: DataFacts | Problem) -> Settings:
    """As given; if none are, those that are usual with the method."""
    if settings is not None and not isinstance(settings, Settings):
        raise BudgetedError(
            f"settings is a {type(settings).__name__}: give Settings(learner=LearnerSettings(learning_rate=1e-3), …)"
        )
    flips, classified = getattr(data, "flips", False), isinstance(data, DataFacts)
    return settings or from_pairs({}, make_method(method, {}), flips, classified=classified)


def refuse_absent(device: str) -> None:
    """Before anything is put on it."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise BudgetedError(f"{device!r} is no device of torch: give 'cpu', or 'cuda' where there is one") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise BudgetedError(f"device {device!r} is not there: give device='cpu'")


def budget_of(budget: Budget | Compute | str | None, memory: int | str | None, slots: int | None) -> Budget:
    """Compute from the one, bytes from the other."""
    if not isinstance(budget, Budget):
        budget = Budget(budget)
    if memory is None:
        return budget
    if budget.bytes is not None or slots is not None:
        raise BudgetedError("give memory= in bytes, the budget's bytes, or slots: not two of them")
    return Budget(budget.compute, memory)
