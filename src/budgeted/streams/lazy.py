"""Images that are decoded each time they are indexed, for sets that no memory holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError
from budgeted.streams.listing import Listing
from budgeted.streams.pixels import Pixels


class LazyImages:
    """Images [N, C, H, W] of some rows of a listing; the same bits each time, whoever asks and in which order."""

    def __init__(self, listing: Listing, rows: NDArray[np.integer] | range, pixels: Pixels) -> None:
        self._listing = listing
        self._rows = rows
        self._pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self._rows), *self._pixels.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, index: int) -> str:
        """What an error calls this sample."""
        return self._listing.where(int(self._rows[index]))

    def source(self, index: int) -> Any:
        """The sample as it lies in its container: a path, encoded bytes, an image or an array."""
        return self._listing.read(int(self._rows[index]))

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        if isinstance(index, int | np.integer):
            if not -len(self) <= index < len(self):
                raise IndexError(f"sample {index} of {len(self)}")
            return self._one(int(index) % len(self))
        chosen = np.arange(len(self))[index]
        if chosen.ndim == 0:
            return self._one(int(chosen))
        images = np.empty((len(chosen), *self._pixels.shape), np.uint8)
        for row, which in enumerate(chosen):
            images[row] = self._one(int(which))
        return images

    def readable(self) -> NDArray[np.int64]:
        """The places of the images that can be decoded, found by decoding each."""
        return np.array([i for i in range(len(self)) if self._is_readable(i)], np.int64)

    def _is_readable(self, index: int) -> bool:
        try:
            self._one(index)
        except DataError:
            return False
        return True

    def _one(self, index: int) -> NDArray[np.uint8]:
        row = int(self._rows[index])
        return self._pixels.of(self._listing.read(row), self._listing.where(row))
