"""Classification: a sample is an image or any other array, a target a class, whose head row comes when it is met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.network import Inputs, Network, called
from budgeted.problems.augment import Augmentation, Augmenter
from budgeted.problems.batches import Sample
from budgeted.problems.given import as_tensor, is_one
from budgeted.problems.problem import PROBLEMS, Problem
from budgeted.replay import Column

SAMPLE = "sample"


@dataclass(frozen=True)
class DataFacts:
    """What a learner must know of its samples before the first one."""

    input_shape: tuple[int, ...] = (3, 32, 32)
    """of a sample: channels, height and width of an image"""
    mean: Sequence[float] = ()
    """for each channel, of values from 0 to 1; 0.5 if not given, and 0 of floats"""
    std: Sequence[float] = ()
    """likewise; 0.25 if not given, and 1 of floats"""
    flips: bool = False
    """whether a mirrored image keeps its label"""
    classes: int | None = None
    """how many classes there will be, if known: their bytes are reserved; if not, slots are given up as they come"""
    samples: int | None = None
    """length of the stream, if that is known"""
    dtype: Literal["uint8", "float32"] = "uint8"
    """of a sample as it is given and stored; floats are not augmented"""

    def __post_init__(self) -> None:
        shape = tuple(self.input_shape)
        if not shape or not all(isinstance(side, int) and side >= 1 for side in shape):
            raise BudgetedError(f"input_shape {shape} is no shape of a sample: give sizes of at least 1")
        usual = (0.5, 0.25) if self.dtype == "uint8" else (0.0, 1.0)
        channels = shape[0] if len(shape) > 1 else 1
        for name, value in zip(("mean", "std"), usual, strict=True):
            given = tuple(getattr(self, name)) or (value,) * channels
            object.__setattr__(self, name, given)
        object.__setattr__(self, "input_shape", shape)

    @property
    def pictures(self) -> bool:
        """Whether samples are images of bytes, which are augmented."""
        return self.dtype == "uint8" and len(self.input_shape) == 3 and self.input_shape[0] in (1, 3)


@PROBLEMS.register("classification")
class Classification(Problem):
    """Images (uint8, channels x height x width) or other arrays, and their classes; cross-entropy, accuracy."""

    def __init__(
        self,
        data: DataFacts,
        augmentation: Augmentation | None = None,
        *,
        label_smoothing: float = 0.0,
        train_size: int | None = None,
        train_size_until: float = 1.0,
        mirrored: bool = False,
        channels_last: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        """
        train_size: side in pixels that images are made smaller to in training, up to a share of the stream.
        mirrored: predict with the mean of what is said to an image and to its mirror image, where that keeps the label.
        """
        self.data = data
        self.classes, self.samples = data.classes, data.samples
        self.label_smoothing = label_smoothing
        self.train_size, self.train_size_until = train_size, train_size_until
        self.mirrored = mirrored and data.flips and data.pictures
        if train_size is not None and train_size > min(data.input_shape[1:]):
            raise BudgetedError(
                f"learner.train_size={train_size}: give at most {min(data.input_shape[1:])}, as images have"
            )
        if train_size is not None and train_size_until < 1 and data.samples is None:
            raise BudgetedError("learner.train_size_until is a share of the stream: say how many samples there are")
        self.device = device
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        augmentation = augmentation or Augmentation(flip=data.flips)
        self.augmenter = (
            Augmenter(augmentation, data.mean, data.std, channels_last=channels_last) if data.pictures else None
        )

    def columns(self) -> tuple[Column, ...]:
        return (Column(SAMPLE, tuple(self.data.input_shape), getattr(torch, self.data.dtype)),)

    def check(self, sample: Any) -> Tensor:
        wanted = self.columns()[0]
        found: Tensor = super().check(as_tensor(sample, wanted.shape, wanted.dtype))  # type: ignore[assignment]
        if wanted.dtype.is_floating_point and not bool(torch.isfinite(found).all()):
            raise BudgetedError("a sample has values that are no finite numbers: leave it out, or mend it")
        return found

    def batch(self, samples: Any) -> Sample:
        if is_one(samples, tuple(self.data.input_shape)):
            raise BudgetedError("give samples as a batch or a list, got one array: put it in [ ]")
        return super().batch(samples)

    def inputs(self, samples: Any, generator: np.random.Generator | None = None) -> Tensor:
        if self.augmenter is None:
            return self._scaled(samples).to(self.device)
        prepared = self.augmenter.normalise(samples) if generator is None else self.augmenter(samples, generator)
        return prepared.to(self.device)

    def _scaled(self, samples: Tensor) -> Tensor:
        """Samples that are no pictures: bytes from 0 to 1, then mean and deviation of every channel."""
        values = samples.float() / 255 if samples.dtype == torch.uint8 else samples
        channels = (1, -1, *(1,) * (samples.ndim - 2))
        mean, std = (torch.tensor(each).view(channels) for each in (self.data.mean, self.data.std))
        layout = self.memory_format if samples.ndim == 4 else torch.contiguous_format
        return ((values - mean) / std).contiguous(memory_format=layout)

    def sized(self, network: Network, inputs: Any, share: float | None) -> Any:
        if self.train_size is None or (share is not None and share > self.train_size_until):
            return inputs
        smaller = network.run("forward", _smaller, inputs, self.train_size)
        return smaller.contiguous(memory_format=self.memory_format)

    def vary(self, samples: Any, generator: np.random.Generator) -> Tensor:
        varied: Tensor = samples if self.augmenter is None else self.augmenter.vary(samples, generator)
        return varied

    def example(self, batch: int) -> Tensor:
        empty = torch.empty(batch, *self.data.input_shape, device="meta")
        return empty.contiguous(memory_format=self.memory_format) if empty.ndim == 4 else empty

    def grow(self, network: Network, rows: int, generator: np.random.Generator) -> None:
        network.grow_head(rows, generator)

    def growth(self, network: Network, rows: int) -> int:
        head = network.linear_head
        return max(0, rows - head.out_features) * 4 * (head.in_features + (head.bias is not None))

    def fits(self, network: Network) -> None:
        """Refuse a network that cannot grow classes."""
        if not isinstance(network.head, nn.Linear):
            raise BudgetedError(
                f"the model's head {network.freezing.chain.head!r} is no linear layer and cannot grow classes: end the "
                "model in nn.Linear"
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
        if self.mirrored:
            assert isinstance(inputs, Tensor)
            logits = (logits + called(model, inputs.flip(-1))) / 2
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


def _smaller(images: Tensor, side: int) -> Tensor:
    """Every pixel the mean of those it stands for: a network that ends in a mean over places takes any size."""
    return F.interpolate(images, size=(side, side), mode="area")
