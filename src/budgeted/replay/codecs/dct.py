"""The cosine transform of 8 x 8 blocks, exact: whole numbers in, whole numbers out, the same bits on every machine.

The orthonormal basis is rounded to 14 bits behind the point. Products and sums of whole numbers below 2^53 are exact in
float64 in whatever order a library adds them, so a fast matrix product gives the bits of slow whole numbers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from budgeted.replay.codecs.bits import Integers
from budgeted.replay.codecs.colour import Numbers, padded

POINT = 14
"""bits of a coefficient behind the point"""
SIDE = 8
OPERATIONS = 2 * SIDE * SIDE
"""for a coefficient or a pixel, either way: a row of the basis, multiplied and added"""


@cache
def zigzag() -> npt.NDArray[np.int64]:
    """Places of an 8 x 8 block from low to high frequency, along its diagonals there and back."""
    places = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    places.sort(key=lambda at: (sum(at), at[0] if sum(at) % 2 else at[1]))
    return np.array([row * SIDE + column for row, column in places])


@cache
def basis() -> npt.NDArray[np.float64]:
    """[coefficient in zig-zag order, pixel of a block], times 2^POINT."""
    frequency, place = np.arange(SIDE)[:, None], np.arange(SIDE)[None, :]
    one = np.sqrt(2 / SIDE) * np.cos((2 * place + 1) * frequency * np.pi / (2 * SIDE))
    one[0] /= np.sqrt(2)
    both = np.einsum("ux,vy->uvxy", one, one).reshape(SIDE**2, SIDE**2)
    return np.asarray(np.round(both[zigzag()] * 2**POINT))


def forward(planes: Numbers) -> Integers:
    """[…, height, width] of 0 to 255 as [blocks over all planes, 64] coefficients, POINT bits behind the point."""
    whole = padded(planes, SIDE)
    *front, height, width = whole.shape
    apart = whole.reshape(-1, height // SIDE, SIDE, width // SIDE, SIDE).transpose(0, 1, 3, 2, 4)
    centred = apart.reshape(-1, SIDE**2).astype(np.float64) - 128
    return (centred @ basis().T).astype(np.int64).reshape(*front, -1, SIDE**2)


def backward(coefficients: npt.NDArray[np.float64], height: int, width: int) -> Numbers:
    """What was transformed; coefficients [planes, blocks, 64] are whole numbers, in quarters: two bits behind the
    point."""
    down, right = -(-height // SIDE), -(-width // SIDE)
    pixels = coefficients.reshape(-1, SIDE**2) @ basis()
    whole = np.floor(pixels * 2.0 ** -(POINT + 2) + 128.5).clip(0, 255).astype(np.int32)  # rounded, still exact
    apart = whole.reshape(-1, down, right, SIDE, SIDE).transpose(0, 1, 3, 2, 4)
    return apart.reshape(-1, down * SIDE, right * SIDE)[:, :height, :width]
