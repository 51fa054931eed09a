"""RandAugment on uint8 batches where every image has its own operation, in four passes over the batch.

The operations and their strengths are those of Cubuk et al. (2020) as commonly run: fourteen operations, 31
magnitude bins, strength negated with probability one half where a sign makes sense. What an operation does to
a pixel is what Pillow's ImageOps, ImageEnhance and Image.transform do, to the last bit.

Four passes cover the fourteen operations, whatever the batch:

- *maps*: the five affine operations, nearest neighbour, zero outside. For one magnitude and image size there
  are only ten (two signs each): their source indices are computed once, an image is moved by one gather;
- *tables*: brightness, contrast, posterize, solarize, autocontrast and equalize send each grey value to
  another, so they are one lookup of 256 entries per image, or per channel where channels are treated apart;
- *colour* and *sharpness* blend the image with its grey version and with its smoothed version.

All arithmetic is integer or elementwise float32, so results do not depend on the number of threads.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.intp]
Booleans = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

OPERATIONS = (
    "identity",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
)
MAGNITUDE_BINS = 31

_MAPPED = OPERATIONS[1:6]
_IS_TABULATED: Booleans = np.isin(
    OPERATIONS, ("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize")
)
_IDENTITY_TABLE: Images = np.arange(256, dtype=np.uint8)
_FIXED_POINT_BITS = 16


class RandAugment:
    """All fourteen operations at one magnitude (0 to 30), applied in place, one round at a time."""

    def __init__(self, magnitude: int) -> None:
        self.magnitude = magnitude
        strength = magnitude / (MAGNITUDE_BINS - 1)
        self._factors: Floats = np.array([1 + 0.9 * strength, 1 - 0.9 * strength], dtype=np.float32)
        self._tables = self._constant_tables()
        # The result of contrast depends on the image only through its grey mean: [sign, mean, grey value].
        means = np.arange(256).reshape(1, 256, 1)
        self._contrast_tables = _blend(means, _IDENTITY_TABLE, self._factors.reshape(2, 1, 1))

    def apply(self, images: Images, operation: Integers, negative: Booleans) -> None:
        """Change contiguous `images` [B, C, H, W] in place, image i by OPERATIONS[operation[i]].

        `negative` [B] negates the strength; operations without a sign ignore it.
        """
        sign = negative.astype(np.intp)
        self._move(images, operation, sign)
        self._look_up(images, operation, sign)
        if images.shape[1] == 3:
            chosen = np.flatnonzero(operation == OPERATIONS.index("color"))
            if chosen.size:
                picked = images[chosen]
                images[chosen] = _blend(_grey(picked), picked, self._per_image_factors(sign[chosen]))
        chosen = np.flatnonzero(operation == OPERATIONS.index("sharpness"))
        if chosen.size:
            picked = images[chosen]
            images[chosen] = _blend(_smooth(picked), picked, self._per_image_factors(sign[chosen]))

    def _per_image_factors(self, sign: Integers) -> Floats:
        return self._factors[sign].reshape(-1, 1, 1, 1)

    def _move(self, images: Images, operation: Integers, sign: Integers) -> None:
        first, last = OPERATIONS.index(_MAPPED[0]), OPERATIONS.index(_MAPPED[-1])
        chosen = np.flatnonzero((operation >= first) & (operation <= last))
        if not chosen.size:
            return
        _, channels, height, width = images.shape
        sources, inside = affine_maps(self.magnitude, height, width)
        flat = images.reshape(-1, channels, height * width)
        which = 2 * (operation[chosen] - first) + sign[chosen]
        for map_index in sorted(set(which.tolist())):
            members = chosen[which == map_index]
            # "clip" lets numpy skip its bounds-check buffer; the indices are in range by construction.
            moved = flat[members].take(sources[map_index], axis=2, mode="clip")
            moved *= inside[map_index]
            flat[members] = moved

    def _look_up(self, images: Images, operation: Integers, sign: Integers) -> None:
        chosen = np.flatnonzero(_IS_TABULATED[operation])
        if not chosen.size:
            return
        count, channels = chosen.size, images.shape[1]
        picked = images[chosen].reshape(count, channels, -1)
        operation, sign = operation[chosen], sign[chosen]
        tables: Images = np.repeat(self._tables[operation, sign][:, None], channels, axis=1)
        for name, rows in _rows_by_name(operation, ("contrast", "autocontrast", "equalize")):
            if name == "contrast":
                mean = _grey_mean(picked[rows])
                tables[rows] = self._contrast_tables[sign[rows], mean][:, None]
            elif name == "autocontrast":
                tables[rows] = _autocontrast_tables(picked[rows])
            else:
                tables[rows] = _equalize_tables(picked[rows])
        offsets = 256 * np.arange(count * channels).reshape(count, channels, 1)
        images[chosen] = tables.ravel().take(picked + offsets).reshape(count, *images.shape[1:])

    def _constant_tables(self) -> Images:
        """Tables that do not look at the image, [operation, sign, 256]."""
        tables: Images = np.broadcast_to(_IDENTITY_TABLE, (len(OPERATIONS), 2, 256)).copy()
        tables[OPERATIONS.index("brightness")] = _blend(np.zeros(1), _IDENTITY_TABLE, self._factors[:, None])
        dropped_bits = round(self.magnitude / ((MAGNITUDE_BINS - 1) / 4))
        tables[OPERATIONS.index("posterize")] = _IDENTITY_TABLE >> dropped_bits << dropped_bits
        threshold = 255 * (MAGNITUDE_BINS - 1 - self.magnitude) / (MAGNITUDE_BINS - 1)
        tables[OPERATIONS.index("solarize")] = np.where(
            threshold > _IDENTITY_TABLE, _IDENTITY_TABLE, 255 - _IDENTITY_TABLE
        )
        return tables


def _rows_by_name(operation: Integers, names: tuple[str, ...]) -> list[tuple[str, Integers]]:
    """The positions of each named operation, names without any left out."""
    found = [(name, np.flatnonzero(operation == OPERATIONS.index(name))) for name in names]
    return [(name, rows) for name, rows in found if rows.size]


@lru_cache(maxsize=8)
def affine_maps(magnitude: int, height: int, width: int) -> tuple[Integers, Images]:
    """Where each output pixel of the ten affine variants comes from, and whether that is inside the image.

    Returns source indices [10, H * W] (0 where outside) and the mask [10, H * W] of ones inside and zeros
    outside, in the order of the operations, positive sign first. Coordinates are 16.16 fixed point, as in
    Pillow: floats would send a few pixels of a large rotated image to a neighbour.
    """
    rows, columns = np.divmod(np.arange(height * width, dtype=np.int64), width)
    sources, inside = [], []
    for name in _MAPPED:
        for sign in (1, -1):
            a, b, c, d, e, f = _inverse_affine(name, sign * magnitude / (MAGNITUDE_BINS - 1), height, width)
            x = _fixed(a) * columns + _fixed(b) * rows + _fixed(c + (a + b) / 2) >> _FIXED_POINT_BITS
            y = _fixed(d) * columns + _fixed(e) * rows + _fixed(f + (d + e) / 2) >> _FIXED_POINT_BITS
            valid = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            sources.append(np.where(valid, y * width + x, 0).astype(np.intp))
            inside.append(valid.astype(np.uint8))
    maps = np.stack(sources), np.stack(inside)
    for array in maps:
        array.flags.writeable = False  # shared by every caller through the cache
    return maps


def _fixed(value: float) -> int:
    return math.floor(value * (1 << _FIXED_POINT_BITS) + 0.5)


def _inverse_affine(name: str, strength: float, height: int, width: int) -> tuple[float, ...]:
    """(a, b, c, d, e, f): output (x, y) shows input (ax + by + c, dx + ey + f); strength in [-1, 1].

    Shears keep the upper left corner in place, rotation (counter-clockwise) keeps the centre.
    """
    if name == "shear_x":
        return 1, 0.3 * strength, 0, 0, 1, 0
    if name == "shear_y":
        return 1, 0, 0, 0.3 * strength, 1, 0
    if name == "translate_x":
        return 1, 0, -int(150 / 331 * width * strength), 0, 1, 0
    if name == "translate_y":
        return 1, 0, 0, 0, 1, -int(150 / 331 * height * strength)
    angle = math.radians(30 * strength)
    cosine, sine = math.cos(angle), math.sin(angle)
    centre_x, centre_y = width / 2, height / 2
    return (
        cosine,
        -sine,
        centre_x - cosine * centre_x + sine * centre_y,
        sine,
        cosine,
        centre_y - sine * centre_x - cosine * centre_y,
    )


def _blend(degenerate: npt.NDArray[np.generic], image: Images, factor: Floats) -> Images:
    """degenerate + factor * (image - degenerate), clipped to 0..255 and truncated: factor 1 is the image."""
    base = degenerate.astype(np.float32)
    mixed: Floats = image - base
    mixed = mixed * factor
    mixed += base
    return np.clip(mixed, 0, 255).astype(np.uint8)


def _grey(images: Images) -> Images:
    """ITU-R 601 luma [n, 1, ...] of [n, 3, ...] in 16-bit fixed point."""
    wide = images.astype(np.uint32)
    luma = wide[:, 0] * 19595 + wide[:, 1] * 38470 + wide[:, 2] * 7471 + 0x8000 >> 16
    return luma.astype(np.uint8)[:, None]


def _grey_mean(images: Images) -> Integers:
    """Mean grey level [n] of [n, C, P], halves rounded up."""
    grey = _grey(images) if images.shape[1] == 3 else images
    pixels = grey.shape[2]
    total = grey.sum(axis=(1, 2), dtype=np.intp)
    mean: Integers = (2 * total + pixels) // (2 * pixels)
    return mean


def _autocontrast_tables(images: Images) -> Images:
    """Tables [n, C, 256] that stretch each channel of [n, C, P] to 0..255; a constant channel stays."""
    low = images.min(axis=2, keepdims=True).astype(np.float64)
    spread = images.max(axis=2, keepdims=True) - low
    scale = 255.0 / np.maximum(spread, 1)
    # value * scale + offset, not (value - low) * scale: the two truncate differently at whole numbers.
    stretched = _IDENTITY_TABLE * scale + -low * scale
    return np.where(spread > 0, np.clip(stretched, 0, 255).astype(np.uint8), _IDENTITY_TABLE)


def _equalize_tables(images: Images) -> Images:
    """Tables [n, C, 256] that flatten the histogram of each channel of [n, C, P].

    A channel with fewer than 255 pixels below its brightest level stays as it is, so 8 x 8 images always do.
    """
    count, channels, pixels = images.shape
    offsets = 256 * np.arange(count * channels).reshape(count, channels, 1)
    histogram = np.bincount((images + offsets).ravel(), minlength=256 * offsets.size)
    histogram = histogram.reshape(count, channels, 256)
    brightest = np.take_along_axis(histogram, images.max(axis=2, keepdims=True).astype(np.intp), axis=2)
    step = (pixels - brightest) // 255
    below = np.cumsum(histogram, axis=2) - histogram
    flattened = np.minimum((below + step // 2) // np.maximum(step, 1), 255).astype(np.uint8)
    return np.where(step > 0, flattened, _IDENTITY_TABLE)


def _smooth(images: Images) -> Images:
    """3 x 3 mean with centre weight 5, rounded; the one-pixel border is kept."""
    wide = images.astype(np.uint16)
    columns = wide[..., :, :-2] + wide[..., :, 1:-1] + wide[..., :, 2:]
    total = columns[..., :-2, :] + columns[..., 1:-1, :] + columns[..., 2:, :] + 4 * wide[..., 1:-1, 1:-1]
    smoothed: Images = images.copy()
    smoothed[..., 1:-1, 1:-1] = (total + 6) // 13
    return smoothed
