"""Images that are decoded each time they are indexed, for sets that no memory holds."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError, Images
from budgeted.streams.files import open_regular
from budgeted.streams.listing import Places
from budgeted.streams.pixels import Pixels, named_failures

#: Test images whose pixels take more bytes than this are decoded anew for each evaluation.
HELD_TEST = 2 * 2**30
#: Stands in a digest for what cannot be read.
_BAD = hashlib.blake2b(b"bad", digest_size=32).digest()


class LazyImages:
    """Images [N, C, H, W] of some rows of a container; the same bits each time, whoever asks and in which order."""

    def __init__(self, places: Places, rows: NDArray[np.integer] | range, pixels: Pixels) -> None:
        self._places = places
        self._rows = rows
        self._pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (len(self._rows), *self._pixels.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def where(self, index: int) -> str:
        """What an error calls this sample."""
        return self._places.where(int(self._rows[index]))

    def source(self, index: int) -> Any:
        """The sample as it lies in its container: a path, encoded bytes, an image or an array."""
        return self._places.read(int(self._rows[index]))

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

    def digest(self, shown: NDArray[np.integer], looked_into: int = 1000) -> str:
        """Of the samples at these places: where each lies and how long it is, and all bytes of some, spread evenly."""
        found = hashlib.blake2b(repr((len(shown), *self._pixels.shape)).encode(), digest_size=32)
        for index in shown:
            row = int(self._rows[int(index)])
            found.update(self._places.key(row) + b"\0")
        for which in np.linspace(0, len(shown) - 1, min(len(shown), looked_into)).astype(int):
            try:
                found.update(_digest_of(self.source(int(shown[which])), self.where(int(shown[which]))))
            except DataError:  # whoever meets it passes it over or refuses it, which is not for a digest to decide
                found.update(_BAD)
        return found.hexdigest()

    def readable(self, places: NDArray[np.int64], bad: list[str] | None = None) -> NDArray[np.int64]:
        """Those of the places whose images can be decoded, found by decoding each; `bad` gets why each other cannot."""
        found = []
        for place in places:
            try:
                self._one(int(place))
            except DataError as problem:
                if bad is not None:
                    bad.append(str(problem))
            else:
                found.append(place)
        return np.array(found, np.int64)

    def _one(self, index: int) -> NDArray[np.uint8]:
        row = int(self._rows[index])
        return self._pixels.of(self._places.read(row), self._places.where(row))


class _Chosen:
    """Some of some images."""

    def __init__(self, images: Images, places: NDArray[np.int64]) -> None:
        self._images, self._places = images, places

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self._places), *self._images.shape[1:])

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any, /) -> Any:
        return self._images[self._places[index]]


def held(
    images: Images, places: NDArray[np.int64], skip_bad: bool, bad: list[str] | None = None
) -> tuple[Images, NDArray[np.int64]]:
    """The images at these places, in memory if they take at most `HELD_TEST` bytes; without bad ones, if allowed.

    bad: gets the reason of each that was left out.
    """
    if skip_bad and isinstance(images, LazyImages):
        bad = [] if bad is None else bad
        places = places[np.isin(places, images.readable(places, bad))]
        if len(places) == 0:
            raise DataError(f"none of the test images can be read; the first: {bad[0] if bad else 'there is none'}")
    if isinstance(images, np.ndarray) or len(places) * int(np.prod(images.shape[1:])) <= HELD_TEST:
        return images[places], places
    return _Chosen(images, places), places


def _digest_of(source: Any, where: str) -> bytes:
    if isinstance(source, str | os.PathLike):
        try:
            with open_regular(os.fsdecode(source)) as file:
                source = file.read()
        except OSError as problem:
            source = str(problem.errno).encode()
    with named_failures(where):  # an image may be decoded only now
        content = source if isinstance(source, bytes) else np.ascontiguousarray(np.asarray(source)).tobytes()
    return hashlib.blake2b(content, digest_size=32).digest()
