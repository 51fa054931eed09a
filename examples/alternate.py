"""A freezing policy of your own: the first blocks rest in every other step, once the loss has fallen.

budgeted run --method er --freezing examples/alternate.py:Alternate --set freezing.blocks=2
budgeted check examples/alternate.py:Alternate
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from budgeted.freezing import StepView


@dataclass
class Alternate:
    """The first blocks rest in every other step, when the feature's gradient is below its mean so far."""

    blocks: int = 2
    """how many rest"""
    mean: float = field(default=0.0, init=False)

    def decide(self, view: StepView) -> frozenset[int]:
        size = view.feature_gradient()
        quiet = size < self.mean
        self.mean += (size - self.mean) / (view.step + 1)
        return view.prefix(self.blocks) if quiet and view.step % 2 else frozenset()

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        """It does not look at gradients."""

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean = float(state["mean"])
