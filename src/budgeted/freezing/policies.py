"""Which blocks to freeze in a step: none, constant, linear, random. (The adaptive policy has a file of its own.)

A policy answers with a *set* of blocks. It is asked after the forward pass and before the backward pass, and told when
the gradients are there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from torch import nn

from budgeted.budget import NOTHING, BlockPrices, Cost
from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError
from budgeted.freezing.chain import BlockChain
from budgeted.freezing.looking import Looking
from budgeted.freezing.renamed import Before
from budgeted.limits import limited, refuse_outside_limits
from budgeted.registry import Registry

NO_BLOCKS: frozenset[int] = frozenset()


@dataclass(slots=True)
class StepView:
    """What a policy may look at in one step; what costs something is computed when asked for."""

    step: int
    """steps taken before this one"""
    blocks: int
    """L, the number of blocks with the head"""
    full_cost: Callable[[], int]
    """forward and backward of this batch with nothing frozen, under the criterion's rule"""
    saved: Callable[[], Sequence[int]]
    """backward saved by freezing the first n blocks, n from 0 to L-1"""
    feature_gradient: Callable[[], float]
    """mean over the batch of the squared norm of the loss gradient at the last feature"""
    squared_gradients: Callable[[], Sequence[float]]
    """after the backward: per block the sum of squared gradients"""
    looking: Looking | None = None
    """the blocks' own tensors, for a policy that says `watches = True`"""
    most: int = -1
    """most blocks that may rest, from the stem on: the last one that is trained never does (not given: the head)"""
    share: float | None = None
    """share of the stream that has arrived, from 0 to 1; None where nobody knows how long it is"""
    names: tuple[str, ...] = ()
    """names of the blocks, stem first, head last (not given: their numbers)"""

    def __post_init__(self) -> None:
        if self.most < 0:
            self.most = self.blocks - 1
        if not self.names:
            self.names = tuple(map(str, range(self.blocks)))

    def prefix(self, n: int) -> frozenset[int]:
        """The first n blocks, or as many as may rest."""
        return frozenset(range(min(n, self.most)))


class FreezingPolicy(Keeps, ABC):
    """Decides before the backward pass which blocks rest; may look at the gradients after it.

    One of your own needs `decide` and no more. What it keeps between steps is named in `kept`, or in `per_block` if it
    is a number for each block: bytes, checkpoints and the way back from a step that cannot be paid follow from that.
    """

    per_block: ClassVar[tuple[str, ...]] = ()
    """names of attributes that hold a number for each block, by its name: there from the start, at 0, and kept; when
    the network changes they go with the blocks that stay"""
    looks: ClassVar[bool] = True
    """whether it may ask for gradients, which a step that comes must then be able to pay"""
    watches: ClassVar[bool] = False
    """whether it wants to see the blocks' own tensors, in `view.looking`"""

    @abstractmethod
    def decide(self, view: StepView) -> frozenset[int]:
        """The blocks that rest in this step."""

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        """The gradients are there; once for every micro-batch, each time from what `decide` left behind."""

    def begin(self, model: nn.Module, chain: BlockChain, before: Before) -> None:
        """The network is there, or has changed: make room for what is kept of it."""
        for name in self.per_block:
            old = getattr(self, name, {})
            setattr(self, name, {b.name: old.get(before.blocks.get(b.name), 0.0) for b in chain.blocks})

    def most(self, model: nn.Module, chain: BlockChain, step: BlockPrices) -> Cost:
        """What watching may cost in one step, at most; `step` are the prices of one with nothing frozen."""
        return NOTHING

    def kept_names(self) -> list[str]:
        return [*super().kept_names(), *self.per_block]


POLICIES: Registry[type[FreezingPolicy]] = Registry("freezing policy", "freezing", lambda: FreezingPolicy)


@POLICIES.register("none")
@dataclass(frozen=True)
class NeverFreeze(FreezingPolicy):
    """Train every block in every step."""

    looks: ClassVar[bool] = False

    def decide(self, view: StepView) -> frozenset[int]:
        return NO_BLOCKS


@POLICIES.register("constant")
@dataclass(frozen=True)
class ConstantPrefix(FreezingPolicy):
    """Freeze the same first blocks in every step (the paper's n=8 is 4 blocks of ResNet-32, n=16 is 9)."""

    n: int = limited(4, "0 or more")
    """blocks to freeze, from the stem on"""
    looks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refuse_outside_limits(self)

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(self.n)


@POLICIES.register("linear")
@dataclass(frozen=True)
class LinearPrefix(FreezingPolicy):
    """Freeze more as the stream goes on: from 0 blocks at its start to n_max at its end, in equal stretches."""

    n_max: int = limited(8, "0 or more")
    """blocks frozen at the end"""
    steps: int | None = limited(None, "at least 1")
    """steps over which the ramp rises, where it is not to rise over the stream; it stays at n_max afterwards"""
    looks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refuse_outside_limits(self)

    def decide(self, view: StepView) -> frozenset[int]:
        if self.steps is None:
            return view.prefix(part_of_stream(view.share, self.n_max + 1, "linear", "steps"))
        return view.prefix(min(self.n_max, view.step * (self.n_max + 1) // self.steps))


def part_of_stream(share: float | None, parts: int, policy: str, instead: str) -> int:
    """In which of so many equal parts of the stream the newest sample lies, from 0 on."""
    if share is None:
        raise BudgetedError(
            f"freezing `{policy}` goes by how much of the stream has arrived, and its length is not known: give the "
            f"number of samples, or freezing.{instead} (in a loop of your own set `share` before each backward)"
        )
    # the last sample of a part belongs to it; 7 of 25 samples are 7.000000000000001 of 25 parts
    return min(parts - 1, max(0, math.ceil(share * parts - 1e-9) - 1))


@POLICIES.register("random")
@dataclass
class RandomPrefix(FreezingPolicy):
    """Freeze the first n blocks, n drawn anew in every step from 0 to n_max."""

    n_max: int = limited(8, "0 or more")
    """most blocks that may be frozen"""
    seed: int = 0
    """seed of the draws"""
    looks: ClassVar[bool] = False
    kept: ClassVar[tuple[str, ...]] = ("_generator",)
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_outside_limits(self)
        self._generator = np.random.default_rng(self.seed)

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(int(self._generator.integers(self.n_max + 1)))
