"""What a learner lends to its method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from budgeted.budget import Purpose
from budgeted.network import Network
from budgeted.problems import Problem
from budgeted.replay import Column
from budgeted.replay.lent import Lent

T = TypeVar("T")


class Holding(Protocol):
    """What the learner holds of a sample, and what the model is called with for it."""

    def columns(self) -> tuple[Column, ...]:
        """What one is made of, by name, shape and type."""

    def held(self, sample: Any) -> Any:
        """Of a sample that has arrived."""

    def inputs(self, samples: Any, generator: np.random.Generator | None, new: int) -> Any:
        """What the model is called with for a batch, the first `new` of the stream; with a generator, varied."""


class LentToMethod(Lent, Protocol):
    """A learner as its method sees it."""

    problem: Problem
    batch_size: int
    stream_batch: int
    """how many samples of the stream are in a batch"""

    @property
    def arrived(self) -> int:
        """Samples so far, with the one that is being taken."""

    def hold(self, holding: Holding, convert: Callable[[Any], Any]) -> None:
        """Samples are held as something else from now on: what is stored and what waits is converted, in the same
        bytes; what has no room leaves."""

    @property
    def spent_up(self) -> bool:
        """Whether training has ended because the compute is spent."""

    @property
    def due(self) -> int:
        """Training steps that are due and were not run."""

    def take_due(self, steps: int) -> None:
        """The method runs these of the steps that are due, as far as there are so many."""

    def end_training(self) -> None:
        """What is left of the compute pays for no further training: say so, once."""

    def answers(self, purpose: Purpose, samples: Any, *, augment: bool = False, as_predicted: bool = False) -> Tensor:
        """Outputs for stored samples in evaluation mode, aside from training, charged to `purpose`."""

    def another_network(self) -> Network:
        """One more network like the learner's own, of newly drawn weights, for the method to keep."""

    def practise(self, purpose: Purpose, samples: Any, rows: Tensor) -> float:
        """A plain training step outside the stream, varied, nothing frozen, charged to `purpose`; its loss."""

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """Run a function beside the model, without gradients, and charge what it executed. What it costs must follow
        from the shapes of the tensors given, and from whole numbers: what was met before is not watched again."""
