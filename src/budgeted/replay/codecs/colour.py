"""Light and colour of pictures, and their resolution, in whole numbers: the same bits on every machine.

The transform is that of JFIF (ITU-R BT.601, full range) in 16 bits behind the point. Halving takes the mean of two by
two pixels, the border repeated where a side is odd; doubling is the triangle filter of JPEG decoders: three parts of
the nearest pixel, one of the next, in either direction.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from budgeted.replay.codecs.picture import Pixels

Numbers = npt.NDArray[np.int32]

TRANSFORM = 21
"""operations for a pixel, either way: nine products, nine additions, three shifts"""
RESOLUTION = 10
"""operations for a value of the larger size, either way: of doubling, which is the dearer"""
_TO = np.array([[19595, 38470, 7471], [-11059, -21709, 32768], [32768, -27439, -5329]], np.int32)
_ROUND = np.array([1 << 15, (128 << 16) + (1 << 15) - 1, (128 << 16) + (1 << 15) - 1], np.int32)
_RED_BY_CR, _BLUE_BY_CB, _GREEN_BY_CB, _GREEN_BY_CR = 91881, 116130, 22554, 46802


def to_ycc(pixels: Pixels) -> Numbers:
    """[…, 3, height, width] of red, green and blue as light, blue and red difference, 0 to 255."""
    red, green, blue = (pixels[..., channel, :, :].astype(np.int32) for channel in range(3))
    planes = [
        (by_red * red + by_green * green + by_blue * blue + half) >> 16
        for (by_red, by_green, by_blue), half in zip(_TO.tolist(), _ROUND.tolist(), strict=True)
    ]
    return np.stack(planes, axis=-3)


def from_ycc(light: Numbers, blue: Numbers, red: Numbers) -> Pixels:
    """Three planes […, height, width], back as […, 3, height, width]."""
    blue, red, half = blue - 128, red - 128, np.int32(1 << 15)
    pixels = np.empty((*light.shape[:-2], 3, *light.shape[-2:]), np.int32)
    pixels[..., 0, :, :] = light + ((_RED_BY_CR * red + half) >> 16)
    pixels[..., 1, :, :] = light + ((half - _GREEN_BY_CB * blue - _GREEN_BY_CR * red) >> 16)
    pixels[..., 2, :, :] = light + ((_BLUE_BY_CB * blue + half) >> 16)
    return as_bytes(pixels)


def as_bytes(numbers: Numbers) -> Pixels:
    """Rounded to what a pixel can be."""
    return np.clip(numbers, 0, 255).astype(np.uint8)


def halved(planes: npt.NDArray[np.integer]) -> Numbers:
    """Half as many rows and columns, rounded up."""
    even = padded(planes, 2).astype(np.int32)
    added = even[..., ::2, ::2] + even[..., 1::2, ::2] + even[..., ::2, 1::2] + even[..., 1::2, 1::2]
    return np.asarray((added + 2) >> 2, np.int32)


def doubled(planes: npt.NDArray[np.integer], height: int, width: int) -> Numbers:
    """What was halved, at its size before."""
    rows = _along(planes.astype(np.int32), -2)[..., :height, :]
    return np.asarray((_along(rows, -1)[..., :width] + 8) >> 4, np.int32)


def padded(planes: npt.NDArray[np.integer], multiple: int) -> npt.NDArray[np.integer]:
    """The last row and column repeated until both sides are a multiple."""
    down, right = (-planes.shape[-2] % multiple, -planes.shape[-1] % multiple)
    if not down and not right:
        return planes
    return np.pad(planes, [(0, 0)] * (planes.ndim - 2) + [(0, down), (0, right)], mode="edge")


def _along(planes: Numbers, axis: int) -> Numbers:
    """Twice as many along an axis, four times as large."""
    ahead = np.swapaxes(planes, axis, -1)
    found = np.empty((*ahead.shape[:-1], 2 * ahead.shape[-1]), np.int32)
    before = np.concatenate([ahead[..., :1], ahead[..., :-1]], axis=-1)
    after = np.concatenate([ahead[..., 1:], ahead[..., -1:]], axis=-1)
    found[..., ::2] = 3 * ahead + before
    found[..., 1::2] = 3 * ahead + after
    return np.swapaxes(found, axis, -1)
