"""What codecs of pictures share: which pictures they take, and codes that tell when they were damaged.

A picture is uint8, channels x height x width, with one channel or three. A code of varying size ends in one byte that
checks the others: an image library makes a picture of any bytes, so damage would be trained on unseen.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay.codec import Codec
from budgeted.replay.column import Column

Pixels = npt.NDArray[np.uint8]


@dataclass
class PictureCodec(Codec):
    """A codec of pictures, which remembers their shape."""

    everywhere: bool = False
    """pass samples of the stream and test pictures through the codec too, so that training and test see one kind of
    picture; charged for those that are trained on"""
    shape: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False, compare=False)

    largest: ClassVar[int] = 65_535
    """pixels of a side"""

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        first = sample[0]
        if len(sample) != 1 or first.dtype != torch.uint8 or len(first.shape) != 3 or first.shape[0] not in (1, 3):
            raise BudgetedError(
                f"codec {self.name()} stores one uint8 picture of 1 or 3 channels a sample, not "
                f"{', '.join(f'{each.name} ({each.dtype}, {tuple(each.shape)})' for each in sample)}: use codec raw"
            )
        channels, height, width = first.shape
        if not 1 <= min(height, width) <= max(height, width) <= self.largest:
            raise BudgetedError(
                f"codec {self.name()} stores pictures of 1 to {self.largest} pixels a side, not {height} x {width}: "
                "use codec raw"
            )
        self.shape = channels, height, width
        return self.held()

    def held(self) -> tuple[Column, ...]:
        """The columns of a slot, once the shape is known."""
        return ()

    @classmethod
    def name(cls) -> str:
        return cls.__name__.lower()

    @property
    def values(self) -> int:
        """Numbers of one picture."""
        channels, height, width = self.shape
        return channels * height * width


def sealed(code: bytes) -> Tensor:
    """A code as a slot holds it: with its check byte."""
    return torch.frombuffer(bytearray(code) + _check_byte(code), dtype=torch.uint8)


def opened(stored: Tensor) -> bytes:
    """The code that was sealed; one that was damaged since is refused."""
    held = stored.cpu().numpy().tobytes()
    if held[-1:] != _check_byte(held[:-1]):
        raise damaged()
    return held[:-1]


def damaged() -> BudgetedError:
    return BudgetedError("what a slot of the memory holds was damaged, its picture is lost: go back to a checkpoint")


def as_batch(pictures: Sequence[Pixels]) -> Tensor:
    """Pictures as a library has them, height x width (x channels), as a batch."""
    stacked = np.stack(pictures)
    return torch.from_numpy(stacked[:, None] if stacked.ndim == 3 else stacked.transpose(0, 3, 1, 2)).contiguous()


def as_rows(sample: Tensor) -> Pixels:
    """A picture as a library takes it."""
    pixels: Pixels = sample.cpu().numpy()
    return pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))


def _check_byte(code: bytes) -> bytes:
    return bytes([zlib.crc32(code) & 0xFF])
