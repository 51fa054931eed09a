"""Half resolution: a quarter of the bytes, every slot alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from budgeted.replay.codec import CODECS, Samples, Stored
from budgeted.replay.codecs.colour import RESOLUTION, as_bytes, doubled, halved
from budgeted.replay.codecs.picture import PictureCodec
from budgeted.replay.column import Column

_HELD = "half"


@CODECS.register("half")
@dataclass
class Half(PictureCodec):
    """Every second row and column, as means of two by two pixels: 768 bytes of a CIFAR picture."""

    def held(self) -> tuple[Column, ...]:
        channels, height, width = self.shape
        return (Column(_HELD, (channels, -(-height // 2), -(-width // 2)), torch.uint8),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        return self.encode_batch(sample)

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        return {_HELD: torch.from_numpy(as_bytes(halved(samples.cpu().numpy())))}

    def decode(self, stored: Stored) -> Tensor:
        _, height, width = self.shape
        return torch.from_numpy(as_bytes(doubled(stored[_HELD].cpu().numpy(), height, width)))

    def operations(self, decoded: int, encoded: int = 0) -> int:
        return (decoded + encoded) * self.values * RESOLUTION
