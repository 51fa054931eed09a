"""What a learner lends to those that look at the model aside from the training step: retrievals and techniques."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from budgeted.budget import Cost, Purpose
from budgeted.replay.memory import Memory

T = TypeVar("T")


class LearnerView(Protocol):
    """A learner as its parts see it. Whatever they run on the model they run `aside`, and charge."""

    model: nn.Module
    head: nn.Linear
    memory: Memory
    device: torch.device
    optimizer: torch.optim.Optimizer
    class_labels: list[int]
    """labels of the head's rows, in order of first appearance"""
    stream_batch: int
    """how many samples of the stream are in a batch"""
    spent_up: bool
    """whether training has ended because the compute is spent"""
    scaler: torch.amp.GradScaler | None
    """of the loss, under float16: a step whose gradients are not finite is left out"""

    def images_of(self, samples: Tensor, *, augment: bool = False) -> Tensor:
        """Samples as the model wants them: normalised, and augmented as in training if asked."""

    def aside(self) -> AbstractContextManager[None]:
        """Inside, forwards and backwards are no part of the training step: nobody notes or samples them."""

    def pass_price(self, images: Tensor, *, backward: bool = False) -> Cost:
        """Price of a forward of the model, in the mode it is in, and of a whole backward if asked."""

    def run(self, purpose: Purpose, function: Callable[..., T], *given: Any) -> T:
        """Run a function beside the model, without gradients, and charge what it executed. What it costs must follow
        from the shapes of the tensors given, and from whole numbers: what was met before is not watched again."""

    def leave_out(self, term: Tensor) -> None:
        """A term of the loss that its maker charges for: nobody else prices what lies behind it."""

    def charge(self, purpose: Purpose, cost: Cost) -> None:
        """Charge what was run aside; with the step under way, or at once between steps."""

    def affords(self, cost: Cost) -> bool:
        """Would this fit into what is left of the compute?"""

    def end_training(self) -> None:
        """What is left of the compute pays for no further training: say so, once."""

    @property
    def due(self) -> int:
        """Training steps that are due and were not run."""

    def take_due(self, steps: int) -> None:
        """Somebody else than the stream runs these of the steps that are due, as far as there are so many."""

    def practise(self, samples: Tensor, labels: Tensor, purpose: Purpose) -> float:
        """A plain training step outside the stream, augmented, nothing frozen, charged to `purpose`; its loss."""

    def practice_price(self, batch: int) -> Cost:
        """Price of `practise` on so many samples."""

    def block_names(self) -> list[str]:
        """Module paths of the blocks, stem first, head last."""

    def generator(self, name: str) -> np.random.Generator:
        """The run's own generator for this purpose."""

    @property
    def settings(self) -> Any:
        """How training is done: `settings.learner` has the batch size and the optimizer's numbers."""

    @property
    def data(self) -> Any:
        """The facts of the data: `classes`, `samples`, `input_shape`."""
