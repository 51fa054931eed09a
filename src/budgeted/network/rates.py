"""The learning rate along the stream: every group's own, times a factor that follows from where the stream is.

A schedule goes by the share of the stream that has arrived, whatever steps that took, so it is for streams of known
length alone. A warm-up goes by steps since the last new class, and looks at no length: while the row of a class is
still as it was drawn, its large gradients move the other weights less.
"""

from __future__ import annotations

import math
from typing import Literal

from torch.optim import Optimizer

from budgeted.budget.kept import Keeps

Schedule = Literal["constant", "linear", "cosine"]


class Rates(Keeps):
    """Sets an optimizer's rates before every step of the stream."""

    kept = ("since",)

    def __init__(self, optimizer: Optimizer, schedule: Schedule = "constant", warm_up: int = 0) -> None:
        """warm_up: steps after a new class in which the rate rises to what it would be."""
        self.schedule, self.warm_up = schedule, warm_up
        self.since = 0  # steps since the last new class
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]  # as torch's schedules have it

    def factor(self, share: float | None) -> float:
        """What the rates are multiplied by, when this share of the stream has arrived."""
        risen = min(1.0, (1 + self.since) / (1 + self.warm_up))
        if self.schedule == "constant" or share is None:
            return risen
        left = 1 - min(1.0, share)
        return risen * (left if self.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)

    def set(self, optimizer: Optimizer, share: float | None) -> None:
        """For the step that comes."""
        factor = self.factor(share)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.since += 1

    def new_class(self) -> None:
        self.since = 0
