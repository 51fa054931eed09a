"""PTLF (Yang, Lin, Zhang, Zhang, Fan, arXiv 2303.07477): freeze the layers that a new task shares most with old ones.

The stream is taken in equal stretches, one per task. At the end of a stretch the inputs of every layer, as columns of a
matrix (patches of a convolution), go into a basis M of the `rank` strongest directions that the layer has read so far,
by an incremental singular value decomposition. In the first `probe` steps of the next stretch nothing is frozen and the
gradient g [outputs, inputs] of the layers is compared with the basis: the task-correlation ratio of a block is

    sqrt( sum |g M|^2 / sum |g|^2 )   over its layers and the probing steps.

The n blocks with the highest ratio are frozen for the rest of the stretch; n rises with the stretches from 0 to n_max.
They may lie anywhere: one in the middle still passes the gradient on, and saves its weights' half of the backward.

No code is public, and of the paper just the abstract was at hand: features of tasks are correlated; per task, the
layers with the highest correlation ratio are frozen, progressively. The ratio as above is the reading that the
projection of gradients (GPM, TRGP) suggests.

Deviations (ours / paper, as far as known):
- rank: at most 16 directions a layer / as many as hold a share of the energy;
- what a task adds to the basis: 128 columns of one batch, that of a stretch's last step, or of the first with its last
  samples / of a set of its samples;
- number frozen: n_max * stretch / (tasks - 1) / grows with the tasks, by a schedule that is not known here;
- boundaries: stretches of equal length, so that it runs on any stream / given tasks;
- learning: supervised / self-supervised.

Cost: the decomposition at the end of a stretch, a product with the basis in the probing steps, charged as `fisher`.
Bytes: a basis and its strengths per layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.budget import BlockPrices, Cost
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.looking import Layer, Looking, layers_of
from budgeted.freezing.policies import POLICIES, FreezingPolicy, StepView, part_of_stream
from budgeted.freezing.renamed import Before
from budgeted.limits import limited, refuse_outside_limits


@POLICIES.register("ptlf")
@dataclass
class TaskCorrelated(FreezingPolicy):
    """Freeze, anywhere in the model, the blocks whose gradient lies most in what they read before (PTLF)."""

    n_max: int = limited(8, "0 or more")
    """blocks frozen in the last stretch"""
    tasks: int = limited(5, "at least 2")
    """stretches over which the number rises"""
    stretch: int | None = None
    """steps of a stretch, where each task is not to have an equal share of the stream; they then go on without end"""
    probe: int = limited(10, "at least 1")
    """steps at the start of a stretch in which nothing is frozen and the ratio is measured"""
    rank: int = limited(16, "at least 1")
    """directions kept per layer"""
    columns: int = limited(128, "at least 1")
    """input columns per layer that are taken at the end of a stretch, evenly out of the batch's"""
    looks: ClassVar[bool] = False
    watches: ClassVar[bool] = True
    kept: ClassVar[tuple[str, ...]] = ("task", "place", "taken", "owed", "reached", "pace", "bases", "strengths")
    per_block: ClassVar[tuple[str, ...]] = ("rests", "shared", "whole")
    task: int = field(default=-1, init=False)  # the stretch under way
    place: int = field(default=0, init=False)  # of the step in it
    taken: bool = field(default=True, init=False)  # is what its layers read in the bases?
    owed: bool = field(default=False, init=False)  # or will it be in the next one, as it was over too soon?
    reached: float = field(default=0.0, init=False)  # share of the stream at the last step
    pace: float = field(default=0.0, init=False)  # how far the share went when it went last
    rests: dict[str, float] = field(default_factory=dict, init=False)  # 1 where a block does
    shared: dict[str, float] = field(default_factory=dict, init=False)  # squares in the basis
    whole: dict[str, float] = field(default_factory=dict, init=False)  # squares of all
    bases: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    strengths: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_outside_limits(self)
        if self.stretch is not None and self.stretch <= self.probe:
            raise BudgetedError(f"stretch must be longer than its probe of {self.probe} steps, got {self.stretch}")

    def begin(self, model: nn.Module, chain: BlockChain, before: Before) -> None:
        """Room for a basis per layer; those of layers that stay are kept."""
        super().begin(model, chain, before)
        bases, strengths = {}, {}
        for name, (inputs, _) in _sizes(model, chain).items():
            weight = model.get_parameter(f"{name}.weight")
            was = before.parameters.get(f"{name}.weight", "").removesuffix(".weight")
            if was in self.bases and len(self.bases[was]) == inputs:
                bases[name], strengths[name] = self.bases[was], self.strengths[was]
            else:  # nothing is known: no direction has any strength
                rank = min(self.rank, inputs)
                bases[name] = torch.zeros(inputs, rank, device=weight.device)
                strengths[name] = torch.zeros(rank, device=weight.device)
        self.bases, self.strengths = bases, strengths

    def decide(self, view: StepView) -> frozenset[int]:
        if view.share is not None and view.share > self.reached:
            self.pace, self.reached = view.share - self.reached, view.share
        task = self._task_at(view.step, view.share)
        self.place += 1
        if task != self.task:
            self.owed, self.taken = not self.taken, False
            self.task, self.place = task, 0
            for of_block in (self.rests, self.shared, self.whole):
                of_block.update(dict.fromkeys(view.names, 0.0))
        if self.place == self.probe:
            count = self.n_max * min(task, self.tasks - 1) // (self.tasks - 1)
            for block in highest([self._ratio(name) for name in view.names[: view.most]], count):
                self.rests[view.names[block]] = 1.0
        return frozenset(block for block, name in enumerate(view.names) if self.rests[name])

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        if view.looking is None:
            return
        if self.place < self.probe and self.task > 0:
            self._compare(view.looking, view.names)
        ends = self._task_at(view.step + 1, self.reached + self.pace) > self.task
        if self.owed or (ends and not self.taken):
            self._learn(view.looking)
            self.taken, self.owed = self.taken or ends, False

    def _task_at(self, step: int, share: float | None) -> int:
        if self.stretch is not None:
            return step // self.stretch
        return part_of_stream(share, self.tasks, "ptlf", "stretch")

    def _ratio(self, name: str) -> float:
        """Task-correlation ratio of a block; 0 where nothing was measured."""
        whole = self.whole.get(name, 0.0)
        return math.sqrt(self.shared[name] / whole) if whole > 0 else 0.0

    def ratios(self) -> list[float]:
        """Task-correlation ratio per block, the head aside."""
        return [self._ratio(name) for name in [*self.whole][:-1]]

    @torch.no_grad()
    def _compare(self, looking: Looking, blocks: Sequence[str]) -> None:
        """How much of this step's gradient lies in the basis of each layer."""
        for block, names in zip(blocks, looking.layers, strict=False):  # of the head no layer is watched
            for name in names:
                gradient, basis = looking.layer(name).weight.grad, self.bases[name]
                if gradient is None or not self._known(name):
                    continue
                rows = gradient.float().reshape(len(gradient), -1)
                part, all_ = float((rows @ basis).square().sum()), float(rows.square().sum())
                looking.charge(_compare_price(len(rows), rows.shape[1], basis.shape[1]))
                if math.isfinite(part) and math.isfinite(all_):  # an overflow in half precision is left out
                    self.shared[block] += part
                    self.whole[block] += all_

    @torch.no_grad()
    def _learn(self, looking: Looking) -> None:
        """Take what the layers read in this step into their bases."""
        for name in [name for names in looking.layers for name in names]:
            read = looking.read(name)
            if read is None:
                continue
            found = columns_of(looking.layer(name), read.float(), self.columns)
            if self._known(name):
                found = torch.cat([self.bases[name] * self.strengths[name], found], 1)
            directions, strengths, _ = np.linalg.svd(found.double().cpu().numpy(), full_matrices=False)
            looking.charge(decomposition_price(len(found), found.shape[1]))
            self.bases[name] = torch.from_numpy(directions[:, : self.rank].astype(np.float32)).to(read.device)
            self.strengths[name] = torch.from_numpy(strengths[: self.rank].astype(np.float32)).to(read.device)

    def _known(self, name: str) -> bool:
        """Has the layer a basis yet?"""
        return bool(self.strengths[name].any())

    def most(self, model: nn.Module, chain: BlockChain, step: BlockPrices) -> Cost:
        """Comparing and decomposing all layers in one step."""
        operations = 0
        for inputs, outputs in _sizes(model, chain).values():
            rank = min(self.rank, inputs)
            operations += _compare_price(outputs, inputs, rank) + decomposition_price(inputs, rank + self.columns)
        return Cost(0, operations)


def highest(ratios: list[float], count: int) -> frozenset[int]:
    """The blocks with the highest ratios, the first on a tie; one without a ratio is never among them."""
    order = sorted((block for block, ratio in enumerate(ratios) if ratio > 0), key=lambda block: -ratios[block])
    return frozenset(order[:count])


def columns_of(layer: Layer, read: Tensor, most: int) -> Tensor:
    """What a layer's weight is multiplied with, as columns: rows of a linear's input, patches of a convolution's."""
    if isinstance(layer, nn.Linear):
        columns = read.reshape(-1, layer.in_features).T
    else:
        padded = F.pad(read, layer._reversed_padding_repeated_twice)
        patches = F.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
        columns = patches.transpose(0, 1).flatten(1)
    return columns[:, :: -(-columns.shape[1] // most)]


def decomposition_price(rows: int, columns: int) -> int:
    """A thin singular value decomposition (Golub and Van Loan's count)."""
    larger, smaller = max(rows, columns), min(rows, columns)
    return 6 * larger * smaller**2 + 20 * smaller**3


def _compare_price(outputs: int, inputs: int, rank: int) -> int:
    """A product with the basis, and two sums of squares."""
    return 2 * outputs * inputs * rank + 2 * outputs * (inputs + rank)


def _sizes(model: nn.Module, chain: BlockChain) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of every layer, as its weight is a matrix."""
    weights = {name: model.get_parameter(f"{name}.weight") for names in layers_of(model, chain) for name in names}
    return {name: (weight[0].numel(), len(weight)) for name, weight in weights.items()}
