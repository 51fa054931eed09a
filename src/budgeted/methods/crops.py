"""Random crops of feature maps, resized to the size that they were: boxes, and bilinear resizing as two products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_RATIOS = (3 / 4, 4 / 3)  # of width to height
_TRIES = 10


def boxes(count: int, size: Sequence[int], smallest: float, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of top, left, height, width: an area between a share of the map and all of it, of a ratio drawn evenly in
    its logarithm; after ten that do not fit, the whole map."""
    height, width = size
    found = np.tile(np.array([0, 0, height, width], np.int64), (count, 1))
    for row in range(count):
        for _ in range(_TRIES):
            area = generator.uniform(smallest, 1) * height * width
            ratio = math.exp(generator.uniform(math.log(_RATIOS[0]), math.log(_RATIOS[1])))
            across, down = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
            if across <= width and down <= height:
                top, left = generator.integers(height - down + 1), generator.integers(width - across + 1)
                found[row] = top, left, down, across
                break
    return found


def weights_of(found: npt.NDArray[np.int64], size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For every box the matrices that resize its rows and its columns to the whole map's."""
    height, width = size
    down = np.stack([_bilinear(top, length, height) for top, _, length, _ in found])
    across = np.stack([_bilinear(left, length, width) for _, left, _, length in found])
    return torch.from_numpy(down), torch.from_numpy(across)


def _bilinear(start: int, length: int, size: int) -> npt.NDArray[np.float32]:
    """[size, size]: what each new place takes of the old ones start ... start + length - 1 (corners not aligned)."""
    places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    lower = np.floor(places).astype(np.int64)
    upper = np.minimum(lower + 1, length - 1)
    matrix = np.zeros((size, size), np.float32)
    rows = np.arange(size)
    np.add.at(matrix, (rows, start + lower), 1 - (places - lower))
    np.add.at(matrix, (rows, start + upper), places - lower)
    return matrix


def resized(features: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Maps [samples, channels, height, width] by their matrices."""
    samples, channels, height, width = features.shape
    rows = torch.bmm(features.reshape(samples, channels * height, width), across.transpose(1, 2))
    columns = rows.view(samples, channels, height, width).transpose(2, 3).reshape(samples, channels * width, height)
    return torch.bmm(columns, down.transpose(1, 2)).view(samples, channels, width, height).transpose(2, 3)
