"""Light at full resolution, colour at half, a few bits for each: every slot alike, and no library needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted.limits import limited, refuse_outside_limits
from budgeted.replay.codec import CODECS, Samples, Stored
from budgeted.replay.codecs.colour import RESOLUTION, TRANSFORM, Numbers, as_bytes, doubled, from_ycc, halved, to_ycc
from budgeted.replay.codecs.picture import PictureCodec, Pixels
from budgeted.replay.column import Column

_HELD = "packed"


@CODECS.register("ycc420")
@dataclass
class Ycc420(PictureCodec):
    """YCbCr 4:2:0 in a few bits a value: 960 bytes of a CIFAR picture at 5 bits."""

    bits: int = limited(5, "from 1 to 8")
    """of every value, 1 to 8"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "codec ycc420: ")

    @property
    def numbers(self) -> int:
        """Values that a slot holds."""
        channels, height, width = self.shape
        return height * width + (channels - 1) * -(-height // 2) * -(-width // 2)

    def held(self) -> tuple[Column, ...]:
        return (Column(_HELD, (-(-self.numbers * self.bits // 8),), torch.uint8),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        return {_HELD: self.encode_batch(sample[None])[_HELD][0]}

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        pixels: Pixels = samples.cpu().numpy()
        planes: Numbers = to_ycc(pixels) if self.shape[0] == 3 else pixels.astype(np.int32)
        light, colour = planes[:, :1].reshape(len(pixels), -1), halved(planes[:, 1:]).reshape(len(pixels), -1)
        values = np.concatenate([light, colour], axis=1)
        levels = (values * self._most + 127) // 255
        apart = ((levels[:, :, None] >> self._places) & 1).astype(np.uint8)
        return {_HELD: torch.from_numpy(np.packbits(apart.reshape(len(pixels), -1), axis=1))}

    def decode(self, stored: Stored) -> Tensor:
        channels, height, width = self.shape
        packed: Pixels = stored[_HELD].cpu().numpy()
        apart = np.unpackbits(packed, axis=1, count=self.numbers * self.bits).reshape(len(packed), -1, self.bits)
        levels = (apart @ (1 << self._places).astype(np.uint8)).astype(np.int32)
        values = (levels * 510 + self._most) // (2 * self._most)
        light = values[:, : height * width].reshape(-1, height, width)
        if channels == 1:
            return torch.from_numpy(as_bytes(light)[:, None])
        small = values[:, height * width :].reshape(-1, 2, -(-height // 2), -(-width // 2))
        colour = doubled(small, height, width)
        return torch.from_numpy(from_ycc(light, colour[:, 0], colour[:, 1]))

    def operations(self, decoded: int, encoded: int = 0) -> int:
        """A shift and an addition for every bit, three operations for every level, resolution and transform."""
        channels, height, width = self.shape
        colour = height * width * (TRANSFORM + (channels - 1) * RESOLUTION) if channels == 3 else 0
        return (decoded + encoded) * (self.numbers * (2 * self.bits + 3) + colour)

    @property
    def _places(self) -> Numbers:
        """Of the bits of a value, the highest first."""
        return np.arange(self.bits - 1, -1, -1, dtype=np.int32)

    @property
    def _most(self) -> int:
        return (1 << self.bits) - 1
