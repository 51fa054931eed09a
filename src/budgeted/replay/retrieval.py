"""Retrieval: which stored samples are replayed. The protocol, and the two policies that keep no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from budgeted.budget import NOTHING, Cost
from budgeted.replay.column import Column, Rule
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.view import LearnerView


class Retrieval(Protocol):
    """Which samples are replayed. `memory.watch(retrieval)` once, then `draw` and `observe` in turn."""

    columns: tuple[Column, ...]
    """What it keeps in every slot; the memory is made with these columns and counts their bytes."""
    wants_gradients: bool
    """Whether `observe` has a use for sampled per-sample gradients; if not, nobody need compute them."""

    wants_stream: bool
    """Whether it looks at the samples that just arrived, and at the model, before it draws."""

    def meet(self, learner: LearnerView, samples: torch.Tensor, labels: torch.Tensor) -> None:
        """These samples of the stream (uint8) will be in the batch; what is run on the model is charged."""

    def most(self, learner: LearnerView, new: int, batch: int) -> Cost:
        """What the next `draw` runs on the model at most, for `batch` samples, `new` of them of the stream."""

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        """min(batch_size, len(memory)) different slots, in the order drawn."""

    def observe(self, values: torch.Tensor, present: torch.Tensor, labels: torch.Tensor) -> None:
        """The step is done: `values` [B, d] are the gradients of each drawn sample at d sampled weights,
        of which only those `present` [d] were computed; `labels` [B] are the classes of the samples.
        """

    def price(self) -> int:
        """Operations of the latest `draw` and `observe` under rule `real`: one per element of an elementwise
        operation, one per input of a reduction, two per multiply-accumulate, nothing for a move."""

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes it keeps between steps beside its columns."""

    def index_nbytes(self) -> int:
        """Working memory of its index, which the memory's content determines."""

    def evicting(self, memory: Memory, slot: int) -> None: ...

    def stored(self, memory: Memory, slot: int) -> None: ...

    def adopt(self, memory: Memory) -> None: ...

    def state(self) -> dict[str, torch.Tensor]: ...

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None: ...


class KeepsToTheMemory:
    """A retrieval that looks neither at the stream nor at the model."""

    wants_stream = False

    def meet(self, learner: LearnerView, samples: torch.Tensor, labels: torch.Tensor) -> None:
        return None

    def most(self, learner: LearnerView, new: int, batch: int) -> Cost:
        return NOTHING


class _Stateless(KeepsToTheMemory):
    """A policy that only looks at the memory as it is."""

    columns: tuple[Column, ...] = ()
    wants_gradients = False

    def __init__(self) -> None:
        self._operations = 0

    def observe(self, values: torch.Tensor, present: torch.Tensor, labels: torch.Tensor) -> None:
        return None

    def price(self) -> int:
        return self._operations

    def nbytes(self, rule: Rule = "real") -> int:
        return 0

    def index_nbytes(self) -> int:
        return 0

    def evicting(self, memory: Memory, slot: int) -> None:
        return None

    def stored(self, memory: Memory, slot: int) -> None:
        return None

    def adopt(self, memory: Memory) -> None:
        return None

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        return None


class Uniform(_Stateless):
    """Every subset of the memory is equally likely.

    numpy draws without replacement by Floyd's algorithm, in O(batch), unless the population is below
    10,000 or below fifty batches, where it shuffles the tail of a list instead: never a pass over a large
    memory.
    """

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        count = min(batch_size, len(memory))
        self._operations = count
        return generator.choice(len(memory), count, replace=False)


class ClassBalanced(_Stateless):
    """Each draw takes a class uniformly among those with a sample left to draw, then one of these samples
    uniformly.

    A class all of whose samples are in the batch is left out of the lottery, so a small memory still fills
    the batch.
    """

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        count = min(batch_size, len(memory))
        open_classes = np.flatnonzero(memory.counts).tolist()
        left = {label: int(memory.counts[label]) for label in open_classes}
        drawn: dict[int, None] = {}
        self._operations = memory.counts.size + 2 * count
        for for_class, for_sample in generator.random((count, 2)).tolist():
            label = open_classes[int(for_class * len(open_classes))]
            members = memory.membership.members(label)
            slot = int(members[int(for_sample * members.size)])
            while slot in drawn:  # the class stays chosen; only a batch's worth of its members can be taken
                slot = int(members[generator.integers(members.size)])
                self._operations += 1
            drawn[slot] = None
            left[label] -= 1
            if left[label] == 0:
                open_classes.remove(label)
        return np.fromiter(drawn, np.int64, len(drawn))
