"""EGERIA (Wang et al., EuroSys 2023): freeze the front block when it has stopped moving against a reference model.

The reference is the model as it was `period` steps ago. Every `period` steps it runs on the batch, and the plasticity
of the front active block is how far the batch's similarities have moved (Tung and Mori's similarity-preserving loss):

    P = |G - G_ref|^2 / B^2,    G = the rows of A A^T, each divided by its norm,    A = what the block made, [B, D].

P is smoothed over a window of W evaluations and a line is fitted to the last W of these. When its slope is within
`tolerance` of the steepest slope seen, W times in a row, the block is frozen and the next one becomes the front.

A shift: when P exceeds `thaw` times the largest value of a full window, all blocks are thawed and it starts anew.

Deviations (ours / paper, of which just the abstract and notes were at hand / published code):
- thawing: when P jumps, which needs no boundaries / when the learning rate changes / at a task's end, never called;
- reference: float32, renewed after every evaluation / quantised, on the processor, renewed now and then / renewed when
  the sample number is *not* a multiple of 100;
- slope: over the evaluations / as far as known the same / over zeros, so that it is a random number;
- steepest slope: since the last thaw, of any front block / as far as known of the first ones / of the first five;
- blocks: the first ones / the first ones / any, each on its own;
- frozen forward: run / cached, and fetched ahead / run.

Cost: a whole forward of the reference and two products of the batch with itself at each evaluation, charged as
`fisher`, which is where all that a policy looks at goes. Bytes: the reference's parameters and the windows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from budgeted.budget import BlockPrices, Cost, total
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.layout import laid_out_as
from budgeted.freezing.policies import StepView


@dataclass
class Egeria:
    """Freeze the first blocks one by one as they stop moving; thaw all when something moves again."""

    period: int = 10
    """steps between two evaluations, and the age of the reference model"""
    window: int = 10
    """W: evaluations that are smoothed, that a line is fitted to, and that must be quiet in a row"""
    tolerance: float = 0.2
    """share of the steepest slope within which a block counts as quiet"""
    thaw: float = 3.0
    """a plasticity so many times the largest of the window is a shift"""
    watches: ClassVar[bool] = True
    front: int = field(default=0, init=False)
    values: list[float] = field(default_factory=list, init=False)
    smoothed: list[float] = field(default_factory=list, init=False)
    steepest: float = field(default=0.0, init=False)
    quiet: int = field(default=0, init=False)
    reference: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("period", self.period >= 1, "1 or more"),
            ("window", self.window >= 2, "2 or more"),
            ("tolerance", 0 < self.tolerance < 1, "between 0 and 1"),
            ("thaw", self.thaw > 1, "above 1"),
        ):
            if not fits:
                raise BudgetedError(f"{name} of egeria must be {wanted}, got {getattr(self, name)}")

    def decide(self, view: StepView) -> frozenset[int]:
        looking = view.looking
        if looking is not None and self.reference and view.step % self.period == 0:
            mine, old = looking.made(self.front), looking.made_with(self.reference, self.front)
            looking.charge(_plasticity_price(mine) + _plasticity_price(old))
            self.notice(plasticity(mine, old), view.most)
        return view.prefix(self.front)

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        if view.looking is not None and view.step % self.period == 0:
            self.reference = {name: tensor.clone() for name, tensor in view.looking.parameters().items()}

    def notice(self, moved: float, most: int) -> None:
        """Take one more plasticity of the front block, and freeze (`most` blocks at most) or thaw by it."""
        if not math.isfinite(moved):
            return  # an overflow in half precision
        if len(self.values) == self.window and moved > self.thaw * max(self.values):
            self._start(0)
            self.steepest = 0.0
            return
        self.values = [*self.values, moved][-self.window :]
        self.smoothed = [*self.smoothed, sum(self.values) / len(self.values)][-self.window :]
        if len(self.smoothed) < self.window:
            return
        steep = abs(slope(self.smoothed))
        self.steepest = max(self.steepest, steep)
        self.quiet = self.quiet + 1 if steep <= self.tolerance * self.steepest else 0
        if self.quiet >= self.window and self.front < most:
            self._start(self.front + 1)

    def _start(self, front: int) -> None:
        """Watch another front block."""
        self.front, self.quiet = front, 0
        self.values, self.smoothed = [], []

    def most(self, model: nn.Module, chain: BlockChain, step: BlockPrices) -> Cost:
        """A forward, and the products of what the widest block may make."""
        trace = chain.trace
        widest = max(value.numel for op in trace.ops for value in op.outputs) // max(1, trace.batch)
        return total(step.forward) + Cost(0, 2 * step.batch**2 * (2 * widest + 5))

    def nbytes(self, model: nn.Module, chain: BlockChain, parameters: int) -> int:
        """The reference and, eight bytes each, the windows and four numbers."""
        return parameters + 8 * (2 * self.window + 4)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.reference)

    def load_tensors(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        self.reference = laid_out_as(model, tensors)

    def state_dict(self) -> dict[str, Any]:
        return {
            "front": self.front,
            "values": list(self.values),
            "smoothed": list(self.smoothed),
            "steepest": self.steepest,
            "quiet": self.quiet,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"front", "values", "smoothed", "steepest", "quiet"} <= set(state):
            raise BudgetedError("this is no saved state of egeria: it needs front, values, smoothed, steepest, quiet")
        self.front, self.quiet, self.steepest = int(state["front"]), int(state["quiet"]), float(state["steepest"])
        self.values = [float(value) for value in state["values"]]
        self.smoothed = [float(value) for value in state["smoothed"]]


@torch.no_grad()
def plasticity(mine: Tensor, old: Tensor) -> float:
    """Similarity-preserving distance of two activations of one batch."""
    difference = _similarities(mine) - _similarities(old)
    return float(difference.square().sum()) / len(mine) ** 2


def _similarities(activation: Tensor) -> Tensor:
    rows = activation.float().flatten(1)
    return torch.nn.functional.normalize(rows @ rows.T, dim=1)


def _plasticity_price(activation: Tensor) -> int:
    """The product of the batch with itself, the norms, the division; half of the difference, its squares and sum."""
    batch = len(activation)
    return 2 * batch * activation.numel() + 5 * batch * batch


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through values at 0, 1, 2, …"""
    middle = (len(values) - 1) / 2
    spread = sum((place - middle) ** 2 for place in range(len(values)))
    return sum((place - middle) * value for place, value in enumerate(values)) / spread
