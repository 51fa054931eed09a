"""How a picture becomes an input: uint8 [channels, size, size], by one stated policy for every container.

`squash` resizes to a square whatever the sides were (as the published code does); `crop` takes the middle square, then
resizes. Both are bilinear with antialiasing. The pixels of one file are the same whichever container it lies in:

- turned upright as its EXIF says; the first frame of an animation; a palette, grey, CMYK or transparency becomes RGB
  as Pillow converts it (transparency is dropped);
- more than 8 bits a channel, damage, zero bytes, and more pixels than the limits of `image_file` are refused by name.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from budgeted.errors import UnknownName
from budgeted.streams.dataset import DataError
from budgeted.streams.image_file import opened_image

Policy = Literal["squash", "crop"]
POLICIES: tuple[str, ...] = get_args(Policy)
#: Modes with more than 8 bits a channel, which a conversion would clip without a word.
DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_ORIENTATION = 0x0112


@dataclass(frozen=True)
class Pixels:
    """Side, channels and resize policy of the inputs."""

    size: int
    policy: str = "squash"
    channels: int = 3

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"image size of {self.size} pixels: choose 1 or more")
        if self.policy not in POLICIES:
            raise UnknownName("resize policy", self.policy, POLICIES)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def of(self, source: Any, where: str = "") -> NDArray[np.uint8]:
        """The input made of a file's path, encoded bytes, a Pillow image, or a uint8 array that needs no resizing."""
        if isinstance(source, bytes | bytearray | memoryview):
            with opened_image(bytes(source), where) as image:
                return self._of_image(image, where)
        if isinstance(source, str | Path):
            with opened_image(source, where) as image:
                return self._of_image(image, where or str(source))
        if isinstance(source, Image.Image):
            return self._of_image(source, where)
        return self._of_array(source, where)

    def _of_image(self, image: Image.Image, where: str) -> NDArray[np.uint8]:
        if image.mode in DEEP_MODES:
            raise DataError(f"{where}: mode {image.mode} has more than 8 bits a channel: convert it to 8 bits")
        return resized(image, self.shape, crop=self.policy == "crop")

    def _of_array(self, source: Any, where: str) -> NDArray[np.uint8]:
        array = np.asarray(source)
        if array.dtype != np.uint8:
            raise DataError(f"{where}: the sample is {array.dtype}: give uint8 pixels, encoded bytes or a path")
        if array.ndim == 2:
            array = np.repeat(array[None], self.channels, axis=0)
        elif array.ndim == 3 and array.shape != self.shape and array.shape[2] in (1, 3, 4):
            return self._of_image(Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array), where)
        if array.shape != self.shape:
            raise DataError(f"{where}: the sample has shape {array.shape} instead of {self.shape}: make them alike")
        return np.ascontiguousarray(array)


def resized(image: Image.Image, shape: tuple[int, int, int], *, crop: bool = False) -> NDArray[np.uint8]:
    """Of this shape, upright, in colour or in grey: squeezed to the size, or cut to its middle first."""
    channels, height, width = shape
    image = turned_upright(image)
    # A palette with transparency loses it with a warning unless it passes through RGBA.
    whole = image.convert("RGBA") if "transparency" in image.info else image
    picture = whole.convert("RGB" if channels == 3 else "L")
    if picture.size != (width, height):
        box = _middle(*picture.size) if crop else None
        picture = picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
    array = np.asarray(picture)
    return np.ascontiguousarray(array.transpose(2, 0, 1) if array.ndim == 3 else array[None])


def upright(image: Image.Image) -> bool:
    """Whether a picture's EXIF says that it stands as it is stored."""
    with contextlib.suppress(Exception):  # metadata may be damaged where pixels are not
        return int(image.getexif().get(_ORIENTATION, 1)) in (0, 1)
    return True


def turned_upright(image: Image.Image) -> Image.Image:
    if upright(image):
        return image
    with contextlib.suppress(Exception):
        return ImageOps.exif_transpose(image)
    return image


def _middle(width: int, height: int) -> tuple[float, float, float, float]:
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
