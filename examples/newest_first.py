"""A retrieval of your own: half of a batch are the samples stored last, half are drawn uniformly.

budgeted run --method er --retrieval examples/newest_first.py:NewestFirst --set retrieval.share=0.25
budgeted check examples/newest_first.py:NewestFirst
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from budgeted.replay import Memory, Retrieval
from budgeted.replay.membership import Slots


@dataclass
class NewestFirst(Retrieval):
    """The samples stored last, and others uniformly."""

    share: float = 0.5
    """of the batch that is drawn from the samples stored last"""
    window: int = 32
    """how many samples count as the last"""
    latest: deque[int] = field(init=False, repr=False)

    kept = ("latest",)  # bytes and checkpoints follow from this line

    def __post_init__(self) -> None:
        self.latest = deque(maxlen=self.window)

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        count = min(batch_size, len(memory))
        newest = np.array(self.latest, np.int64)
        taken = generator.choice(newest, min(int(count * self.share), newest.size), replace=False)
        others = np.setdiff1d(np.arange(len(memory)), taken)
        return np.concatenate([taken, generator.choice(others, count - taken.size, replace=False)])

    def stored(self, memory: Memory, slot: int) -> None:
        self.latest.append(slot)

    def evicting(self, memory: Memory, slot: int) -> None:
        if slot in self.latest:
            self.latest.remove(slot)

    def moved(self, memory: Memory, old: int, new: int) -> None:
        if old in self.latest:
            self.latest[self.latest.index(old)] = new

    def adopt(self, memory: Memory) -> None:
        """Slots were renumbered: nobody knows any more which came last."""
        self.latest.clear()
