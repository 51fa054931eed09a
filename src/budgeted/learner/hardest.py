"""Selective backward: more stored samples are run forward than are trained on, and the hard ones are trained more often
(selective backprop, Jiang et al., 2019).

A larger draw is run in evaluation mode, as it is stored, and charged as retrieval. Of its samples as many as the batch
has places are taken, by chance: a sample whose loss has rank r among n, the highest being n, has a weight of
(r / n) ** hardness in a draw without replacement. Easy samples so cost a forward and no backward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.problems.batches import at
from budgeted.replay import Retrieval
from budgeted.replay.memory import Batch

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner

Floats: TypeAlias = npt.NDArray[np.floating]
Places: TypeAlias = npt.NDArray[np.int64]


def refuse_unless_drawn_alone(retrieval: Retrieval) -> None:
    """One that learns from what it draws, or draws for the samples of the stream, is not to be second-guessed."""
    if retrieval.wants_gradients or retrieval.wants_stream or retrieval.columns:
        raise BudgetedError(
            "learner.candidates goes with retrievals that keep nothing of what they draw: choose uniform or "
            "class-balanced, or leave it out"
        )


def draw_hard(learner: Learner, places: int) -> Batch:
    """So many stored samples for a step, the hard ones among more."""
    own, generator = learner.settings.learner, learner.generators["retrieval"]
    looked_at = math.ceil(own.candidates * places)
    drawn = learner.memory.gather(learner.retrieval.draw(learner.memory, looked_at, generator))
    if len(drawn.labels) <= places:
        return drawn
    logits = learner.answers("retrieval", drawn.samples)
    losses = learner.run("retrieval", _losses, logits, drawn.labels).numpy()
    chosen = by_rank(losses, places, own.hardness, generator)
    learner.retrieval.operations += 4 * len(losses)  # ranks, weights, keys, and a look at each for the largest
    return Batch(
        drawn.slots[chosen],
        at(drawn.samples, chosen),
        drawn.labels[chosen],
        {name: column[chosen] for name, column in drawn.columns.items()},
    )


def by_rank(losses: Floats, count: int, hardness: float, generator: np.random.Generator) -> Places:
    """Places of so many, in order, drawn without replacement with weights (rank / n) ** hardness."""
    ranks = np.empty(len(losses))
    ranks[np.argsort(losses, kind="stable")] = np.arange(1, len(losses) + 1)
    keys = hardness * np.log(ranks / len(losses)) + generator.gumbel(size=len(losses))  # the largest are such a draw
    return np.sort(np.argsort(-keys, kind="stable")[:count])


def _losses(logits: Tensor, rows: Tensor) -> Tensor:
    return F.cross_entropy(logits, rows, reduction="none")
