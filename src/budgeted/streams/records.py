"""Samples of several parts by name, such as pictures and a text: arrays with the samples as their first dimension.

They stand where images stand: one by its number is a dictionary of arrays, several are `Records` again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgeted.errors import BudgetedError


class Records:
    """Some samples, held in memory."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        if not arrays or len({len(array) for array in arrays.values()}) != 1:
            raise BudgetedError("the parts of samples must be as many of each: give arrays of one length")
        self.arrays = dict(arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def shape(self) -> tuple[int, int]:
        """How many there are, and the bytes of one."""
        return len(self), sum(array[:1].nbytes for array in self.arrays.values())

    def __getitem__(self, index: Any, /) -> Any:
        if isinstance(index, int | np.integer):
            return {name: array[index] for name, array in self.arrays.items()}
        return Records({name: array[index] for name, array in self.arrays.items()})

    def tensors(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self.arrays.items()}

    def digest(self, shown: NDArray[np.integer], looked_into: int = 0) -> str:
        """Of all bytes of the samples at these places."""
        found = hashlib.blake2b(digest_size=32)
        for name, array in self.arrays.items():
            found.update(repr((name, len(shown), array.shape[1:])).encode())
            found.update(np.ascontiguousarray(array[shown]).tobytes())
        return found.hexdigest()


def as_sample(found: Any) -> Tensor | dict[str, Tensor]:
    """One sample, or a batch of them, as tensors."""
    if isinstance(found, Records):
        return found.tensors()
    if isinstance(found, Mapping):
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}
    return torch.from_numpy(np.ascontiguousarray(found))
