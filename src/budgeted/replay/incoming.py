"""The samples that just arrived, for retrievals that compare the memory with them.

A method with a stream part in its batches (ER and most others) hands them over before every draw. A method that trains
from the memory alone has none: there the samples stored last, half a batch, stand for them, and are drawn with
the batch as its stream part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any

import numpy as np
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import Facts, Retrieval


class MeetsTheStream(Retrieval):
    """A retrieval that looks at what just arrived, and at the model, before it draws: a policy overrides `choose`."""

    kept = ("_latest",)
    wants_stream = True

    def __init__(self, standing_in: int) -> None:
        """standing_in: how many of the samples stored last stand for the stream; 0 where batches have a stream part."""
        self._latest: deque[int] = deque(maxlen=standing_in)
        self._learner: Lent | None = None
        self._incoming: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def standing_in(facts: Facts) -> int:
        """Half a batch, where none of it is of the stream."""
        return 0 if facts.new else facts.batch // 2

    @abstractmethod
    def choose(
        self, memory: Memory, count: int, generator: np.random.Generator, incoming: tuple[Tensor, Tensor], taken: Slots
    ) -> Slots:
        """`count` different slots beside those `taken`, which the memory has, for a batch with these samples."""

    def meet(self, learner: Lent, samples: Any, labels: Tensor) -> None:
        self._learner, self._incoming = learner, (samples, labels)

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        if self._incoming is None:
            raise BudgetedError("this retrieval compares the memory with the stream: call meet() before draw()")
        incoming, self._incoming = self._incoming, None
        taken = np.zeros(0, np.int64)
        if len(incoming[1]) == 0 and self._latest:
            taken = np.array(self._latest, np.int64)[-batch_size:]
            stored = memory.gather(taken)
            incoming = stored.samples, stored.labels
        count = min(batch_size, len(memory)) - len(taken)
        self.operations = len(taken) + count
        chosen = self.choose(memory, count, generator, incoming, taken) if count else np.zeros(0, np.int64)
        return np.concatenate([taken, chosen])

    @property
    def learner(self) -> Lent:
        if self._learner is None:
            raise BudgetedError("this retrieval looks at the model: call meet() before draw()")
        return self._learner

    def evicting(self, memory: Memory, slot: int) -> None:
        if slot in self._latest:
            self._latest.remove(slot)

    def stored(self, memory: Memory, slot: int) -> None:
        self._latest.append(slot)

    def moved(self, memory: Memory, old: int, new: int) -> None:
        if old in self._latest:
            self._latest[self._latest.index(old)] = new

    def adopt(self, memory: Memory) -> None:
        """Renumbered: nobody knows any more which slots came last, until the next ones come."""
        self._latest.clear()


def uniform_beside(memory: Memory, count: int, taken: Slots, generator: np.random.Generator) -> Slots:
    """`count` different slots, uniformly, of those not taken."""
    if taken.size == 0:
        return generator.choice(len(memory), count, replace=False)
    left = np.setdiff1d(np.arange(len(memory)), taken)
    drawn: Slots = generator.choice(left, count, replace=False)
    return drawn
