"""What the learner holds of a sample, and what the model is called with for it: as the problem has it, or otherwise.

A method that stores something else than samples, such as codes of features, gives the learner a holding of its own
(`learner.hold`), from any moment on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from budgeted.methods import Holding
from budgeted.problems import Problem
from budgeted.replay import Column
from budgeted.replay.column import LABEL

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner


class AsGiven:
    """Samples as the problem has them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def columns(self) -> tuple[Column, ...]:
        return self.problem.columns()

    def held(self, sample: Any) -> Any:
        return sample

    def inputs(self, samples: Any, generator: np.random.Generator | None, new: int) -> Any:
        return self.problem.inputs(samples, generator)


def hold_otherwise(learner: Learner, holding: Holding, convert: Callable[[Any], Any]) -> None:
    """Go over to another holding: what is stored is converted, what waits too, in the same bytes; all of it or none."""
    before, learner.holding = learner.holding, holding
    try:
        _convert(learner, convert)
    except BaseException:
        learner.holding = before
        raise


def _convert(learner: Learner, convert: Callable[[Any], Any]) -> None:
    old = learner.memory
    new = learner.parts.memory(None if old.capacity is None else old.nbytes())
    leaving = 0 if new.capacity is None else len(old) - new.capacity
    if leaving > 0:
        old.evict(learner.selection.give_up(old, leaving, learner.generators["selection"]).tolist())
    if len(old):
        stored = old.gather(np.arange(len(old)))
        hosted = {c.name: torch.from_numpy(old.host(c.name).copy()) for c in old.columns if c.host}
        hosted.pop(LABEL)
        new.extend(convert(stored.samples), old.labels, **stored.columns, **hosted)
    learner.waiting = [(learner.holding.held(sample), row) for sample, row in learner.waiting]
    learner.memory, learner.stacked = new, None
    new.watch(learner.retrieval)
