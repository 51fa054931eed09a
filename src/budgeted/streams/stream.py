"""A stream: sample indices laid in one order, seekable to any sample in constant time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import orders
from budgeted.streams.dataset import Dataset
from budgeted.streams.trim import give_back

_ORDERS = ("gaussian", "disjoint", "blurry", "domain", "arrival")
#: Samples above which what the sorting took is worth giving back.
_MANY = 100_000


def order_names() -> tuple[str, ...]:
    """The orders that `make_stream` knows."""
    return _ORDERS


@dataclass(frozen=True, eq=False)
class Stream:
    """Which sample arrives at which position. The arrays are read-only: a stream never changes."""

    order: str
    seed: int
    #: Index into the training samples, for every position.
    indices: orders.Indices
    #: Task for every position, never falling; None for gaussian and arrival, which have no boundaries.
    tasks: orders.Indices | None
    #: i / n of the class at every position of a gaussian stream; None for the others.
    nominal: NDArray[np.float64] | None

    def __post_init__(self) -> None:
        for array in (self.indices, self.tasks, self.nominal):
            if array is not None:
                array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, position: int) -> int: ...

    @overload
    def __getitem__(self, position: slice) -> orders.Indices: ...

    def __getitem__(self, position: int | slice) -> int | orders.Indices:
        if isinstance(position, slice):
            return self.indices[position]
        return int(self.indices[position])

    def __iter__(self) -> Iterator[int]:
        return map(int, self.indices)

    def from_sample(self, position: int) -> orders.Indices:
        """Everything that arrives from `position` on, as a view: nothing before it is touched or replayed."""
        if not 0 <= position <= len(self):
            raise BudgetedError(f"position {position} is outside the stream: choose between 0 and {len(self)}")
        return self.indices[position:]

    def task_at(self, position: int) -> int | None:
        """The task of the sample at `position`, or None in a stream without boundaries."""
        return None if self.tasks is None else int(self.tasks[position])

    def boundaries(self) -> tuple[int, ...]:
        """The positions at which a task other than the first begins; none in a gaussian stream."""
        if self.tasks is None:
            return ()
        return tuple(int(each) + 1 for each in np.flatnonzero(np.diff(self.tasks)))

    def fingerprint(self) -> str:
        """A digest of the whole order, by which a run knows its stream again."""
        return hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()


def make_stream(
    order: str,
    labels: ArrayLike,
    seed: int,
    *,
    domains: ArrayLike | None = None,
    times: ArrayLike | None = None,
    class_order: Sequence[int] | orders.Indices | None = None,
    limit: int | None = None,
    tasks: int = 5,
    sd: float = 0.1,
    major: float = 0.92,
) -> Stream:
    """A stream over samples with these labels; settings that an order has no use for are left unused.

    With `limit`, only a class-balanced subset of so many samples flows; indices still point into all of them.
    """
    if order not in _ORDERS:
        raise UnknownName("order", order, _ORDERS)
    every = np.asarray(labels)
    chosen = np.arange(len(every), dtype=np.int64) if limit is None else orders.limit(every, limit, seed)
    known = every[chosen]
    if order == "gaussian":
        nominal = orders.nominal_times(known, seed, class_order=class_order)
        local = orders.gaussian(known, seed, sd=sd, class_order=class_order)
        return Stream(order, seed, chosen[local], None, nominal[local])
    if order == "arrival":
        local = np.arange(len(chosen)) if times is None else orders.by_time(np.asarray(times)[chosen])
        return Stream(order, seed, chosen[local], None, None)
    if order == "disjoint":
        task_of = orders.disjoint_tasks(known, seed, tasks=tasks, class_order=class_order)
    elif order == "blurry":
        task_of = orders.blurry_tasks(known, seed, tasks=tasks, major=major, class_order=class_order)
    else:
        if domains is None:
            raise BudgetedError("a domain order needs a domain for each sample: choose gaussian, disjoint or blurry")
        domains_of = np.asarray(domains)
        if domains_of.shape != every.shape:
            raise BudgetedError(f"{len(every)} labels but domains of shape {domains_of.shape}: give one per sample")
        task_of = orders.domain_tasks(known, domains_of[chosen])
    local = orders.by_task(task_of, seed)
    return Stream(order, seed, chosen[local], task_of[local], None)


def stream_of(
    dataset: Dataset,
    order: str,
    seed: int,
    *,
    limit: int | None = None,
    tasks: int = 5,
    sd: float = 0.1,
    major: float = 0.92,
) -> Stream:
    """A stream over a data set's training samples, in the data set's own class order for this seed."""
    if dataset.sequential and order != "arrival":
        raise BudgetedError(f"the samples of {dataset.name} come in one order only: choose the order arrival")
    made = make_stream(
        order,
        dataset.train_labels,
        seed,
        domains=dataset.train_domains,
        times=dataset.train_times,
        class_order=dataset.info.class_order(seed),
        limit=limit,
        tasks=tasks,
        sd=sd,
        major=major,
    )
    if len(made) >= _MANY:
        give_back()
    return made
