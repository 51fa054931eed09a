"""Rate-adaptive codes: sharp while there is room, and shorter, in place, as the stream grows.

A picture is transformed as in JPEG: light and colour (4:2:0), blocks of 8 x 8, cosines, one quantiser step for all of
them. Of a block, coefficients are kept in zig-zag order up to its last that is not zero. The quantiser cuts magnitudes
off instead of rounding them, so that a step twice as large is the same code with a bit less of every coefficient: what
is shortened is, bit for bit, what would have been encoded at the coarser level at once. Levels go by halves: first the
trailing coefficients of all blocks lose a bit, and with it most of them their place, then the leading ones.

When the memory has no room for a newcomer, slots go to the next level one after another, so that it is always full. No
sample leaves before all are at the coarsest level; from then on samples leave as with any other codec.

A code is: its level; of each block the place of its last coefficient; the mean of each block, above the lowest of its
plane; which coefficients before the last are not zero; their signs; and their magnitudes in Elias' gamma code, first
how many bits each has, then the bits. All of a kind stand together, so that a batch is decoded by a few dozen array
operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay.codec import CODE, CODECS, Samples, Stored
from budgeted.replay.codecs.bits import BitReader, BitWriter, Integers
from budgeted.replay.codecs.colour import RESOLUTION, TRANSFORM, doubled, from_ycc, halved, to_ycc
from budgeted.replay.codecs.dct import OPERATIONS, POINT, SIDE, backward, forward
from budgeted.replay.codecs.picture import PictureCodec, damaged, opened, sealed

LEADING = 15
"""coefficients of a block that lose their bit after the others"""
OPERATIONS_PER_COEFFICIENT = 20
"""the price of a code, for every coefficient that there may be: where its bits lie, and what they say"""
_AT_ONCE = 32  # slots that are shortened together
_LEVEL, _LAST, _LOWEST, _WIDTH = 8, 6, 12, 4  # bits
_ZERO = 1 << (_LOWEST - 1)
_OTHERS = SIDE**2 - 1  # coefficients of a block beside its mean


@dataclass(frozen=True)
class Planes:
    """Quantised coefficients of pictures: [pictures, blocks of all planes, 64] in zig-zag order, means first."""

    levels: Integers
    values: Integers


@CODECS.register("progressive")
@dataclass
class Progressive(PictureCodec):
    """Cosine codes that lose bits as the stream grows, so that all of it stays, from sharp to the coarsest step."""

    step: int = 4
    """of the quantiser at first, in grey levels: 1, 2, 4, …, 64"""
    coarsest: int = 16
    """step at which samples begin to leave instead"""

    varying = True
    shortens = True
    kept = ("level", "swept")

    def __post_init__(self) -> None:
        for name in ("step", "coarsest"):
            if getattr(self, name) not in (1, 2, 4, 8, 16, 32, 64):
                raise BudgetedError(f"codec progressive: {name} must be 1, 2, 4, … or 64, got {getattr(self, name)}")
        if self.coarsest < self.step:
            raise BudgetedError(f"codec progressive: coarsest must be at least step, {self.step}, got {self.coarsest}")
        self.level = 0
        """that newcomers get, two for each doubling of the step"""
        self.swept = 0
        """slots that are at the next level already"""

    # -- from pictures to codes ------------------------------------------------------------------------------------

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        return {CODE: self.encode_batch(sample[None])[CODE][0]}

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        pixels = samples.cpu().numpy()
        if self.shape[0] == 1:
            exact = forward(pixels.astype(np.int32))[:, 0]
        else:
            planes = to_ycc(pixels)
            colour = forward(halved(planes[:, 1:]))
            exact = np.concatenate([forward(planes[:, 0]), colour[:, 0], colour[:, 1]], axis=1)
        levels = np.full(len(pixels), self.level, np.int64)
        return {CODE: [sealed(code) for code in packed(self._cut(exact, levels, POINT), self._planes())]}

    def decode(self, stored: Stored) -> Tensor:
        channels, height, width = self.shape
        coefficients = self._midway(self._unpacked(stored[CODE]))
        light_blocks, *colour_blocks = self._planes()
        light = backward(coefficients[:, :light_blocks], height, width)
        if channels == 1:
            return torch.from_numpy(light.astype(np.uint8)[:, None])
        rows, columns = -(-height // 2), -(-width // 2)
        colour = coefficients[:, light_blocks:].reshape(2 * len(light), colour_blocks[0], SIDE**2)
        whole = doubled(backward(colour, rows, columns).reshape(-1, 2, rows, columns), height, width)
        return torch.from_numpy(from_ycc(light, whole[:, 0], whole[:, 1]))

    # -- shorter and shorter ---------------------------------------------------------------------------------------

    def next_to_shorten(self, slots: int) -> range | None:
        while self.level < self.most:
            if self.swept < slots:
                chosen = range(self.swept, min(slots, self.swept + _AT_ONCE))
                self.swept = chosen.stop
                return chosen
            if not slots:
                return None
            self.level, self.swept = self.level + 1, 0
        return None

    def shortened(self, stored: Stored) -> dict[str, Any]:
        planes = self._unpacked(stored[CODE])
        levels = np.maximum(planes.levels, min(self.level + 1, self.most))
        shorter = self._cut(planes.values, levels, 0, planes.levels)
        return {CODE: [sealed(code) for code in packed(shorter, self._planes())]}

    @property
    def most(self) -> int:
        """The level at which nothing is shortened any more."""
        return 2 * ((self.coarsest // self.step).bit_length() - 1)

    # -- the rest --------------------------------------------------------------------------------------------------

    def operations(self, decoded: int, encoded: int = 0) -> int:
        channels, height, width = self.shape
        colour = height * width * (TRANSFORM + 2 * RESOLUTION) if channels == 3 else 0
        each = SIDE**2 * sum(self._planes()) * (OPERATIONS + OPERATIONS_PER_COEFFICIENT) + colour
        return (decoded + encoded) * each

    def _planes(self) -> tuple[int, ...]:
        """Blocks of every plane."""
        channels, height, width = self.shape
        light = -(-height // SIDE) * -(-width // SIDE)
        colour = -(-height // (2 * SIDE)) * -(-width // (2 * SIDE))
        return (light,) if channels == 1 else (light, colour, colour)

    def _shifts(self, levels: Integers) -> Integers:
        """[pictures, 1, 64]: bits below the step of every coefficient."""
        finest = self.step.bit_length() - 1
        trailing = np.arange(SIDE**2) >= LEADING
        return finest + (levels[:, None, None] + trailing) // 2

    def _cut(self, values: Integers, levels: Integers, below: int, before: Integers | None = None) -> Planes:
        """At these levels, from numbers with `below` bits behind the point, or from quantised ones `before`."""
        shifts = self._shifts(levels) + below - (0 if before is None else self._shifts(before))
        cut = np.sign(values) * (np.abs(values) >> shifts)
        cut[:, :, 0] = values[:, :, 0] >> shifts[:, :, 0]  # means have no zone around zero
        return Planes(levels, cut)

    def _midway(self, planes: Planes) -> npt.NDArray[np.float64]:
        """Coefficients in quarters, in the middle of what was cut off."""
        steps = np.left_shift(1, self._shifts(planes.levels))
        found = 4 * planes.values * steps + 2 * np.sign(planes.values) * steps
        found[:, :, 0] = (4 * planes.values[:, :, 0] + 2) * steps[:, :, 0]
        return np.asarray(found, np.float64)

    def _unpacked(self, codes: Sequence[Tensor]) -> Planes:
        return unpacked([opened(code) for code in codes], self._planes())


def packed(planes: Planes, blocks: Sequence[int]) -> list[bytes]:
    """The codes of quantised pictures whose planes have so many blocks."""
    count, whole = len(planes.values), sum(blocks)
    means, others = planes.values[:, :, 0], planes.values[:, :, 1:]
    there = others != 0
    last = np.where(there.any(2), _OTHERS - there[:, :, ::-1].argmax(2), 0)
    starts = np.cumsum([0, *blocks[:-1]])
    lowest = np.minimum.reduceat(means, starts, axis=1)
    widths = _bit_length(np.maximum.reduceat(means, starts, axis=1) - lowest)
    above = means - np.repeat(lowest, blocks, axis=1)
    writer = BitWriter(count)
    writer.put_matrix(planes.levels[:, None], _LEVEL)
    writer.put_matrix(last, _LAST)
    writer.put_matrix(lowest + _ZERO, _LOWEST)
    writer.put_matrix(widths, _WIDTH)
    writer.put_numbers(np.full(count, whole), above.ravel(), np.repeat(widths, blocks, axis=1).ravel())
    asked = np.arange(1, SIDE**2) < last[:, :, None]
    writer.put(asked.sum((1, 2)), there[asked])
    places = np.flatnonzero(there)
    owner = places // (whole * _OTHERS)
    found = others[there]
    each = np.bincount(owner, minlength=count)
    writer.put(each, found < 0)
    magnitudes = np.abs(found)
    extra = _bit_length(magnitudes) - 1
    active, bits = owner, extra
    while len(active):
        longer = bits > 0
        writer.put(np.bincount(active, minlength=count), longer)
        active, bits = active[longer], bits[longer] - 1
    writer.put_numbers(each, magnitudes, extra)
    return writer.codes()


def unpacked(codes: Sequence[bytes], blocks: Sequence[int]) -> Planes:
    """What was packed."""
    count, whole, reader = len(codes), sum(blocks), BitReader(codes)
    levels = reader.matrix(1, _LEVEL)[:, 0]
    last = reader.matrix(whole, _LAST)
    lowest = reader.matrix(len(blocks), _LOWEST) - _ZERO
    widths = reader.matrix(len(blocks), _WIDTH)
    above = reader.numbers(np.full(count, whole), np.repeat(widths, blocks, axis=1).ravel())
    at = np.arange(1, SIDE**2)
    there = at == last[:, :, None]
    asked = at < last[:, :, None]
    there[asked] = reader.take(asked.sum((1, 2))).view(bool)
    places = np.flatnonzero(there)
    owner = places // (whole * _OTHERS)
    each = np.bincount(owner, minlength=count)
    negative = reader.take(each).view(bool)
    extra = np.zeros(len(owner), np.int64)
    active = np.arange(len(owner))
    while len(active):
        longer = reader.take(np.bincount(owner[active], minlength=count)).view(bool)
        active = active[longer]
        extra[active] += 1
    magnitudes = (1 << extra) + reader.numbers(each, extra)
    if (reader.lengths() != [len(code) for code in codes]).any():
        raise damaged()
    others = np.zeros(there.size, np.int64)
    others[places] = np.where(negative, -magnitudes, magnitudes)
    values = np.empty((count, whole, SIDE**2), np.int64)
    values[:, :, 0] = above.reshape(count, -1) + np.repeat(lowest, blocks, axis=1)
    values[:, :, 1:] = others.reshape(count, whole, _OTHERS)
    return Planes(levels, values)


def _bit_length(values: Integers) -> Integers:
    """Of whole numbers from 0 on: exact, as they are far below 2^53."""
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)
