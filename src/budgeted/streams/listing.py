"""Samples as they lie in a container: a folder, a manifest, shards, a table, an iterator.

What each is labelled is known at once; the picture itself is read when it is asked for. Every container of a user's
gives a `Listing`, and one path (`own.dataset_of`) makes a data set of it: the same pictures in the same order are the
same data set, bit for bit, whatever they lie in.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError
from budgeted.streams.labels import demand_class, demand_text
from budgeted.streams.spool import Spool

TRAIN, TEST = 0, 1
_WHOLE = re.compile(r"-?[0-9]{1,4000}")  # Python makes no numbers of more than 4,300 digits
_PARTS = {"train": TRAIN, "training": TRAIN, "test": TEST, "val": TEST, "valid": TEST, "validation": TEST}


@dataclass(frozen=True, eq=False)
class Places:
    """How to read each sample: all that is kept of a listing once its labels were taken from it."""

    #: The picture: a path, encoded bytes, a Pillow image or an array.
    read: Callable[[int], Any]
    #: What an error calls it.
    where: Callable[[int], str]
    #: Where it lies and how long it is: what tells this sample from another without reading it.
    key: Callable[[int], bytes]


@dataclass(frozen=True, eq=False)
class Listing:
    """Labels, parts, domains and times of all samples, and how to read each."""

    #: The classes met, and of each sample which one it is.
    words: tuple[str, ...]
    codes: NDArray[np.int32]
    #: As of `Places`.
    read: Callable[[int], Any]
    where: Callable[[int], str]
    key: Callable[[int], bytes]
    #: TRAIN or TEST of each sample; None where the container does not say.
    parts: NDArray[np.int8] | None = None
    #: "" stands for none.
    domain_words: tuple[str, ...] = ()
    domains: NDArray[np.int32] | None = None
    times: NDArray[np.float64] | None = None
    #: Whether `read` must be asked in rising order.
    sequential: bool = False
    #: The classes in the order that the container declares; none: in sorted order.
    declared: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.codes)

    def places(self) -> Places:
        return Places(self.read, self.where, self.key)


class Builder:
    """Takes samples one by one and keeps a few bytes of each; what is long goes to the spool."""

    def __init__(self, classes: Iterable[str] = ()) -> None:
        """classes: where given, labels are these names, or their numbers from 0."""
        self.spool = Spool()
        self._words: dict[str, int] = {}
        self._by_code: list[str] = []
        self._codes = array("i")
        self._parts = array("b")
        self._domain_words: dict[str, int] = {}
        self._domains = array("i")
        self._times = array("d")
        self._declared = tuple(classes)
        self._known = frozenset(self._declared)

    def add(
        self, locator: bytes, label: str, where: str, *, part: str = "", domain: str = "", time: float | None = None
    ) -> None:
        """`where`: file and line of what is added, for an error."""
        label = self._checked(label, where)
        if (part_number := _PARTS.get(part.lower(), -1 if part == "" else None)) is None:
            raise DataError(f"{where}: split {part!r} is none of {', '.join(_PARTS)}: correct it")
        self.spool.append(locator)
        self._codes.append(self._words.setdefault(label, len(self._words)))
        self._parts.append(part_number)
        if domain or self._domains:
            self._fill(self._domains, self._domain_words.setdefault("", 0))
            self._domains.append(self._domain_words.setdefault(domain, len(self._domain_words)))
        if time is not None or self._times:
            self._fill(self._times, np.nan)
            self._times.append(np.nan if time is None else time)

    def _fill(self, column: array[Any], value: float) -> None:
        """A column begins when the first sample has something to say in it."""
        if not column:
            column.extend([value] * (len(self._codes) - 1))

    def _checked(self, label: str, where: str) -> str:
        if label in self._words:
            return label
        if not self._declared:
            demand_class(label, where)
            return label
        demand_text(label, where)
        if label in self._known:
            return label
        if not label.isascii() or not label.isdecimal() or len(label) > 9 or int(label) >= len(self._declared):
            raise DataError(f"{where}: label {label!r} is outside the {len(self._declared)} classes: correct it")
        return self._declared[int(label)]

    def __len__(self) -> int:
        return len(self._codes)

    def word_at(self, index: int) -> str:
        """The class of a sample."""
        if len(self._by_code) != len(self._words):
            self._by_code = list(self._words)
        return self._by_code[self._codes[index]]

    @property
    def words(self) -> tuple[str, ...]:
        """The classes met so far."""
        return tuple(self._words)

    def listing(
        self,
        read: Callable[[int], Any],
        where: Callable[[int], str],
        name: str,
        *,
        sequential: bool = False,
        key: Callable[[int], bytes] | None = None,
    ) -> Listing:
        if not self._codes:
            raise DataError(f"{name}: no samples in it: check the path")
        self.spool.seal()
        parts, times = np.frombuffer(self._parts, np.int8), np.frombuffer(self._times or array("d"), np.float64)
        if (unsaid := (parts < 0)).any() and not unsaid.all():
            raise DataError(f"{name}: some samples say train or test, others do not: give all a split, or none")
        if (timeless := np.isnan(times)).any() and not timeless.all():
            row = int(np.flatnonzero(timeless)[0])
            raise DataError(f"{where(row)} has no time, others have: give all a time, or none")
        return Listing(
            tuple(self._words),
            np.frombuffer(self._codes, np.int32),
            read,
            where,
            key or self.spool.__getitem__,
            None if unsaid.any() else parts,
            tuple(self._domain_words),
            np.frombuffer(self._domains, np.int32) if self._domains else None,
            times if len(times) and not timeless.any() else None,
            sequential,
            self._declared,
        )


def with_length(spool: Spool, path: Callable[[int], str]) -> Callable[[int], bytes]:
    """The key of a sample that is a file: its name, and its length now."""

    def key(index: int) -> bytes:
        try:
            size = os.stat(path(index)).st_size
        except (OSError, ValueError):
            size = -1
        return spool[index] + f" {size}".encode()

    return key


def in_order(words: Iterable[str]) -> list[str]:
    """By number where all are numbers, else by letter: never as they were met."""
    found = list(words)
    if all(_WHOLE.fullmatch(word) for word in found):
        return sorted(found, key=lambda word: (int(word), word))
    return sorted(found)
