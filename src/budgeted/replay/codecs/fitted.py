"""What suits the samples: JPEG for pictures, and anything else as it is, so that one method serves all data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from budgeted.replay.codec import CODE, CODECS, Raw, Samples, Stored
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
        self.as_they_are = Raw()
        return self.as_they_are.columns(sample)

    def encode(self, sample: Samples) -> dict[str, Tensor]:
        if self.as_they_are is None:
            return super().encode(sample)
        return {**self.as_they_are.encode(sample), CODE: torch.empty(0, dtype=torch.uint8)}

    def decode(self, stored: Stored) -> Samples:
        if self.as_they_are is None:
            return super().decode(stored)
        columns: Mapping[str, Tensor] = {name: value for name, value in stored.items() if name != CODE}
        return self.as_they_are.decode(columns)

    def operations(self, decoded: int, encoded: int = 0) -> int:
        return super().operations(decoded, encoded) if self.as_they_are is None else 0
