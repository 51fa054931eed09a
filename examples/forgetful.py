"""A selection of your own: every newcomer is stored, in the place of whatever was stored longest ago.

budgeted run --method er --set learner.selection=examples/forgetful.py:Oldest
budgeted check examples/forgetful.py:Oldest
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from budgeted.replay import Memory, Selection


@dataclass
class Oldest(Selection):
    """The oldest sample makes room."""

    next_place: int = field(default=0, init=False)

    kept = ("next_place",)

    def select(self, memory: Memory, label: int, generator: np.random.Generator) -> int | None:
        if not memory.full:
            return len(memory)
        place = self.next_place % len(memory)
        self.next_place = place + 1
        return place
