"""Selection: which arriving samples are stored, and in whose place.

A policy answers `select(memory, label, generator)` once for every arriving sample, with the slot to store it in or
None; `store` asks it, and lets it give up more samples where one does not make room enough. Generators are numpy's,
`numpy.random.Generator(numpy.random.PCG64(seed))`: scalar draws are several times faster than torch's. The whole state
of one is the dictionary `generator.bit_generator.state` of strings and integers: it goes to JSON as it is, and
assigning it back continues the same sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.registry import MadeByName, Registry
from budgeted.replay.codec import Samples
from budgeted.replay.column import slots_for
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory


class Selection(MadeByName, Keeps, ABC):
    """Which samples stay. The fields of one that is a dataclass are its settings (`--set selection.NAME=VALUE`)."""

    of_classes: bool = False
    """Whether it looks at the logits of classes: then it is of no use to a problem that is not about classes."""

    @abstractmethod
    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        """The slot for a sample that has just arrived, or None to let it go."""

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """The slots of `count` stored samples to lose when the memory must shrink: uniformly chosen."""
        return generator.choice(len(memory), count, replace=False)


SELECTIONS: Registry[type[Selection]] = Registry("selection", "selections", lambda: Selection)


@runtime_checkable
class Considers(Protocol):
    """A selection that looks at all samples of a stream batch, and at the model, before they are offered to it."""

    def consider(self, learner: Lent, samples: Any, labels: torch.Tensor) -> None:
        """These samples (uint8) come next, in this order; what is run on the model is charged."""


def store(
    memory: Memory, selection: Selection, sample: Samples, label: int, generator: np.random.Generator
) -> int | None:
    """Offer a sample to the selection, and store it where that says: the slot that it is in, or None.

    A codec that shortens what is stored makes room first. Where slots differ in bytes, the one that it replaces may be
    too small: then that one leaves, and more of those that the selection gives up, until there is room. What cannot be
    stored is refused before anything changes.
    """
    memory.check(label)
    if not memory.varying:
        memory.check_sample(sample)
        slot = selection.select(memory, label, generator)
        if slot is not None:
            memory.put(slot, sample, label)
        return slot
    encoded = memory.encode(sample)
    memory.make_room(encoded)
    slot = selection.select(memory, label, generator)
    if slot is None:
        return None
    if not memory.fits(encoded, slot):
        if slot < len(memory):
            memory.evict(slot)
        while not memory.fits(encoded, len(memory)) and len(memory):
            memory.evict(int(selection.give_up(memory, 1, generator)[0]))
        slot = len(memory)
    memory.put_encoded(slot, encoded, label)
    return slot


def shrink_to(memory: Memory, selection: Selection, limit: int, generator: np.random.Generator) -> None:
    """Lower the bytes that a memory may take; as many samples leave as need be, and the selection says which."""
    if not memory.varying:
        capacity = slots_for(limit - memory.codec.nbytes(), memory.columns)
        leaving = len(memory) - capacity
        given_up = selection.give_up(memory, leaving, generator) if leaving > 0 else ()
        memory.shrink(capacity, [int(slot) for slot in given_up])
        return
    if limit < memory.smallest_limit:
        raise BudgetedError(f"{limit} bytes do not hold one slot: raise the byte budget")
    memory.shorten(limit)
    while len(memory) and memory.nbytes() > limit:
        average = memory.nbytes() / len(memory)
        count = min(len(memory), max(1, int((memory.nbytes() - limit) / average)))
        memory.evict(selection.give_up(memory, count, generator).tolist())
    memory.shrink(limit=limit)


def balanced_counts(counts: Slots, stored: int) -> Slots:
    """How many of each class stay when `stored` in all may: the largest class loses one after another."""
    remaining = counts.copy()
    for _ in range(int(counts.sum()) - stored):
        remaining[remaining.argmax()] -= 1
    return remaining


@SELECTIONS.register("reservoir")
class Reservoir(Selection):
    """A uniform sample of all that has arrived: the n-th is stored with probability capacity / n.

    Where slots differ in bytes, with probability (samples stored) / n once one had to leave, also while there happens
    to be room: whatever came when there was some would be too many otherwise.
    """

    kept = ("seen",)

    def __init__(self) -> None:
        self.seen = 0

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        self.seen += 1
        if not memory.full and (not memory.varying or len(memory) == self.seen - 1):
            return len(memory)
        slot = int(generator.integers(self.seen))
        if slot >= len(memory):
            return None
        return slot if memory.full else len(memory)


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
