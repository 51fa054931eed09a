"""Samples in the order in which they arrive, the next ones decoded while the learner is at work.

Threads read and decode; the samples are handed out in their order, and what a sample is depends on its index alone.
So neither a result nor a resumed run changes a bit by it: only the waiting does. What is decoded ahead is `ahead`
samples, whatever the length of the stream.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from budgeted.streams.dataset import DataError, Dataset
from budgeted.streams.image_file import quiet_pillow
from budgeted.streams.records import Records


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be read, and why."""

    index: int
    reason: str


Sample = tuple[Any, int]


class Arriving:
    """Iterate over it once; use it as a context, which ends its threads."""

    def __init__(self, dataset: Dataset, indices: Iterable[int], ahead: int, threads: int, skip_bad: bool) -> None:
        self._dataset = dataset
        self._indices = iter(indices)
        self._skip_bad = skip_bad
        self._ahead = max(1, ahead)
        # An array is indexed faster than a thread is asked; an iterator is gone through by one hand.
        decodes = not isinstance(dataset.train_images, np.ndarray | Records)
        count = 0 if not decodes else min(threads, 1) if dataset.sequential else threads
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="decode") if count > 0 else None
        if self._pool is not None:
            quiet_pillow()
        #: Seconds for which the one who iterates had to wait for a sample, or decoded it themselves.
        self.waited = 0.0

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Sample | Bad]:
        return self._here() if self._pool is None else self._from(self._pool)

    def _here(self) -> Iterator[Sample | Bad]:
        for index in self._indices:
            start = time.perf_counter()
            sample = self._get(int(index))
            self.waited += time.perf_counter() - start
            yield sample

    def _from(self, pool: ThreadPoolExecutor) -> Iterator[Sample | Bad]:
        coming: deque[Future[Sample | Bad]] = deque()
        for index in self._indices:
            coming.append(pool.submit(self._get, int(index)))
            if len(coming) > self._ahead:
                yield self._first(coming)
        while coming:
            yield self._first(coming)

    def _first(self, coming: deque[Future[Sample | Bad]]) -> Sample | Bad:
        start = time.perf_counter()
        sample = coming.popleft().result()
        self.waited += time.perf_counter() - start
        return sample

    def _get(self, index: int) -> Sample | Bad:
        try:
            return self._dataset.sample(index)
        except DataError as problem:
            if not self._skip_bad:
                raise
            return Bad(index, str(problem))


def arriving(
    dataset: Dataset, indices: Iterable[int], *, ahead: int = 32, threads: int = 1, skip_bad: bool = False
) -> Arriving:
    """The training samples of these indices, in this order.

    With `skip_bad`, a sample that cannot be read comes as a `Bad`; otherwise it is an error at its place. With 0
    threads nothing is decoded ahead.
    """
    return Arriving(dataset, indices, ahead, threads, skip_bad)
