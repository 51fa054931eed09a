"""How many slots a memory will have whose slots differ in bytes: estimated from some samples of the training set."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch

from budgeted.learner import Learner
from budgeted.replay import Memory
from budgeted.streams import Dataset

LOOKED_AT = 256
_LARGEST = 1 << 30  # bytes up to which a slot's place takes four


@dataclass(frozen=True)
class Typical:
    """What some samples take as the memory would store them."""

    looked_at: int
    each: float
    """bytes of a slot, everything in it"""
    shared: int
    """bytes that the codec keeps for all slots"""

    def slots_in(self, nbytes: int) -> int:
        return max(1, int((nbytes - self.shared) / self.each))


def typical_of(learner: Learner, dataset: Dataset) -> Typical:
    """Samples spread evenly over the training set, stored with the learner's codec and columns; where codes get
    shorter as the stream grows, at their shortest."""
    images = dataset.train_images
    places = np.unique(np.linspace(0, len(images) - 1, LOOKED_AT).astype(np.int64))
    columns = (*learner.memory.sample_columns, *learner.memory.columns_beside)
    memory = Memory(columns, codec=copy.deepcopy(learner.memory.codec), limit=_LARGEST)
    shared = memory.nbytes()
    for start in range(0, len(places), 32):
        some = np.ascontiguousarray(images[places[start : start + 32]])
        memory.extend(torch.from_numpy(some), np.zeros(len(some), np.int64))
    memory.shorten(0)
    return Typical(len(places), (memory.nbytes() - shared) / len(places), shared)
