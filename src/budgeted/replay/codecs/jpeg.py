"""JPEG without what all pictures of one shape have in common: a slot holds the scan alone.

A small JPEG file is mostly header: 623 of 944 bytes of a CIFAR picture at quality 75 are markers, quantisation tables
and the standard's own Huffman tables, the same for every picture. The codec keeps one header and puts it back before
decoding, so that what comes out is what the library makes of the whole file, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.limits import limited, refuse_outside_limits
from budgeted.replay.codec import CODE, CODECS, Stored
from budgeted.replay.codecs.colour import RESOLUTION, TRANSFORM
from budgeted.replay.codecs.picture import PictureCodec, Pixels, as_batch, as_rows, opened, sealed
from budgeted.replay.column import Column

Subsampling = Literal["4:4:4", "4:2:2", "4:2:0"]
_END = b"\xff\xd9"
_START_OF_SCAN = b"\xff\xda"
_SHARES = {"4:4:4": (1, 1), "4:2:2": (1, 2), "4:2:0": (2, 2)}

OPERATIONS_PER_COEFFICIENT = 24
"""the price, either way: 11 for a separable DCT of 16 x 44 in a block, 1 for the quantiser, 12 for the Huffman code;
colour and its resolution as `colour` has them"""


@CODECS.register("jpeg")
@dataclass
class Jpeg(PictureCodec):
    """The scan of a JPEG file (about 300 bytes of a CIFAR picture at quality 75); tables are kept once."""

    quality: int = limited(75, "from 1 to 100")
    """of the quantiser, 1 to 100"""
    subsampling: Subsampling = "4:2:0"
    """resolution of colour: 4:4:4 as that of light, 4:2:2 half as many columns, 4:2:0 half as many rows too"""
    header: Tensor = field(default_factory=lambda: torch.empty(0).byte(), init=False, repr=False, compare=False)

    varying = True
    kept = ("header",)
    largest: ClassVar[int] = 65_500

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "codec jpeg: ")
        if self.subsampling not in _SHARES:
            raise BudgetedError(f"codec jpeg: subsampling must be one of {', '.join(_SHARES)}, got {self.subsampling}")

    def held(self) -> tuple[Column, ...]:
        blank = self._file(np.zeros(self.shape[1:] if self.shape[0] == 1 else (*self.shape[1:], 3), np.uint8))
        start = blank.index(_START_OF_SCAN) + 2
        header = blank[: start + int.from_bytes(blank[start : start + 2], "big")]
        self.header = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        return ()

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        header, file = self._header(), self._file(as_rows(sample))
        if not file.startswith(header) or not file.endswith(_END):
            raise BudgetedError(
                "the JPEG library writes other tables than those that the memory keeps: go on with the Pillow that "
                "the run was begun with"
            )
        return {CODE: sealed(file[len(header) : -len(_END)])}

    def decode(self, stored: Stored) -> Tensor:
        from PIL.JpegImagePlugin import JpegImageFile

        header = self._header()
        files = (BytesIO(header + opened(code) + _END) for code in stored[CODE])
        return as_batch([np.asarray(JpegImageFile(file)) for file in files])

    def operations(self, decoded: int, encoded: int = 0) -> int:
        channels, height, width = self.shape
        rows, columns = _SHARES[self.subsampling] if channels == 3 else (1, 1)
        units = -(-height // (8 * rows)) * -(-width // (8 * columns))
        blocks = units * (rows * columns + channels - 1)
        colour = height * width * (TRANSFORM + 2 * RESOLUTION) if channels == 3 else 0
        return (decoded + encoded) * (64 * blocks * OPERATIONS_PER_COEFFICIENT + colour)

    def _header(self) -> bytes:
        return self.header.numpy().tobytes()

    def _file(self, pixels: Pixels) -> bytes:
        from PIL import Image

        file = BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", quality=self.quality, subsampling=self.subsampling)
        return file.getvalue()
