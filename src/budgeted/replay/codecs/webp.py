"""WebP without its fixed bytes: the container's, the start code and the size, which all pictures of a shape share."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import ClassVar

import numpy as np
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.limits import limited, refuse_outside_limits
from budgeted.replay.codec import CODE, CODECS, Stored
from budgeted.replay.codecs.picture import PictureCodec, as_batch, as_rows, damaged, opened, sealed

OPERATIONS_PER_VALUE = 60
"""the price of decoding: 11 for a transform, 37 for arithmetic code, prediction and the loop filter, 12 for colour"""
ENCODING_OVER_DECODING = 4
"""at effort 4, in time and so in price: the encoder tries predictions and codes them"""
_CONTAINER = 20  # RIFF, size, WEBP, kind of chunk, size
_TAG = 3  # of a lossy frame: it says how long the first part is
_LOSSY, _LOSSLESS = b"VP8 ", b"VP8L"


@CODECS.register("webp")
@dataclass
class WebP(PictureCodec):
    """A WebP file without the bytes that all have (about 330 of a CIFAR picture at quality 75)."""

    quality: int = limited(75, "from 0 to 100")
    """of the quantiser, 0 to 100; the effort, where nothing is lost"""
    effort: int = limited(4, "from 0 to 6")
    """0 (fast) to 6 (small)"""
    lossless: bool = False
    """no bit is lost: about 1,900 bytes of a CIFAR picture"""

    varying = True
    largest: ClassVar[int] = 16_383

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "codec webp: ")

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        from PIL import Image

        file = BytesIO()
        image = Image.fromarray(as_rows(sample)).convert("RGB")
        image.save(file, "WEBP", quality=self.quality, method=self.effort, lossless=self.lossless)
        content = file.getvalue()
        length = int.from_bytes(content[_CONTAINER - 4 : _CONTAINER], "little")
        frame = content[_CONTAINER : _CONTAINER + length]
        before, fixed = self._fixed()
        if content != self._container(frame) or frame[before : before + len(fixed)] != fixed:
            raise BudgetedError("this WebP library writes files of another kind: use codec jpeg")
        return {CODE: sealed(frame[:before] + frame[before + len(fixed) :])}

    def decode(self, stored: Stored) -> Tensor:
        from PIL import Image

        before, fixed = self._fixed()
        pictures = []
        for each in stored[CODE]:
            code = opened(each)
            file = BytesIO(self._container(code[:before] + fixed + code[before:]))
            try:
                image = Image.open(file, formats=("WEBP",))
                pictures.append(np.asarray(image.convert("L") if self.shape[0] == 1 else image))
            except OSError as error:
                raise damaged() from error
        return as_batch(pictures)

    def operations(self, decoded: int, encoded: int = 0) -> int:
        values = 3 * self.shape[1] * self.shape[2]  # grey pictures have three channels too
        return (decoded + ENCODING_OVER_DECODING * encoded) * values * OPERATIONS_PER_VALUE

    def _fixed(self) -> tuple[int, bytes]:
        """Bytes of the frame that all pictures share, and where they stand."""
        _, height, width = self.shape
        if self.lossless:  # a signature; width and height less one in 14 bits each, no alpha, version 0
            return 0, b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
        return _TAG, b"\x9d\x01\x2a" + width.to_bytes(2, "little") + height.to_bytes(2, "little")

    def _container(self, frame: bytes) -> bytes:
        """The whole file around a frame; an odd one is followed by a zero."""
        even = frame + b"\0" * (len(frame) % 2)
        size = (len(even) + _CONTAINER - 8).to_bytes(4, "little")
        kind = _LOSSLESS if self.lossless else _LOSSY
        return b"RIFF" + size + b"WEBP" + kind + len(frame).to_bytes(4, "little") + even
