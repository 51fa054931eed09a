"""Any samples of Python's: a sequence, or a function that makes an iterator, of (x, y) or (x, y, time).

x is a uint8 array, a Pillow image, encoded bytes or a path; y a word or a whole number; time a number or a date. What
their code raises is one line that says at which sample. A sequence (`len`, `[i]`) is
read at any place. What can only be gone through is gone through once to learn the labels, and again as the stream
comes; a run that is resumed goes through it from its beginning, so it must give the same samples each time, and one
whose label has changed is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from budgeted.errors import BudgetedError
from budgeted.streams.dataset import DataError, Dataset, Request
from budgeted.streams.labels import word
from budgeted.streams.listing import Builder, Listing
from budgeted.streams.own import dataset_of
from budgeted.streams.pixels import named_failures
from budgeted.streams.times import Times

#: What an iterator gives at its end.
_END: Any = object()
_ANEW = "give a function that makes it anew"


def dataset_of_samples(samples: Any, request: Request, name: str = "samples") -> Dataset:
    """A data set of a sequence, an iterable that begins anew each time, or a function that gives one of them."""
    return dataset_of(list_samples(samples, name, request.skip_bad), request, name)


def list_samples(samples: Any, name: str, skip_bad: bool = False) -> Listing:
    made = samples
    if _makes(samples):
        with named_failures(name):
            made = samples()
    if hasattr(made, "keys"):  # a dict, a table of pandas: its items go by names, not by numbers
        raise BudgetedError(
            f"{name} is a {type(made).__name__}, no samples: give a sequence of (x, y), such as "
            "list(zip(images, labels))"
        )
    if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
        return _indexed(made, name, skip_bad)
    return _iterated(samples, name)


def _indexed(samples: Any, name: str, skip_bad: bool) -> Listing:
    builder, times = Builder(), _Times()
    with named_failures(name):
        count = len(samples)
        labels = _labels_of(samples, count)
    bad: dict[int, str] = {}
    for i in range(count):
        where = f"{name} sample {i}"
        if labels is not None:
            with named_failures(where):
                label = labels[i]
            builder.add(b"", word(label, where), where)
            continue
        try:
            with named_failures(where):
                sample = samples[i]
        except DataError as problem:
            if not skip_bad:
                raise
            bad[i] = str(problem)
            continue
        _, label, time = taken(sample, where)
        label, seconds = word(label, where), times.seconds(time, where)
        # A bad one has no label of its own. It has that of the next, or else of the one before, so that it has a place
        # in the order, where it is met and counted; it is never learned from.
        for number in range(len(builder), i):
            builder.add(b"", label, f"{name} sample {number}", time=seconds)
        builder.add(b"", label, where, time=seconds)
    if bad and len(bad) == count:
        raise DataError(f"none of the {count:,} samples can be read; the first: {bad[0]}")
    for number in range(len(builder), count):
        builder.add(b"", label, f"{name} sample {number}", time=seconds)

    def read(index: int) -> Any:
        if index in bad:
            raise DataError(bad[index])
        where = f"{name} sample {index}"
        with named_failures(where):
            sample = samples[index]
        return taken(sample, where)[0]

    return builder.listing(read, lambda i: f"{name} sample {i}", name)


def _labels_of(samples: Any, count: int) -> Any:
    """A list of all labels, which spares looking at each sample; as torchvision's data sets have it."""
    for name in ("targets", "labels"):
        given: Any = getattr(samples, name, None)
        if hasattr(given, "__len__") and hasattr(given, "__getitem__") and not hasattr(given, "keys"):
            return given if len(given) == count else None
    return None


def _iterated(make: Any, name: str) -> Listing:
    builder, times = Builder(), _Times()
    iterator = _begun(make, name)
    while True:
        where = f"{name} sample {len(builder)}"
        with named_failures(f"{name} cannot go on behind its {len(builder):,} samples"):
            sample = next(iterator, _END)
        if sample is _END:
            break
        _, label, time = taken(sample, where)
        builder.add(b"", word(label, where), where, time=times.seconds(time, where))
    walk = Walk(lambda: _begun(make, name), name, builder.word_at)
    return builder.listing(walk, lambda i: f"{name} sample {i}", name, sequential=True)


class _Times:
    """As of a manifest: numbers or dates, not both."""

    def __init__(self) -> None:
        self._times = Times()

    def seconds(self, value: Any, where: str) -> float | None:
        if isinstance(value, np.datetime64):
            if np.isnat(value):
                raise DataError(f"{where}: the time is no time (NaT): correct it")
            value = value.astype("datetime64[us]").item()
        with named_failures(f"{where}: its time"):
            return self._times.seconds(value, where)


class Walk:
    """Goes through an iterator as far as the sample that is asked for; from the beginning where that lies behind."""

    def __init__(self, make: Callable[[], Iterator[Any]], name: str, label_at: Callable[[int], str]) -> None:
        self._make, self._name, self._label_at = make, name, label_at
        self._iterator: Iterator[Any] | None = None
        self._next = 0
        self._last: tuple[int, Any] | None = None
        self._lock = threading.Lock()

    def __call__(self, index: int) -> Any:
        with self._lock:
            if self._last is not None and self._last[0] == index:
                return self._last[1]
            if self._iterator is None or index < self._next:
                self._iterator, self._next = self._make(), 0
            while (sample := self._following()) is not _END:
                self._next += 1
                if self._next == index + 1:
                    where = f"{self._name} sample {index}"
                    x, label, _ = taken(sample, where)
                    if word(label, where) != self._label_at(index):
                        raise DataError(f"{where}: another label than the first time: give the same samples each time")
                    self._last = (index, x)
                    return x
            if self._next == 0:  # a function that gives one and the same iterator
                raise DataError(f"{self._name} can be gone through once only: {_ANEW}")
            raise DataError(f"{self._name}: ended after {self._next} samples: give the same samples each time")

    def _following(self) -> Any:
        assert self._iterator is not None
        try:
            return next(self._iterator, _END)
        except BaseException as problem:
            self._iterator = None  # what has raised is at its end: whoever asks again begins anew
            if not isinstance(problem, Exception) or isinstance(problem, MemoryError):
                raise
            told = str(problem) if isinstance(problem, BudgetedError) else f"{type(problem).__name__}: {problem}"
            # No DataError, which --skip-bad would pass over: none of the samples behind it can be had.
            raise BudgetedError(f"{self._name} cannot go on behind its {self._next:,} samples: {told}") from problem


def taken(sample: Any, where: str) -> tuple[Any, Any, Any]:
    """x, y and time of a sample; None where it has no time."""
    if not isinstance(sample, tuple | list) or len(sample) not in (2, 3):
        raise DataError(f"{where} is no (x, y) and no (x, y, time): give one of these")
    return sample[0], sample[1], sample[2] if len(sample) == 3 else None


def _makes(given: Any) -> bool:
    """Whether it is a function that makes the samples."""
    return callable(given) and not hasattr(given, "__iter__")


def _begun(make: Any, name: str) -> Iterator[Any]:
    with named_failures(name):
        given: Iterable[Any] = make() if _makes(make) else make
    try:
        with named_failures(name):
            iterator = iter(given)
    except DataError as problem:
        if not isinstance(problem.__cause__, TypeError):
            raise
        raise BudgetedError(f"{name} gives {type(given).__name__}, no samples: give an iterable of (x, y)") from None
    if iterator is make:
        raise BudgetedError(f"{name} can be gone through once only: {_ANEW}")
    return iterator
