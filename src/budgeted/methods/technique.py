"""What a method adds to the one loop: a loss of its own, things kept per slot or per model, work at certain moments.

Most methods are a technique, a selection and a retrieval, none of which knows of the others. The fields of a technique
that is a dataclass are its settings (`--set method.NAME=VALUE`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.budget import NOTHING, Cost
from budgeted.methods.course import Costs, Course
from budgeted.replay import Column, Rule
from budgeted.replay.membership import Slots
from budgeted.replay.view import LearnerView


@dataclass(frozen=True)
class Step:
    """One training step's batch: the samples of the stream first, the replayed ones behind."""

    new: int
    """how many are of the stream"""
    slots: Slots
    """of the replayed ones"""
    images: Tensor
    labels: Tensor
    """rows of the head"""
    columns: Mapping[str, Tensor]
    """what the slots of the replayed ones hold"""


class Technique:
    """Does nothing of its own: a method overrides what makes it different."""

    plain = True
    """whether the loss is the plain cross-entropy of the whole batch"""
    trains = True
    """whether it trains while the stream runs (GDumb does not)"""
    choices: int = 1
    """arrived samples that wait for one place in a batch; with more than one, `pick` says which take the places"""

    learner: LearnerView

    def columns(self, classes: int | None) -> tuple[Column, ...]:
        """What it keeps in every slot."""
        return ()

    def begin(self, learner: LearnerView) -> None:
        """The learner is built."""
        self.learner = learner

    def growing(self, classes: int) -> None:
        """The head is to get this many rows: refuse it here, before anything has changed."""

    def grown(self) -> None:
        """The head has got a new row."""

    def withholds(self, sample: Tensor, row: int) -> bool:
        """A sample has arrived: does the technique keep it for itself, neither stored nor trained on?"""
        return False

    def pick(self, samples: Tensor, rows: Tensor) -> Tensor:
        """Which of the samples that wait (uint8; rows of the head) are in this step: asked if there are too many."""
        return torch.arange(self.learner.stream_batch)

    def offered(self, waiting: int) -> Sequence[int]:
        """The steps on what waits are done: the places of the samples that are offered to the memory."""
        return range(waiting)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, step.labels)

    def operations(self, step: Step) -> int:
        """What the loss and its backward run beyond a cross-entropy of the batch, under rule `real`."""
        return 0

    def after_backward(self, step: Step) -> None:
        """Gradients are there, parameters have not moved."""

    def after_step(self, step: Step, logits: Tensor) -> None:
        """Parameters have moved."""

    def stored(self, slot: int, place: int | None) -> None:
        """A sample has entered the memory: the one at `place` of the last stream batch, or one never trained on."""

    def end_task(self) -> None:
        """The stream goes over to other classes; on streams without tasks, a fifth of it has passed."""

    def before_prediction(self) -> None:
        """An evaluation comes: the last moment to train for it, charged as `evaluation_training`."""

    def corrected(self, logits: Tensor) -> Tensor:
        """Logits as predictions are made from."""
        return logits

    def most(self, new: int, batch: int) -> Cost:
        """What it adds to the step that comes at most, beyond forward, backward and optimizer of its batch: `batch`
        samples, `new` of them of the stream. A step is run if it can be paid, so a loose bound leaves compute unspent.
        """
        return NOTHING

    def each_step(self, course: Course) -> Costs:
        """What it adds to a training step, in the mean over such a course, beyond forward, backward and optimizer. Of
        one that does not say, a plan takes what a few steps show."""
        return {}

    def beside_steps(self, course: Course) -> Costs:
        """What it runs in such a course however many steps there are: for samples stored, for evaluations."""
        return {}

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes it keeps between steps beside its columns and `copies`."""
        return 0

    def copies(self, rule: Rule = "real") -> int:
        """How often it keeps something of the size of the model's parameters (a Fisher diagonal, an anchor)."""
        return 0

    def close(self) -> None:
        """The learner lets go of the model: hooks come off."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        return None
