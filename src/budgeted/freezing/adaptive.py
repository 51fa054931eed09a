"""Adaptive layer freezing (aL): the paper's section 3.1.

Freezing the first n blocks saves compute S_n and loses the information that the batch holds for them. The information
per compute that training gives on average, (I/C)_m = sum of trF over blocks after m / (C - S_m), at its best m, is what
the saved compute is worth; the batch's own loss is the Fisher trace of the frozen blocks, scaled by how large the
batch's feature gradient is against its average:

    BFC_n = max_m (I/C)_m * S_n - |g|^2 / E|g|^2 * sum of trF over the first n blocks,    n* = argmax, n from 0 to L-1.

The criterion's normaliser E|g|^2, and whether head and stem count in the sums, are settings: the sources differ.
The last block that is trained never rests; where that is not the head, n and m stop before it.

The trace needs the gradients of all blocks, so in every m-th step nothing is frozen and it is refreshed.

When the network changes, blocks that stay keep their traces. A new one does not rest before it was looked at, and its
trace, which started later, is scaled to the age of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from torch import nn

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.policies import NO_BLOCKS, POLICIES, FreezingPolicy, StepView
from budgeted.freezing.renamed import Before
from budgeted.limits import limited, refuse_outside_limits

Normaliser = Literal["mean_square", "square_of_mean"]
NORMALISERS = get_args(Normaliser)


@dataclass(frozen=True, slots=True)
class Criterion:
    """The criterion of one batch, for every n from 0 to the most that may rest: L-1, or less."""

    information_per_compute: tuple[float, ...]
    bfc: tuple[float, ...]
    n: int


def criterion(
    fisher: Sequence[float],
    saved: Sequence[int],
    full_cost: int,
    ratio: float,
    head_fisher: bool,
    stem_fisher: bool = True,
    most: int | None = None,
) -> Criterion:
    """BFC and its argmax (the smallest n on a tie). `fisher` per block with the head last, `saved[n]` for n < L.

    Without `stem_fisher` the first block's trace is in no sum, and freezing that block alone counts as saving nothing:
    else it would be free. `most`: blocks that may rest; L-1 if not given.
    """
    blocks = len(fisher) if most is None else most + 1
    if not stem_fisher:
        fisher, saved = (0.0, *fisher[1:]), (0, 0, *saved[2:])
    known = sum(fisher) if head_fisher else sum(fisher[:-1])
    lost, losses = 0.0, [0.0]
    for trace in fisher[: blocks - 1]:
        lost += trace
        losses.append(lost)
    per_compute = tuple((known - losses[n]) / (full_cost - saved[n]) for n in range(blocks))
    best = max(per_compute)
    # an infinite ratio (no average yet) forbids freezing, but 0 blocks lose nothing
    bfc = tuple(best * saved[n] - (ratio * losses[n] if losses[n] else 0.0) for n in range(blocks))
    return Criterion(per_compute, bfc, max(range(blocks), key=lambda n: (bfc[n], -n)))


@POLICIES.register("adaptive")
@dataclass
class AdaptivePrefix(FreezingPolicy):
    """aL: freeze the first n* blocks, n* by the batch freezing criterion."""

    refresh_every: int = limited(4, "at least 1")
    """m: in every m-th step nothing is frozen and the Fisher traces are refreshed"""
    ema: float = limited(0.01, "above 0 and at most 1")
    """weight of the newest value in the moving averages (the published code has 0.001)"""
    head_fisher: bool = True
    """whether the head's Fisher trace counts among the information (as in the paper's sums) or not (as in the
    published code); it changes how much is frozen a good deal"""
    stem_fisher: bool = True
    """whether the stem's Fisher trace counts (as in the paper's sums) or not (as in the published code, where freezing
    the stem alone is no gain either); it may hold half of all information at a hundredth of the compute"""
    normaliser: Normaliser = "mean_square"
    """what |g|^2 is divided by: the average of |g|^2 (the paper's appendix, the published code), or the average of
    |g|, squared (its Algorithm 1), which is never larger"""
    ema_start: Literal["zero", "first", "corrected"] = "zero"
    """start of the averages: at zero, as in the paper (it holds back freezing for the first steps),
    at the first value above zero, or at zero with the bias since that value divided out"""
    refresh: Literal["periodic", "bernoulli"] = "periodic"
    """refresh in every m-th step exactly, or with probability 1/m (as in the published code)"""
    seed: int = 0
    """seed of the draws when refresh is 'bernoulli'"""
    kept: ClassVar[tuple[str, ...]] = ("gradient", "updates", "since")
    per_block: ClassVar[tuple[str, ...]] = ("fisher",)
    fisher: dict[str, float] = field(default_factory=dict, init=False)
    gradient: float = field(default=0.0, init=False)  # the average of |g|^2, or of |g| if that is squared
    updates: dict[str, int] = field(default_factory=lambda: {"fisher": 0, "gradient": 0}, init=False)
    since: dict[str, int] = field(default_factory=dict, init=False)  # of blocks that came later: updates before them
    last: Criterion | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_outside_limits(self)
        if self.normaliser not in NORMALISERS:
            raise UnknownName("normaliser", str(self.normaliser), NORMALISERS)

    def decide(self, view: StepView) -> frozenset[int]:
        size = view.feature_gradient()
        if not math.isfinite(size):
            raise BudgetedError(
                "the gradient at the last feature is not finite: lower the learning rate or check the inputs"
            )
        self.last = None
        frozen = NO_BLOCKS
        if not self._refreshes(view.step):
            average = self._average(self.gradient, "gradient") ** (2 if self.normaliser == "square_of_mean" else 1)
            ratio = size / average if average > 0 else math.inf
            traces = [self._trace(name) for name in view.names]
            most = next((n for n, name in enumerate(view.names[: view.most]) if self._unknown(name)), view.most)
            self.last = criterion(
                traces, view.saved(), view.full_cost(), ratio, self.head_fisher, self.stem_fisher, most
            )
            frozen = view.prefix(self.last.n)
        self.gradient = self._moved(self.gradient, math.sqrt(size) if self.normaliser == "square_of_mean" else size)
        self._count("gradient", self.gradient)
        return frozen

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        if self._refreshes(view.step):
            squares = view.squared_gradients()
            if not all(map(math.isfinite, squares)):
                return  # an overflow in half precision: the optimizer skips this step too
            for name, new in zip(view.names, squares, strict=True):
                self.fisher[name] = self._moved(self.fisher.get(name, 0.0), new)
            self._count("fisher", max(self.fisher.values()))

    def begin(self, model: nn.Module, chain: BlockChain, before: Before) -> None:
        super().begin(model, chain, before)
        since = {}
        for block in chain.blocks:
            was = before.blocks.get(block.name)
            if was is None and self.updates["fisher"]:
                since[block.name] = self.updates["fisher"]
            elif was in self.since:
                since[block.name] = self.since[was]
        self.since = since
        if chain.blocks[-1].name not in before.blocks:  # the last feature is another one
            self.gradient, self.updates["gradient"] = 0.0, 0

    def _refreshes(self, step: int) -> bool:
        if self.refresh == "periodic":
            return step % self.refresh_every == 0
        # a hash of the step, not a running generator: deciding and looking back agree, and nothing need be saved
        mixed = (step * 0x9E3779B97F4A7C15 + self.seed * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return (mixed ^ (mixed >> 31)) < 2**64 // self.refresh_every

    # 0 is no value yet: while there is one class, the loss of a classifier and all its gradients are 0

    def _count(self, what: str, average: float) -> None:
        self.updates[what] += average > 0

    def _moved(self, old: float, new: float) -> float:
        if self.ema_start == "first" and old == 0:
            return new
        return (1 - self.ema) * old + self.ema * new

    def _average(self, value: float, what: str) -> float:
        if self.ema_start != "corrected" or self.updates[what] == 0:
            return value
        return value / self._filled(self.updates[what])

    def _filled(self, updates: int) -> float:
        """How much of an average that started at zero is there."""
        return float(1 - (1 - self.ema) ** updates)

    def _unknown(self, name: str) -> bool:
        """Was the block not looked at yet, though others were?"""
        return self.since.get(name) == self.updates["fisher"]

    def _trace(self, name: str) -> float:
        """The average trace of a block, as if it were as old as those that were there from the start."""
        value, came = self.fisher.get(name, 0.0), self.since.get(name)
        if came is None or self.ema_start == "first" or self._unknown(name):
            return self._average(value, "fisher")
        whole = value / self._filled(self.updates["fisher"] - came)
        return whole if self.ema_start == "corrected" else whole * self._filled(self.updates["fisher"])
