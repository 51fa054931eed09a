"""Retrieval: which stored samples are replayed. What every policy is made from, and the two that keep nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from budgeted.budget.kept import Keeps
from budgeted.limits import limited, refuse_outside_limits
from budgeted.registry import Registry
from budgeted.replay.column import Column
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory


@dataclass(frozen=True)
class Facts:
    """What is known of a learner when its retrieval is made."""

    classes: int | None
    """how many there will be, if that is known: their bytes are reserved at once"""
    count_coordinates: Callable[[], int]
    """how many weights have their per-sample gradients sampled; asking draws them"""
    batch: int
    """samples in a training batch"""
    new: int
    """how many of them are of the stream"""
    plain: bool = False
    """whether the loss of a step is the plain one of its batch"""


class Retrieval(Keeps, ABC):
    """Which samples are replayed. A policy says `draw`, and overrides what else it needs.

    `memory.watch(retrieval)` once, then `draw` and `observe` in turn. The fields of one that is a dataclass are its
    settings (`--set retrieval.NAME=VALUE`).
    """

    columns: tuple[Column, ...] = ()
    """What it keeps in every slot; the memory is made with these columns and counts their bytes."""
    wants_gradients: bool = False
    """Whether `observe` has a use for sampled per-sample gradients; if not, nobody need compute them."""
    wants_stream: bool = False
    """Whether it looks at the samples that just arrived, and at the model, before it draws."""
    independent: bool = False
    """Whether a draw depends on what is stored and on chance alone, and leaves nothing behind: then it may be made
    while the step before is under way."""
    of_classes: bool = False
    """Whether it looks at the logits of classes: then it is of no use to a problem that is not about classes."""
    operations: int = 0
    """of the latest draw under rule `real`, where no dispatcher sees them: one per element of an elementwise
    operation, one per input of a reduction, two per multiply-accumulate, nothing for a move"""

    @classmethod
    def made(cls, settings: Mapping[str, Any], facts: Facts) -> Self:
        """One with these settings, for such a learner."""
        return cls(**settings)

    @classmethod
    def settings_type(cls) -> type:
        """The dataclass whose fields are its settings."""
        return cls

    @abstractmethod
    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        """min(batch_size, len(memory)) different slots, in the order drawn."""

    def meet(self, learner: Lent, samples: Any, labels: torch.Tensor) -> None:
        """These samples of the stream will be in the batch; what is run on the network is charged."""

    def ahead(self) -> Mapping[str, torch.Tensor]:
        """Gradients of the plain loss on the samples that it met, by parameter, if the draw has computed them for the
        step: then these samples are not run again, and the gradients are added to those of the step."""
        return {}

    def observe(self, values: torch.Tensor, present: torch.Tensor, labels: torch.Tensor) -> None:
        """The step is done: `values` [B, d] are the gradients of each drawn sample at d sampled weights,
        of which only those `present` [d] were computed; `labels` [B] are the classes of the samples.
        """

    def price(self) -> int:
        """Operations of the latest `draw` and `observe`."""
        return self.operations

    def index_nbytes(self) -> int:
        """Working memory of its index, which the memory's content determines."""
        return 0

    def evicting(self, memory: Memory, slot: int) -> None:
        """The sample in this slot is about to leave."""

    def stored(self, memory: Memory, slot: int) -> None:
        """A sample has just come into this slot."""

    def moved(self, memory: Memory, old: int, new: int) -> None:
        """The sample of slot `old` is in slot `new` from now on; of the one that was there, `evicting` told."""
        self.adopt(memory)

    def adopt(self, memory: Memory) -> None:
        """Slots were renumbered or filled in bulk: take the memory as it now is."""


RETRIEVALS: Registry[type[Retrieval]] = Registry("retrieval", "retrievals", lambda: Retrieval)


@RETRIEVALS.register("uniform")
class Uniform(Retrieval):
    """Every stored sample is equally likely.

    numpy draws without replacement by Floyd's algorithm, in O(batch), unless the population is below
    10,000 or below fifty batches, where it shuffles the tail of a list instead: never a pass over a large
    memory.
    """

    independent = True

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        count = min(batch_size, len(memory))
        self.operations = count
        return generator.choice(len(memory), count, replace=False)


@RETRIEVALS.register("class-balanced")
@dataclass(eq=False)
class ClassBalanced(Retrieval):
    """Every class with a sample left to draw is equally likely, then every one of these samples.

    A class all of whose samples are in the batch is left out of the lottery, so a small memory still fills
    the batch. One with fewer than `young` samples has a part of its chance only, in proportion, so that the first
    samples of a new class are not drilled.
    """

    independent = True  # no annotation: it is no setting
    young: int = limited(0, "0 or more")
    """samples below which a class is drawn less often, in proportion; 0: never"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "retrieval.")

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        count = min(batch_size, len(memory))
        open_classes = np.flatnonzero(memory.counts).tolist()
        left = {label: int(memory.counts[label]) for label in open_classes}
        chances = {label: min(1.0, stored / self.young) for label, stored in left.items()} if self.young else None
        drawn: dict[int, None] = {}
        self.operations = memory.counts.size + 2 * count
        for for_class, for_sample in generator.random((count, 2)).tolist():
            if chances is None:
                label = open_classes[int(for_class * len(open_classes))]
            else:
                label = _by_chance(for_class, open_classes, chances)
                self.operations += 3 * len(open_classes)
            members = memory.membership.members(label)
            slot = int(members[int(for_sample * members.size)])
            while slot in drawn:  # the class stays chosen; only a batch's worth of its members can be taken
                slot = int(members[generator.integers(members.size)])
                self.operations += 1
            drawn[slot] = None
            left[label] -= 1
            if left[label] == 0:
                open_classes.remove(label)
        return np.fromiter(drawn, np.int64, len(drawn))


def _by_chance(drawn: float, labels: list[int], chances: Mapping[int, float]) -> int:
    """A label in proportion to its chance, by a number drawn from 0 to 1."""
    rest = drawn * sum(chances[label] for label in labels)
    for label in labels:
        rest -= chances[label]
        if rest < 0:
            return label
    return labels[-1]
