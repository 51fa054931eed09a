"""Reading a few numbers out of every sample of a tensor, wherever its memory format has put them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Elements read at once. A longer block of memory goes back to the system when it is freed, and having it mapped again
# takes as long as the products do.
MOST_READ = 2**17


class Gather:
    """Reads the same `offsets[entry, position]` in every sample: `[batch, positions * entries]`, float32 at least.

    The offsets follow the strides of the tensor, so that neither channels_last nor a slice is copied first; they
    leave the batch out, so that the index stays in the cache; and they go position by position, through memory once.
    """

    def __init__(self, offsets: Tensor, like: Tensor) -> None:
        self.index = offsets.t().reshape(-1).to(like.device, torch.int32)
        entries, positions = offsets.shape
        self.shape = (like.shape[0], positions, entries)
        # Where one sample begins right after the other, rows of that width are read 2.5 times as fast.
        last = sum((size - 1) * stride for size, stride in zip(like.shape[1:], like.stride()[1:], strict=True))
        width = like.stride(0) if last + 1 == like.stride(0) else int(offsets.max()) + 1
        self._width = width
        self._strides = (like.stride(0), 1)

    def __call__(self, source: Tensor) -> Tensor:
        read = source.as_strided((source.shape[0], self._width), self._strides).index_select(1, self.index)
        return read if read.dtype is torch.float32 or read.dtype is torch.float64 else read.float()


class DotProducts:
    """Products of what two gathers read, summed over the positions; `inside[entry, position]` says which count.

    Between two layers the caches have forgotten this code, and fetching it again takes as long as running it: few
    calls, and the same ones over again, are what makes it fast.
    """

    def __init__(self, left: Gather, right: Gather, inside: Tensor | None = None) -> None:
        self._left = left
        self._right = right
        self._inside = None if inside is None else inside.t().reshape(-1).to(left.index.device, torch.float32)
        batch, positions, entries = left.shape
        self._shape = (-1, positions, entries)
        self._part = max(1, MOST_READ // (positions * entries))
        self._whole = batch <= self._part

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        if self._whole:
            return self._of(left, right)
        return torch.cat(
            [self._of(*part) for part in zip(left.split(self._part), right.split(self._part), strict=True)]
        )

    def _of(self, left: Tensor, right: Tensor) -> Tensor:
        products = self._left(left)
        products.mul_(self._right(right))
        if self._inside is not None:
            products.mul_(self._inside)
        return products.view(self._shape).sum(1)


def channel_offsets(channels: Tensor, sizes: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Offsets `[channel, position]` in a sample: the first size is the channels, the others are positions."""
    positions = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(sizes[1:], strides[1:], strict=True):
        positions = (positions[:, None] + torch.arange(size) * stride).reshape(-1)
    return channels[:, None] * strides[0] + positions
