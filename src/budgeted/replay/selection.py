"""Selection: which arriving samples are stored, and in whose place.

A policy answers `select(memory, label, generator)` once for every arriving sample, with the slot to store
it in or None. Generators are numpy's, `numpy.random.Generator(numpy.random.PCG64(seed))`: scalar draws are
several times faster than torch's. The whole state of one is the dictionary `generator.bit_generator.state`
of strings and integers: it goes to JSON as it is, and assigning it back continues the same sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch

from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.registry import Registry
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory


class Selection(Keeps, ABC):
    """Which samples stay. The fields of one that is a dataclass are its settings (`--set selection.NAME=VALUE`)."""

    @abstractmethod
    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        """The slot for a sample that has just arrived, or None to let it go."""

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """The slots of `count` stored samples to lose when the memory must shrink: uniformly chosen."""
        return generator.choice(len(memory), count, replace=False)

    @classmethod
    def settings_type(cls) -> type:
        """The dataclass whose fields are its settings."""
        return cls

    @classmethod
    def made(cls, settings: Mapping[str, Any]) -> Self:
        return cls(**settings)


SELECTIONS: Registry[type[Selection]] = Registry("selection", "selections")


@runtime_checkable
class Considers(Protocol):
    """A selection that looks at all samples of a stream batch, and at the model, before they are offered to it."""

    def consider(self, learner: Lent, samples: torch.Tensor, labels: torch.Tensor) -> None:
        """These samples (uint8) come next, in this order; what is run on the model is charged."""


def balanced_counts(counts: Slots, stored: int) -> Slots:
    """How many of each class stay when `stored` in all may: the largest class loses one after another."""
    remaining = counts.copy()
    for _ in range(int(counts.sum()) - stored):
        remaining[remaining.argmax()] -= 1
    return remaining


@SELECTIONS.register("reservoir")
class Reservoir(Selection):
    """A uniform sample of all that has arrived: the n-th is stored with probability capacity / n."""

    kept = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        self.seen += 1
        if not memory.full:
            return len(memory)
        slot = int(generator.integers(self.seen))
        return slot if slot < len(memory) else None


@SELECTIONS.register("greedy-balanced")
class GreedyBalanced(Selection):
    """Every newcomer is stored; when full, a random member of the largest class makes room.

    The largest class is found after counting the newcomer, ties going to the lowest label. The newcomer
    itself never leaves, so a class of which nothing else is stored is passed over.
    """

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if not memory.full:
            return len(memory)
        counts = memory.counts
        if label < counts.size and counts[label]:
            counts = counts.copy()
            counts[label] += 1
        members = memory.membership.members(int(counts.argmax()))
        return int(members[generator.integers(members.size)])

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """One after another from whichever class is then the largest."""
        remaining = balanced_counts(memory.counts, len(memory) - count)
        chosen = [
            memory.membership.members(label)[
                generator.choice(memory.counts[label], memory.counts[label] - remaining[label], replace=False)
            ]
            for label in np.flatnonzero(memory.counts - remaining).tolist()
        ]
        return np.concatenate(chosen).astype(np.int64) if chosen else np.zeros(0, np.int64)


@SELECTIONS.register("greedy-quota")
class GreedyQuota(GreedyBalanced):
    """GDumb's sampler: a newcomer enters while its class has less than an even share of the memory, or goes by.

    The share is the capacity over the classes met so far. When full, a random member of the largest class makes room.
    """

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        counts, capacity = memory.counts, memory.capacity
        held = int(counts[label]) if label < counts.size else 0
        if capacity is not None and held * max(counts.size, label + 1) >= capacity:
            return None
        if not memory.full:
            return len(memory)
        members = memory.membership.members(int(counts.argmax()))
        return int(members[generator.integers(members.size)])


@SELECTIONS.register("unlimited")
class Unlimited(Selection):
    """Everything is stored."""

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if memory.full:
            raise BudgetedError("selection `unlimited` met a full memory: make the memory with capacity None")
        return len(memory)

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        raise BudgetedError("selection `unlimited` gives nothing up: choose another one for a limited memory")
