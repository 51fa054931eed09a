"""How a picture becomes an input: uint8 [channels, size, size], by one stated policy for every container.

`squash` resizes to a square whatever the sides were (as the published code does); `crop` takes the middle square, then
resizes. Both are bilinear with antialiasing. The pixels of one file are the same whichever container it lies in:

- turned upright as its EXIF says; the first frame of an animation; a palette, grey, CMYK or transparency becomes RGB
  as Pillow converts it (transparency is dropped);
- more than 8 bits a channel, damage, zero bytes, and more pixels than the limits of `image_file` are refused by name.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams.dataset import DataError
from budgeted.streams.image_file import MOST_PIXELS, opened_image

Policy = Literal["squash", "crop"]
POLICIES: tuple[str, ...] = get_args(Policy)
#: Modes with more than 8 bits a channel, which a conversion would clip without a word.
DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})
_ORIENTATION = 0x0112
#: Channels that an array may have: grey, colour, colour with transparency.
_CHANNELS = (1, 3, 4)


@contextlib.contextmanager
def named_failures(where: str) -> Iterator[None]:
    """What a user's own code or object raises inside the block becomes one line that names it."""
    try:
        yield
    except (BudgetedError, MemoryError):
        raise
    except Exception as problem:  # whatever it is, it is theirs to mend
        raise DataError(f"{where}: {type(problem).__name__}: {problem}") from problem


@dataclass(frozen=True)
class Pixels:
    """Side, channels and resize policy of the inputs."""

    size: int
    policy: str = "squash"
    channels: int = 3
    #: Whether none is resized: each must be a square of this side already.
    exact: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"image size of {self.size} pixels: choose 1 or more")
        if self.size**2 > MOST_PIXELS:
            most = math.isqrt(MOST_PIXELS)
            raise DataError(f"image size of {self.size:,} pixels a side: choose {most:,} or less")
        if self.policy not in POLICIES:
            raise UnknownName("resize policy", self.policy, POLICIES)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def of(self, source: Any, where: str = "") -> NDArray[np.uint8]:
        """The input made of a file's path, encoded bytes, a Pillow image, or uint8 [H, W], [H, W, C] or [C, H, W]."""
        if isinstance(source, bytes | bytearray | memoryview):
            with opened_image(bytes(source), where) as image:
                return self._of_image(image, where)
        if isinstance(source, str | os.PathLike):
            path = os.fsdecode(source)
            with opened_image(path, where) as image:
                return self._of_image(image, where or path)
        if isinstance(source, Image.Image):
            with named_failures(where):  # it may be decoded only now, from a file that is damaged
                return self._of_image(source, where)
        return self._of_array(source, where)

    def _of_image(self, image: Image.Image, where: str) -> NDArray[np.uint8]:
        width, height = _not_empty(image.size, where)
        if self.exact and (width, height) != (self.size, self.size):
            # No DataError, which would make it a bad sample to be passed over: it is the size that has to be said.
            raise BudgetedError(unlike(where, (width, height), (self.size, self.size)))
        if image.mode in DEEP_MODES:
            raise DataError(f"{where}: mode {image.mode} has more than 8 bits a channel: convert it to 8 bits")
        return resized(image, self.shape, crop=self.policy == "crop")

    def _of_array(self, source: Any, where: str) -> NDArray[np.uint8]:
        array = _pixels_of(source, where)
        if array.shape == self.shape:
            return np.ascontiguousarray(array)
        if array.ndim == 3:
            array = array.transpose(1, 2, 0) if _channels_first(array.shape) else array
            array = array[:, :, 0] if array.shape[2] == 1 else array
        return self._of_image(Image.fromarray(np.ascontiguousarray(array)), where)


def sides(source: Any, where: str) -> tuple[int, int]:
    """Width and height of whatever `Pixels.of` takes, of a file or of bytes without decoding them."""
    if isinstance(source, bytes | bytearray | memoryview):
        source = bytes(source)
    elif isinstance(source, str | os.PathLike):
        source = os.fsdecode(source)
    if isinstance(source, bytes | str):
        with opened_image(source, where) as image:
            return _not_empty(image.size, where)
    if isinstance(source, Image.Image):
        return _not_empty(source.size, where)
    shape = _pixels_of(source, where).shape
    first = len(shape) == 3 and _channels_first(shape)
    height, width = shape[1:] if first else shape[:2]
    return int(width), int(height)


def unlike(where: str, found: tuple[int, int], first: tuple[int, int]) -> str:
    """What to say of a picture that is no square, or not as large as the first."""
    told = f"the first {first[0]}x{first[1]}" if found != first else "no square"
    return f"{where} is {found[0]}x{found[1]}, {told}: pass size=PIXELS (--size) to resize them all"


def _not_empty(size: tuple[int, int], where: str) -> tuple[int, int]:
    if 0 in size:
        raise DataError(f"{where}: a picture of {size[0]}x{size[1]} pixels: give at least one, or leave it out")
    return size


def _pixels_of(source: Any, where: str) -> NDArray[np.uint8]:
    with named_failures(where):
        array = np.asarray(source)
    if array.dtype != np.uint8:
        raise DataError(f"{where}: the sample is {array.dtype}: give uint8 pixels, encoded bytes or a path")
    shape = array.shape
    if 0 in shape or array.ndim not in (2, 3) or (array.ndim == 3 and not {shape[0], shape[2]} & {*_CHANNELS}):
        raise DataError(
            f"{where}: the sample has shape {shape}: give [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels and "
            "at least one pixel"
        )
    return array


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether it is [C, H, W]; where both ends could be channels, the reading that makes a square of it."""
    first, last = shape[0] in _CHANNELS, shape[2] in _CHANNELS
    return first and (not last or shape[1] == shape[2])


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
