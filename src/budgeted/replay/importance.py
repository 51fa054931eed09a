"""Selection by importance: the largest class gives up the sample that training gained least from (CLIB).

The importance of every stored sample stands in the memory's column `importance`, which the method keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from budgeted.errors import BudgetedError
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.selection import SELECTIONS, Selection, balanced_counts

IMPORTANCE = "importance"


@SELECTIONS.register("least-important")
class LeastImportant(Selection):
    """Every newcomer is stored; when full, the least important member of the largest class makes room.

    The largest class is found after counting the newcomer, ties drawn. The newcomer itself never leaves, so a class of
    which nothing else is stored is passed over.
    """

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if not memory.full:
            return len(memory)
        counts = memory.counts.copy()
        if label < counts.size and counts[label]:
            counts[label] += 1
        largest = np.flatnonzero(counts == counts.max())
        members = memory.membership.members(int(largest[generator.integers(largest.size)]))
        return int(members[_importance(memory)[members].argmin()])

    def give_up(self, memory: Memory, count: int, generator: np.random.Generator) -> Slots:
        """One after another from whichever class is then the largest, the least important first."""
        remaining = balanced_counts(memory.counts, len(memory) - count)
        importance = _importance(memory)
        leaving = []
        for label in np.flatnonzero(memory.counts - remaining).tolist():
            members = memory.membership.members(label)
            order = np.argsort(importance[members], kind="stable")
            leaving.append(members[order[: members.size - int(remaining[label])]])
        return np.concatenate(leaving).astype(np.int64) if leaving else np.zeros(0, np.int64)


def _importance(memory: Memory) -> npt.NDArray[Any]:
    if all(column.name != IMPORTANCE for column in memory.columns):
        raise BudgetedError("selection `least-important` needs a method that keeps importances: use --method clib")
    return memory.host(IMPORTANCE)
