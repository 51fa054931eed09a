"""The course of a run as far as it is known before there is data, and what a method foresees to cost over it.

Which classes arrive when is that of a stream of the same kind over classes of one size: nearly what the real one
brings, and the same for whoever plans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from budgeted.budget import NOTHING, Cost, Purpose

Counts = npt.NDArray[np.int64]
Costs = Mapping[Purpose, Cost]


@dataclass(frozen=True)
class Course:
    """A stream, what is done along it, and the places that there are."""

    labels: Counts
    """the class of every sample, numbered by first appearance, in order of arrival"""
    boundaries: tuple[int, ...]
    """samples that have arrived when a task ends; on a stream without tasks, when a fifth has passed"""
    evaluations: tuple[int, ...]
    """samples that have arrived when an evaluation comes"""
    slots: int | None
    batch: int
    """samples in a training batch"""
    new: int
    """how many of them are of the stream"""
    trains: bool = True
    """whether steps are run as the stream brings them, or wait for the next evaluation"""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _known(self) -> Counts:
        return np.maximum.accumulate(self.labels) + 1

    def known(self, arrived: int) -> int:
        """Classes met when so many samples have arrived."""
        return int(self._known[arrived - 1]) if arrived else 0

    @property
    def mean_rows(self) -> int:
        """Rows of the head in the mean over the steps: classes that have been met when a step is run."""
        run_at = np.arange(len(self))
        if not self.trains:
            run_at = np.array(self.evaluations)[np.searchsorted(self.evaluations, run_at, side="right")] - 1
        return math.ceil(float(self._known[run_at].mean()))

    def counts(self, arrived: int) -> Counts:
        """Samples of each class among the first."""
        return np.bincount(self.labels[:arrived], minlength=self.known(len(self)))

    def stored(self, arrived: int) -> Counts:
        """Samples of each class in a memory that has taken its part of all alike."""
        counts = self.counts(arrived)
        if self.slots is None or arrived <= self.slots:
            return counts
        upto: Counts = np.cumsum(counts) * self.slots // arrived  # so that all places are taken
        return np.diff(upto, prepend=0)

    def mean_stored(self) -> float:
        """Samples in the memory, in the mean over the stream."""
        places = len(self) if self.slots is None else self.slots
        return float(np.minimum(np.arange(1, len(self) + 1), places).mean())

    def moments(self, most: int = 20) -> tuple[int, ...]:
        """Numbers of arrived samples in the middle of so many equal parts of the stream."""
        parts = min(most, len(self))
        return tuple((2 * part + 1) * len(self) // (2 * parts) for part in range(parts))

    def behind_boundaries(self) -> tuple[tuple[float, int], ...]:
        """For each stretch behind a boundary its share of the stream, and the classes that were met before it."""
        ends = (*self.boundaries[1:], len(self))
        return tuple(
            ((end - start) / len(self), self.known(start)) for start, end in zip(self.boundaries, ends, strict=True)
        )


def part(cost: Cost, share: float) -> Cost:
    """A share of a cost, or a multiple."""
    return Cost(round(cost.paper * share), round(cost.real * share))


def together(*costs: Costs) -> dict[Purpose, Cost]:
    """Costs by purpose, added up."""
    found: dict[Purpose, Cost] = {}
    for each in costs:
        for purpose, cost in each.items():
            found[purpose] = found.get(purpose, NOTHING) + cost
    return found
