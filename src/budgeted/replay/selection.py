"""Selection: which arriving samples are stored, and in whose place.

A policy answers `select(memory, label, generator)` once for every arriving sample, with the slot to store
it in or None. Generators are numpy's, `numpy.random.Generator(numpy.random.PCG64(seed))`: scalar draws are
several times faster than torch's. The whole state of one is the dictionary `generator.bit_generator.state`
of strings and integers: it goes to JSON as it is, and assigning it back continues the same sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from budgeted.errors import BudgetedError
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory


class Selection(Protocol):
    """Which samples stay."""

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        """The slot for a sample that has just arrived, or None to let it go."""

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """The slots of `count` stored samples to lose when the memory must shrink."""

    def state(self) -> dict[str, torch.Tensor]: ...

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None: ...


class Reservoir:
    """A uniform sample of all that has arrived: the n-th is stored with probability capacity / n."""

    def __init__(self) -> None:
        self.seen = 0

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        self.seen += 1
        if not memory.full:
            return len(memory)
        slot = int(generator.integers(self.seen))
        return slot if slot < len(memory) else None

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """Uniformly chosen: what is left is a reservoir of the smaller capacity."""
        return generator.choice(len(memory), count, replace=False)

    def state(self) -> dict[str, torch.Tensor]:
        return {"seen": torch.tensor(self.seen)}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.seen = int(state["seen"])


class GreedyBalanced:
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
        remaining = memory.counts.copy()
        for _ in range(count):
            remaining[remaining.argmax()] -= 1
        chosen = [
            memory.membership.members(label)[
                generator.choice(memory.counts[label], memory.counts[label] - remaining[label], replace=False)
            ]
            for label in np.flatnonzero(memory.counts - remaining).tolist()
        ]
        return np.concatenate(chosen).astype(np.int64) if chosen else np.zeros(0, np.int64)

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        return None


class Unlimited:
    """Everything is stored."""

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if memory.full:
            raise BudgetedError("selection `unlimited` met a full memory: make the memory with capacity None")
        return len(memory)

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        raise BudgetedError("selection `unlimited` gives nothing up: choose another one for a limited memory")

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        return None
