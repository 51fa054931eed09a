"""A freezing policy of your own: the first blocks rest in every other step, once the loss has fallen.

budgeted run --method er --freezing examples/alternate.py:Alternate --set freezing.blocks=2
budgeted check examples/alternate.py:Alternate
"""

from __future__ import annotations

from dataclasses import dataclass, field

from budgeted.freezing import FreezingPolicy, StepView


@dataclass
class Alternate(FreezingPolicy):
    """The first blocks rest in every other step, when the feature's gradient is below its mean so far."""

    kept = ("mean",)
    blocks: int = 2
    """how many rest"""
    mean: float = field(default=0.0, init=False)

    def decide(self, view: StepView) -> frozenset[int]:
        size = view.feature_gradient()
        quiet = size < self.mean
        self.mean += (size - self.mean) / (view.step + 1)
        return view.prefix(self.blocks) if quiet and view.step % 2 else frozenset()
