"""Random crops of feature maps, resized to the size that they were: boxes, and bilinear resizing as two products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

_RATIOS = (3 / 4, 4 / 3)  # of width to height


def boxes(count: int, size: Sequence[int], smallest: float, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    """Rows of top, left, height, width: an area between a share of the map and all of it, of a ratio drawn evenly in
    its logarithm; after ten that do not fit, the whole map."""
    height, width = size
    found = np.tile(np.array([0, 0, height, width], np.int64), (count, 1))
    for row in range(count):
        for _ in range(10):
            area = generator.uniform(smallest, 1) * height * width
            ratio = math.exp(generator.uniform(math.log(_RATIOS[0]), math.log(_RATIOS[1])))
            across, down = max(1, round(math.sqrt(area * ratio))), max(1, round(math.sqrt(area / ratio)))
            if across <= width and down <= height:
                place = generator.integers(height - down + 1), generator.integers(width - across + 1)
                found[row] = *place, down, across
                break
    return found


def weights_of(found: npt.NDArray[np.int64], size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """For every box the matrices that resize its rows and its columns to the whole map's."""
    down = torch.stack([_bilinear(top, length, size[0]) for top, _, length, _ in found.tolist()])
    return down, torch.stack([_bilinear(left, length, size[1]) for _, left, _, length in found.tolist()])


def _bilinear(start: int, length: int, size: int) -> Tensor:
    """[size, size]: what each new place takes of the old ones start ... start + length - 1 (corners not aligned)."""
    matrix, places = torch.zeros(size, size), torch.eye(length, dtype=torch.float64)
    matrix[:, start : start + length] = F.interpolate(places[None], size, mode="linear", align_corners=False)[0].T
    return matrix


def resized(features: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Maps [samples, channels, height, width] by their matrices."""
    return torch.einsum("schw,sxw,syh->scyx", features, across, down)
