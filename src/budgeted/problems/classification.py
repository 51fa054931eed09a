"""Classification of images: a target is a class, whose head row comes when it is first met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.network import Inputs, Network, called
from budgeted.problems.augment import Augmentation, Augmenter
from budgeted.problems.problem import PROBLEMS, Problem
from budgeted.replay import Column

SAMPLE = "sample"


@dataclass(frozen=True)
class DataFacts:
    """What a learner must know of its images before the first one."""

    input_shape: tuple[int, int, int]
    mean: Sequence[float]
    std: Sequence[float]
    flips: bool = False
    """whether a mirrored image keeps its label"""
    classes: int | None = None
    """how many classes there will be, if known: their bytes are reserved; if not, slots are given up as they come"""
    samples: int | None = None
    """length of the stream, if that is known"""


@PROBLEMS.register("classification")
class Classification(Problem):
    """Images (uint8, channels x height x width) and their classes; cross-entropy, accuracy."""

    def __init__(
        self,
        data: DataFacts,
        augmentation: Augmentation | None = None,
        *,
        label_smoothing: float = 0.0,
        channels_last: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.data = data
        self.classes, self.samples = data.classes, data.samples
        self.label_smoothing = label_smoothing
        self.device = device
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        self.augmenter = Augmenter(
            augmentation or Augmentation(flip=data.flips), data.mean, data.std, channels_last=channels_last
        )

    def columns(self) -> tuple[Column, ...]:
        return (Column(SAMPLE, tuple(self.data.input_shape), torch.uint8),)

    def inputs(self, samples: Any, generator: np.random.Generator | None = None) -> Tensor:
        prepared = self.augmenter.normalise(samples) if generator is None else self.augmenter(samples, generator)
        return prepared.to(self.device)

    def vary(self, samples: Any, generator: np.random.Generator) -> Tensor:
        return self.augmenter.vary(samples, generator)

    def example(self, batch: int) -> Tensor:
        empty = torch.empty(batch, *self.data.input_shape, device="meta")
        return empty.contiguous(memory_format=self.memory_format)

    def grow(self, network: Network, rows: int, generator: np.random.Generator) -> None:
        network.grow_head(rows, generator)

    def growth(self, network: Network, rows: int) -> int:
        head = network.linear_head
        return max(0, rows - head.out_features) * 4 * (head.in_features + (head.bias is not None))

    def fits(self, network: Network) -> None:
        """Refuse a network that cannot grow classes."""
        if not isinstance(network.head, nn.Linear):
            raise BudgetedError(
                f"the model's head {network.freezing.chain.head!r} is no linear layer: it cannot grow classes"
            )

    @property
    def closed(self) -> bool:
        return self.label_smoothing == 0

    @property
    def for_price(self) -> Callable[[Any], Tensor]:
        return lambda logits: self.loss(logits, logits, logits.new_zeros(len(logits), dtype=torch.long))

    def respond(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """Logits over the classes seen so far."""
        logits: Tensor = called(model, inputs)
        return logits[:, : len(self.keys)].float().cpu()

    def loss(self, outputs: Any, inputs: Any, rows: Tensor) -> Tensor:
        return F.cross_entropy(outputs, rows, label_smoothing=self.label_smoothing)

    def answer(self, outputs: Tensor) -> Any:
        """Labels: a tensor of whole numbers, or a list of words."""
        found = outputs.argmax(1)
        if self.keys and isinstance(self.keys[0], int):
            return torch.tensor(self.keys)[found]
        return [self.keys[row] for row in found.tolist()]

    def score(self, outputs: Tensor, inputs: Any, rows: Tensor) -> Tensor:
        return (outputs.argmax(1) == rows).float()
