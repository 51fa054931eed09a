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
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from budgeted.budget import BlockPrices, Cost, total
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.policies import POLICIES, FreezingPolicy, StepView
from budgeted.freezing.renamed import Before
from budgeted.limits import limited, refuse_outside_limits


@POLICIES.register("egeria")
@dataclass
class Egeria(FreezingPolicy):
    """Freeze the first blocks one by one as they stop moving; thaw all when something moves again."""

    period: int = limited(10, "at least 1")
    """steps between two evaluations, and the age of the reference model"""
    window: int = limited(10, "at least 2")
    """W: evaluations that are smoothed, that a line is fitted to, and that must be quiet in a row"""
    tolerance: float = limited(0.2, "between 0 and 1")
    """share of the steepest slope within which a block counts as quiet"""
    thaw: float = limited(3.0, "above 1")
    """a plasticity so many times the largest of the window is a shift"""
    looks: ClassVar[bool] = False
    watches: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("front", "values", "smoothed", "steepest", "quiet", "reference")
    front: int = field(default=0, init=False)
    values: deque[float] = field(init=False)
    smoothed: deque[float] = field(init=False)
    steepest: float = field(default=0.0, init=False)
    quiet: int = field(default=0, init=False)
    reference: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _order: list[str] = field(default_factory=list, init=False, repr=False)  # of the blocks, stem first

    def __post_init__(self) -> None:
        refuse_outside_limits(self)
        self.values, self.smoothed = deque(maxlen=self.window), deque(maxlen=self.window)

    def begin(self, model: nn.Module, chain: BlockChain, before: Before) -> None:
        """The reference is the model as it is; of one that changed, what stays keeps its old weights.

        The front goes back to the first block that is new, if one has come before it.
        """
        reference = {}
        for name, parameter in model.named_parameters():
            old = self.reference.get(before.parameters.get(name, ""))
            stays = old is not None and old.shape[1:] == parameter.shape[1:]
            reference[name] = old if old is not None and stays else parameter.detach().clone()
        self.reference = reference
        old_order, self._order = self._order, [block.name for block in chain.blocks]
        was = [before.blocks.get(name) for name in self._order]
        if old_order and was[: self.front + 1] != old_order[: self.front + 1]:
            resting = old_order[: self.front]
            self._start(next((n for n, name in enumerate(was) if name not in resting), 0))

    def decide(self, view: StepView) -> frozenset[int]:
        looking = view.looking
        if looking is not None and view.step > 0 and view.step % self.period == 0:
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
        self.values.append(moved)
        self.smoothed.append(sum(self.values) / len(self.values))
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
        self.values.clear()
        self.smoothed.clear()

    def most(self, model: nn.Module, chain: BlockChain, step: BlockPrices) -> Cost:
        """A forward, and the products of what the widest block may make."""
        trace = chain.trace
        widest = max(value.numel for op in trace.ops for value in op.outputs) // max(1, trace.batch)
        return total(step.forward) + Cost(0, 2 * step.batch**2 * (2 * widest + 5))


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
