"""Samples in the order in which they arrive, the next ones decoded while the learner is at work.

Threads read and decode; the samples are handed out in their order, and what a sample is depends on its index alone.
So neither a result nor a resumed run changes a bit by it: only the waiting does. What is decoded ahead is `ahead`
samples, whatever the length of the stream.

The threads are daemons, and whoever is interrupted does not wait for them: a user's iterator may block for ever, and
the pools of `concurrent.futures` are joined when the interpreter ends.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from budgeted.streams.dataset import DataError, Dataset
from budgeted.streams.image_file import quiet_pillow
from budgeted.streams.records import Records

#: Seconds that a decoding thread is given to end after an error, so that none is cut off without need.
_PATIENCE = 1.0


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
        indexed = isinstance(dataset.train_images, np.ndarray | Records)
        self._in_memory = indexed and not dataset.sequential
        count = 0 if indexed else min(threads, 1) if dataset.sequential else threads
        self._pool = _Pool(self._get, count) if count > 0 else None
        if self._pool is not None:
            quiet_pillow()
        self._coming: deque[Future[Sample | Bad]] = deque()
        #: Seconds for which the one who iterates had to wait for a sample, or decoded it themselves.
        self.waited = 0.0

    def __enter__(self) -> Arriving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.close(None if kind is None else _PATIENCE)

    def __iter__(self) -> Iterator[Sample | Bad]:
        while True:
            start = time.perf_counter()
            sample = self._coming.popleft().result() if self._ask() else None
            self.waited += time.perf_counter() - start
            if sample is None:
                return
            yield sample

    def at_hand(self) -> Sample | None:
        """The sample that comes next, if there is one and it need not be waited for; asking takes nothing away."""
        if (self._pool is None and not self._in_memory) or not self._ask():
            return None
        first = self._coming[0]
        if not first.done() or first.exception() is not None or isinstance(found := first.result(), Bad):
            return None
        return found

    def _ask(self) -> bool:
        """For as many samples as are decoded ahead, or for one; whether any is still to come."""
        wanted = 1 if self._pool is None else self._ahead + 1
        while len(self._coming) < wanted and (index := next(self._indices, None)) is not None:
            self._coming.append(self._here(int(index)) if self._pool is None else self._pool.submit(int(index)))
        return bool(self._coming)

    def _here(self, index: int) -> Future[Sample | Bad]:
        answer: Future[Sample | Bad] = Future()
        _answer(answer, self._get, index)
        return answer

    def _get(self, index: int) -> Sample | Bad:
        try:
            return self._dataset.sample(index)
        except DataError as problem:
            if not self._skip_bad:
                raise
            return Bad(index, str(problem))


class _Pool:
    """Daemon threads that answer what is asked in its order."""

    def __init__(self, function: Callable[[int], Sample | Bad], count: int) -> None:
        self._function = function
        self._asked: queue.SimpleQueue[tuple[int, Future[Sample | Bad]] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"decode_{i}", daemon=True) for i in range(count)]
        self._started = self._closed = False

    def submit(self, index: int) -> Future[Sample | Bad]:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        answer: Future[Sample | Bad] = Future()
        self._asked.put((index, answer))
        return answer

    def close(self, patience: float | None) -> None:
        """Nothing that is not begun is begun any more; waits for what is, at most `patience` seconds if given."""
        self._closed = True
        for _ in self._threads:
            self._asked.put(None)
        end = None if patience is None else time.monotonic() + patience
        for thread in self._threads if self._started else ():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None and not self._closed:
            index, answer = asked
            _answer(answer, self._function, index)
            del asked, answer  # or the last sample is held while the next is waited for


def _answer(answer: Future[Sample | Bad], function: Callable[[int], Sample | Bad], index: int) -> None:
    try:
        answer.set_result(function(index))
    except BaseException as problem:  # it belongs to the one who asked
        answer.set_exception(problem)


def arriving(
    dataset: Dataset, indices: Iterable[int], *, ahead: int = 32, threads: int = 1, skip_bad: bool = False
) -> Arriving:
    """The training samples of these indices, in this order.

    With `skip_bad`, a sample that cannot be read comes as a `Bad`; otherwise it is an error at its place. With 0
    threads nothing is decoded ahead.
    """
    return Arriving(dataset, indices, ahead, threads, skip_bad)
