"""PTLF (Yang, Lin, Zhang, Zhang, Fan, arXiv 2303.07477): freeze the layers that a new task shares most with old ones.

The stream is taken in stretches, one per task. At the end of a stretch the inputs of every layer, as matrix columns
(patches of a convolution), go into a basis M of the `rank` strongest directions that the layer has read so far, by an
incremental singular value decomposition. In the first `probe` steps of the next stretch nothing is frozen and the
gradient g [outputs, inputs] of the layers is compared with the basis: the task-correlation ratio of a block is

    sqrt( sum |g M|^2 / sum |g|^2 )   over its layers and the probing steps.

The n blocks with the highest ratio are frozen for the rest of the stretch; n rises with the stretches from 0 to n_max.
They may lie anywhere: one in the middle still passes the gradient on, and saves its weights' half of the backward.

No code is public, and of the paper just the abstract was at hand: features of tasks are correlated; per task, the
layers with the highest correlation ratio are frozen, progressively. The ratio as above is the reading that the
projection of gradients (GPM, TRGP) suggests.

Deviations (ours / paper, as far as known):
- rank: at most 16 directions a layer / as many as hold a share of the energy;
- what a task adds to the basis: 128 columns of one batch, that of a stretch's last step / of a set of its samples;
- number frozen: n_max * stretch / (tasks - 1) / grows with the tasks, by a schedule that is not known here;
- boundaries: stretches of equal length, so that it runs on any stream / given tasks;
- learning: supervised / self-supervised.

Cost: the decomposition at the end of a stretch, a product with the basis in the probing steps, charged as `fisher`.
Bytes: a basis and its strengths per layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.budget import BlockPrices, Cost
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.looking import Layer, Looking, layers_of
from budgeted.freezing.policies import NO_BLOCKS, StepView


@dataclass
class TaskCorrelated:
    """Freeze, anywhere in the model, the blocks whose gradient lies most in what they read before (PTLF)."""

    n_max: int = 8
    """blocks frozen in the last stretch"""
    tasks: int = 5
    """stretches over which the number rises"""
    stretch: int = 1000
    """steps of a stretch; a learner that knows the stream's length gives a share of it to each task"""
    probe: int = 10
    """steps at the start of a stretch in which nothing is frozen and the ratio is measured"""
    rank: int = 16
    """directions kept per layer"""
    columns: int = 128
    """input columns per layer that are taken at the end of a stretch, evenly out of the batch's"""
    watches: ClassVar[bool] = True
    frozen: frozenset[int] = field(default=NO_BLOCKS, init=False)
    shared: list[float] = field(default_factory=list, init=False)  # per block: squares in the basis
    whole: list[float] = field(default_factory=list, init=False)  # per block: squares of all
    bases: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    strengths: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("n_max", self.n_max >= 0, "0 or more"),
            ("tasks", self.tasks >= 2, "2 or more"),
            ("probe", self.probe >= 1, "1 or more"),
            ("stretch", self.stretch > self.probe, f"longer than its probe of {self.probe} steps"),
            ("rank", self.rank >= 1, "1 or more"),
            ("columns", self.columns >= 1, "1 or more"),
        ):
            if not fits:
                raise BudgetedError(f"{name} of ptlf must be {wanted}, got {getattr(self, name)}")

    def decide(self, view: StepView) -> frozenset[int]:
        stretch, place = divmod(view.step, self.stretch)
        if place == 0:
            self.frozen = NO_BLOCKS
            self.shared, self.whole = [0.0] * (view.blocks - 1), [0.0] * (view.blocks - 1)
        if place == self.probe:
            count = self.n_max * min(stretch, self.tasks - 1) // (self.tasks - 1)
            self.frozen = highest(self.ratios()[: view.most], count)
        return self.frozen

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        if view.looking is None:
            return
        stretch, place = divmod(view.step, self.stretch)
        if place < self.probe and stretch > 0:
            self._compare(view.looking)
        if place == self.stretch - 1:
            self._learn(view.looking)

    def ratios(self) -> list[float]:
        """Task-correlation ratio per block, the head aside; 0 where nothing was measured."""
        return [math.sqrt(part / all_) if all_ > 0 else 0.0 for part, all_ in zip(self.shared, self.whole, strict=True)]

    @torch.no_grad()
    def _compare(self, looking: Looking) -> None:
        """How much of this step's gradient lies in the basis of each layer."""
        for block, names in enumerate(looking.layers):
            for name in names:
                gradient, basis = looking.layer(name).weight.grad, self.bases.get(name)
                if gradient is None or basis is None:
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
            old = self.bases.get(name)
            if old is not None:
                found = torch.cat([old * self.strengths[name], found], 1)
            directions, strengths, _ = np.linalg.svd(found.double().cpu().numpy(), full_matrices=False)
            looking.charge(decomposition_price(len(found), found.shape[1]))
            self.bases[name] = torch.from_numpy(directions[:, : self.rank].astype(np.float32)).to(read.device)
            self.strengths[name] = torch.from_numpy(strengths[: self.rank].astype(np.float32)).to(read.device)

    def most(self, model: nn.Module, chain: BlockChain, step: BlockPrices) -> Cost:
        """Comparing and decomposing all layers in one step."""
        operations = 0
        for inputs, outputs in _sizes(model, chain):
            rank = min(self.rank, inputs)
            operations += _compare_price(outputs, inputs, rank) + decomposition_price(inputs, rank + self.columns)
        return Cost(0, operations)

    def nbytes(self, model: nn.Module, chain: BlockChain, parameters: int) -> int:
        """Bases and strengths in float32; two sums and a mark per block, eight bytes each."""
        kept = sum(4 * (inputs + 1) * min(self.rank, inputs) for inputs, _ in _sizes(model, chain))
        return kept + 24 * (len(chain) - 1)

    def tensors(self) -> dict[str, Tensor]:
        bases = {f"basis.{name}": tensor for name, tensor in self.bases.items()}
        return bases | {f"strengths.{name}": tensor for name, tensor in self.strengths.items()}

    def load_tensors(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        device = next(model.parameters()).device
        for prefix, kept in (("basis.", self.bases), ("strengths.", self.strengths)):
            kept.clear()
            for name, tensor in tensors.items():
                if name.startswith(prefix):
                    kept[name.removeprefix(prefix)] = tensor.to(device, copy=True)

    def state_dict(self) -> dict[str, Any]:
        return {"frozen": sorted(self.frozen), "shared": list(self.shared), "whole": list(self.whole)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"frozen", "shared", "whole"} <= set(state):
            raise BudgetedError("this is no saved state of ptlf: it needs frozen, shared and whole")
        self.frozen = frozenset(int(block) for block in state["frozen"])
        self.shared = [float(value) for value in state["shared"]]
        self.whole = [float(value) for value in state["whole"]]


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


def _sizes(model: nn.Module, chain: BlockChain) -> list[tuple[int, int]]:
    """Inputs and outputs of every layer, as its weight is a matrix."""
    weights = [model.get_parameter(f"{name}.weight") for names in layers_of(model, chain) for name in names]
    return [(weight[0].numel(), len(weight)) for weight in weights]
