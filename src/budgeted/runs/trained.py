"""Out of a run again: the learner that a run ended with, to predict with and to hand on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.learner import Learner
from budgeted.runs.config import RunConfig
from budgeted.runs.environment import environment
from budgeted.runs.folder import opened
from budgeted.runs.run import Run


@dataclass(frozen=True)
class Trained:
    """What a run has learned, as of its newest checkpoint."""

    learner: Learner
    config: RunConfig
    names: tuple[str, ...]
    """of the classes that were met, in the order of the head's rows"""
    finished: bool

    def probabilities(self, images: Tensor) -> Tensor:
        """Of the classes met, for uint8 images: one row per image, in the order of `names`."""
        return torch.softmax(self.learner.logits(images), 1)


def trained(path: Path) -> Trained:
    """The learner of the run in this folder. The folder is read and not changed; the data set must be at hand, since
    shape, normalisation and names of the classes are its."""
    folder, config = opened(path)
    config.refuse_other_sources()
    found = folder.read_checkpoint()
    if found is None:
        raise BudgetedError(f"{path} has no checkpoint yet: let the run go on with `budgeted run --resume {path}`")
    run = Run(config, folder, environment(config.threads, config.device))
    state.restore(run.learner, *found)
    names = tuple(run.dataset.class_names[label] for label in run.learner.class_labels)
    if not names:
        raise BudgetedError(f"{path} has met no sample yet: let the run go on with `budgeted run --resume {path}`")
    run.learner.close()  # it learns no more: its hooks are off the model, which gets the weights it predicts with
    run.learner.network.settle()
    return Trained(run.learner, config, names, folder.summary() is not None)
