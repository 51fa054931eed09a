"""What suits the samples: JPEG for pictures, and anything else as it is, so that one method serves all data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from budgeted.replay.codec import CODECS, Raw, Samples, Stored
from budgeted.replay.codecs.jpeg import Jpeg
from budgeted.replay.column import Column

SMALLEST = 16
"""pixels of a side from which a picture is compressed: a smaller one is a few blocks, and takes no room to speak of"""


@CODECS.register("fitted")
@dataclass
class Fitted(Jpeg):
    """JPEG for pictures of 16 pixels and more a side; anything else as it is."""

    as_they_are: Raw | None = field(default=None, init=False, repr=False, compare=False)

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        first = sample[0]
        picture = len(sample) == 1 and first.dtype == torch.uint8 and len(first.shape) == 3 and first.shape[0] in (1, 3)
        if picture and SMALLEST <= min(first.shape[1:]) <= max(first.shape[1:]) <= self.largest:
            return super().columns(sample)
        self.as_they_are, self.varying = Raw(), False
        return self.as_they_are.columns(sample)

    def encode(self, sample: Samples) -> dict[str, Tensor]:
        return super().encode(sample) if self.as_they_are is None else self.as_they_are.encode(sample)

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        return super().encode_batch(samples) if self.as_they_are is None else self.as_they_are.encode_batch(samples)

    def decode(self, stored: Stored) -> Samples:
        return super().decode(stored) if self.as_they_are is None else self.as_they_are.decode(stored)

    def operations(self, decoded: int, encoded: int = 0) -> int:
        return super().operations(decoded, encoded) if self.as_they_are is None else 0
