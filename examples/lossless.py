"""A codec of your own: every picture without loss, as the compressed differences between neighbouring pixels.

memory = Memory(columns, limit=2_000_000, codec=Lossless(level=9))     # as an object
codec = CODECS["examples/lossless.py:Lossless"].made({"level": 6})     # by its file
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from budgeted.errors import BudgetedError
from budgeted.replay import CODE, Codec, Column
from budgeted.replay.codec import Stored

OPERATIONS_PER_BYTE = 10
"""the price of zlib, either way: a few comparisons, shifts and table look-ups for every byte of a picture"""


@dataclass
class Lossless(Codec):
    """Differences between neighbours in a row, deflated."""

    level: int = 9
    """effort of the compression, 0 to 9"""
    shape: tuple[int, ...] = field(default=(), init=False, repr=False)

    varying = True  # slots differ in bytes: the memory is limited by bytes, not by slots

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        if len(sample) != 1 or sample[0].dtype != torch.uint8 or not sample[0].shape:
            raise BudgetedError("codec Lossless stores one uint8 picture a sample: use another codec")
        self.shape = sample[0].shape
        return ()  # nothing but the code

    def encode(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        differences = np.diff(sample.cpu().numpy(), prepend=np.uint8(0))  # modulo 256: no bit is lost
        packed = zlib.compress(differences.tobytes(), self.level, wbits=-15)
        return {CODE: torch.frombuffer(bytearray(packed), dtype=torch.uint8)}

    def decode(self, stored: Stored) -> torch.Tensor:
        differences = b"".join(zlib.decompress(code.numpy(), wbits=-15) for code in stored[CODE])
        rows = np.frombuffer(differences, np.uint8).reshape(-1, *self.shape)
        return torch.from_numpy(np.cumsum(rows, axis=-1, dtype=np.uint8))

    def operations(self, decoded: int, encoded: int = 0) -> int:
        return (decoded + encoded) * int(np.prod(self.shape)) * (1 + OPERATIONS_PER_BYTE)
