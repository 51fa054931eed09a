"""Any samples of Python's: a sequence, or a function that makes an iterator, of (x, y) or (x, y, time).

x is a uint8 array, a Pillow image, encoded bytes or a path; y a word or a whole number. A sequence (`len`, `[i]`) is
read at any place. What can only be gone through is gone through once to learn the labels, and again as the stream
comes; a run that is resumed goes through it from its beginning, so it must give the same samples each time, and one
whose label has changed is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.streams.dataset import DataError, Dataset, Request
from budgeted.streams.listing import Builder, Listing
from budgeted.streams.own import dataset_of


def dataset_of_samples(samples: Any, request: Request, name: str = "samples") -> Dataset:
    """A data set of a sequence, an iterable that begins anew each time, or a function that gives one of them."""
    return dataset_of(list_samples(samples, name), request, name)


def list_samples(samples: Any, name: str) -> Listing:
    made = samples() if callable(samples) and not hasattr(samples, "__iter__") else samples
    if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
        return _indexed(made, name)
    return _iterated(samples, name)


def word(label: Any, where: str) -> str:
    """A label as a word; what is neither word nor whole number is refused."""
    if isinstance(label, str):
        return label
    if hasattr(label, "item") and getattr(label, "ndim", 0) == 0:  # a number of numpy or torch
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise DataError(f"{where}: the label {label!r} is neither a word nor a whole number: correct it")
    return str(label)


def _indexed(samples: Any, name: str) -> Listing:
    builder, labels = Builder(), getattr(samples, "targets", getattr(samples, "labels", None))
    if labels is not None and len(labels) != len(samples):
        labels = None
    for i in range(len(samples)):
        where = f"{name} sample {i}"
        if labels is not None:
            builder.add(b"", word(labels[i], where), where)
        else:
            _, label, time = taken(samples[i], where)
            builder.add(b"", word(label, where), where, time=time)
    return builder.listing(lambda i: taken(samples[i], f"{name} sample {i}")[0], lambda i: f"{name} sample {i}", name)


def _iterated(make: Any, name: str) -> Listing:
    builder = Builder()
    for i, sample in enumerate(_begun(make, name)):
        where = f"{name} sample {i}"
        _, label, time = taken(sample, where)
        builder.add(b"", word(label, where), where, time=time)
    walk = Walk(lambda: _begun(make, name), name, builder.word_at)
    return builder.listing(walk, lambda i: f"{name} sample {i}", name, sequential=True)


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
            for sample in self._iterator:
                self._next += 1
                if self._next == index + 1:
                    where = f"{self._name} sample {index}"
                    x, label, _ = taken(sample, where)
                    if word(label, where) != self._label_at(index):
                        raise DataError(f"{where}: another label than the first time: give the same samples each time")
                    self._last = (index, x)
                    return x
            raise DataError(f"{self._name}: ended after {self._next} samples: give the same samples each time")


def taken(sample: Any, where: str) -> tuple[Any, Any, float | None]:
    """x, y and time of a sample."""
    if not isinstance(sample, tuple | list) or len(sample) not in (2, 3):
        raise DataError(f"{where} is no (x, y) and no (x, y, time): give one of these")
    time = None if len(sample) == 2 or sample[2] is None else float(sample[2])
    return sample[0], sample[1], time


def _begun(make: Any, name: str) -> Iterator[Any]:
    given: Iterable[Any] = make() if callable(make) and not hasattr(make, "__iter__") else make
    try:
        iterator = iter(given)
    except TypeError:
        raise BudgetedError(f"{name} gives {type(given).__name__}, no samples: give an iterable of (x, y)") from None
    if iterator is make:
        raise BudgetedError(f"{name} can be gone through once only: give a function that makes it anew")
    return iterator
