"""Use frequencies: how often each sample and each class was replayed, with forgetting that costs nothing.

Every draw multiplies all frequencies by 1 - r. Instead of touching them, one global `scale` is multiplied,
and what is stored is the frequency divided by it: a use adds 1 / scale. When the scale has fallen to one
half, one pass folds it into the stored numbers. Between two folds lie about 0.7 k |M| / B draws, so a draw
pays for a few slots of it. The frequencies of samples are a column of the memory, so their bytes are
counted with the slots.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from budgeted.budget.kept import Keeps
from budgeted.replay.column import Column
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory

FREQUENCY = Column("frequency", (), torch.float32, host=True)

Floats = npt.NDArray[np.float64]

_FOLD_BELOW = 0.5


class Frequencies(Keeps):
    """c_i of every slot and C_y of every class, both stored relative to `scale`."""

    kept = ("scale", "of_class")

    def __init__(self, classes: int, reduce_on_eviction: bool) -> None:
        self.scale = 1.0
        self.of_class: Floats = np.zeros(classes)
        self._reduce = reduce_on_eviction

    def ensure_classes(self, classes: int) -> None:
        missing = classes - self.of_class.size
        if missing > 0:
            self.of_class = np.concatenate([self.of_class, np.zeros(missing)])

    def decay(self, rate: float) -> None:
        self.scale *= 1.0 - rate

    def use(self, memory: Memory, slots: Slots, labels: Slots) -> tuple[npt.NDArray[np.float32], Floats]:
        """Count one use of each slot; what was stored before, and by how much it really grew after
        rounding.
        """
        stored = memory.host(FREQUENCY.name)
        before = stored[slots]
        stored[slots] = before + np.float32(1.0 / self.scale)
        grown = stored[slots].astype(np.float64) - before
        np.add.at(self.of_class, labels, grown)
        return before, grown

    def evict(self, memory: Memory, slot: int) -> tuple[int, float]:
        """The class of a sample that leaves, and by how much its C_y falls."""
        label = int(memory.labels[slot])
        if not self._reduce:
            return label, 0.0
        leaving = float(memory.host(FREQUENCY.name)[slot])
        self.of_class[label] -= leaving
        return label, leaving

    @property
    def due(self) -> bool:
        """Whether the scale has fallen far enough to be folded in."""
        return self.scale < _FOLD_BELOW

    def fold(self, memory: Memory) -> None:
        """One pass: the stored numbers become the frequencies themselves, and C_y loses its rounding
        errors.
        """
        stored = memory.host(FREQUENCY.name)
        stored *= np.float32(self.scale)
        self.of_class *= self.scale
        self.scale = 1.0
        self.recount(memory)

    def recount(self, memory: Memory) -> None:
        """C_y afresh as the sum of c_i, unless it also remembers samples that have left."""
        if self._reduce:
            weights = memory.host(FREQUENCY.name)
            sums = np.bincount(memory.labels, weights, self.of_class.size)
            self.of_class = sums.astype(np.float64)  # an empty memory gives integers

    def of_samples(self, memory: Memory) -> Floats:
        """c_i of every occupied slot."""
        return memory.host(FREQUENCY.name).astype(np.float64) * self.scale
