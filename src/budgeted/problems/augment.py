"""Training batches from stored uint8 images, each image varied by its own draw.

The order is that of the published protocol: random crop with padding, horizontal flip, RandAugment of two
operations at magnitude 9, float in [0, 1], normalisation. One deviation: the published code applied one draw
to a stacked chunk of images, here every image of a batch draws its own crop, flip, operations and signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.problems.randaugment import MAGNITUDE_BINS, OPERATIONS, Booleans, Images, Integers, RandAugment

_FULL_PADDING_SIDE = 32


class AugmentationError(BudgetedError):
    """Augmentation settings or images that cannot be used."""


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied; the same for every method."""

    crop_padding: int = 4
    """Zero pixels put around an image before the random crop back to its size (0: no crop). For images whose
    shorter side is 32 pixels or more; others get proportionally less, rounded down (1 of 4 at 8 x 8)."""
    flip: bool = True
    """Mirror left to right with probability one half. Switch off where it changes the label (digits)."""
    randaugment_ops: int = 2
    """RandAugment operations applied to each image one after the other (0: none)."""
    randaugment_magnitude: int = 9
    """Strength of those operations, from 0 to 30."""

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise AugmentationError(f"crop_padding is {self.crop_padding}: give 0 (no crop) or more pixels")
        if self.randaugment_ops < 0:
            raise AugmentationError(f"randaugment_ops is {self.randaugment_ops}: give 0 (none) or more")
        if self.randaugment_magnitude not in range(MAGNITUDE_BINS):
            raise AugmentationError(
                f"randaugment_magnitude is {self.randaugment_magnitude}: "
                f"give a whole number from 0 to {MAGNITUDE_BINS - 1}"
            )

    def padding_at(self, height: int, width: int) -> int:
        """The crop padding used for images of this size."""
        return self.crop_padding * min(height, width, _FULL_PADDING_SIDE) // _FULL_PADDING_SIDE


@dataclass(frozen=True)
class Draws:
    """What chance decided for one batch."""

    top: Integers
    """[B] row of the padded image where the crop starts."""
    left: Integers
    """[B] column of the padded image where the crop starts."""
    flip: Booleans
    """[B] whether the image is mirrored."""
    operation: Integers
    """[rounds, B] indices into `randaugment.OPERATIONS`."""
    negative: Booleans
    """[rounds, B] whether the operation's strength is negated."""


class Augmenter:
    """Turns uint8 batches [B, C, H, W] into normalised float32 ones, varied (a call) or not (`normalise`)."""

    def __init__(
        self,
        settings: Augmentation,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        channels_last: bool = False,
    ) -> None:
        if len(mean) != len(std) or len(mean) not in (1, 3):
            raise AugmentationError(
                f"got {len(mean)} means and {len(std)} deviations (std): give one of each per channel, 1 or 3"
            )
        if not all(math.isfinite(value) for value in (*mean, *std)) or min(std) <= 0:
            raise AugmentationError(f"mean {list(mean)}, std {list(std)}: give finite numbers, std above 0")
        self.settings = settings
        self.channels = len(mean)
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        # in grey levels: bytes become normalised floats in two passes instead of four
        self._mean = torch.tensor(mean, dtype=torch.float64).mul(255).float().view(1, -1, 1, 1)
        self._std = torch.tensor(std, dtype=torch.float64).mul(255).float().view(1, -1, 1, 1)
        self._randaugment = RandAugment(settings.randaugment_magnitude)
        self._varies = bool(settings.crop_padding or settings.flip or settings.randaugment_ops)

    def __call__(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """The training batch: the same state of `rng` gives the same bits; `images` is left as it was."""
        return self.normalise(self.vary(images, rng) if self._varies else images)

    def normalise(self, images: Tensor) -> Tensor:
        """The batch for evaluation: float in [0, 1], mean subtracted, divided by the standard deviation."""
        self._check(images)
        scaled = torch.sub(images, self._mean).div_(self._std)
        # Rearranged last: broadcasting over three channels is several times slower in channels_last.
        return scaled.contiguous(memory_format=self._memory_format)

    def vary(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """Crop, flip and RandAugment alone: a new contiguous uint8 batch."""
        self._check(images)
        batch, _, height, width = images.shape
        return self.apply(images, self.draw(rng, batch, self.settings.padding_at(height, width)))

    def draw(self, rng: np.random.Generator, batch: int, padding: int) -> Draws:
        """All of a batch's draws, in one call of `rng`.

        Image i takes the i-th group of 3 + 2 * randaugment_ops uniform numbers, whatever the settings use of
        them. So its draw depends on its place in the batch (elsewhere the same image is varied differently),
        not on how many images follow, and switching flip or crop off leaves the other draws as they were.
        """
        rounds = self.settings.randaugment_ops
        uniform = rng.random((batch, 3 + 2 * rounds)).T
        return Draws(
            top=(uniform[0] * (2 * padding + 1)).astype(np.intp),
            left=(uniform[1] * (2 * padding + 1)).astype(np.intp),
            flip=(uniform[2] < 0.5) & self.settings.flip,
            operation=(uniform[3 : 3 + rounds] * len(OPERATIONS)).astype(np.intp),
            negative=uniform[3 + rounds :] < 0.5,
        )

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip and RandAugment with given draws; result i depends on image i and draw i alone."""
        self._check(images)
        varied = _crop(images.numpy(), draws, self.settings.padding_at(*images.shape[2:]))
        varied[draws.flip] = varied[draws.flip, ..., ::-1]
        for operation, negative in zip(draws.operation, draws.negative, strict=True):
            self._randaugment.apply(varied, operation, negative)
        return torch.from_numpy(varied)

    def _check(self, images: Tensor) -> None:
        if images.dtype != torch.uint8 or images.device.type != "cpu":
            raise AugmentationError(f"images are {images.dtype} on {images.device}: give torch.uint8 on cpu")
        if images.dim() != 4 or images.shape[1] != self.channels or 0 in images.shape[1:]:
            raise AugmentationError(
                f"images have shape {list(images.shape)}: give [batch, {self.channels}, height, width], "
                "as many channels as means"
            )


def _crop(images: Images, draws: Draws, padding: int) -> Images:
    """A contiguous copy of each image seen through its own window on the zero-padded image."""
    batch, channels, height, width = images.shape
    padded: Images = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding), dtype=np.uint8)
    padded[:, :, padding : padding + height, padding : padding + width] = images
    cropped: Images = np.empty((batch, channels, height, width), dtype=np.uint8)
    # One slice per image copies whole rows; an indexed gather of the batch is no faster, even on small ones.
    for image, (top, left) in enumerate(zip(draws.top.tolist(), draws.left.tolist(), strict=True)):
        cropped[image] = padded[image, :, top : top + height, left : left + width]
    return cropped
