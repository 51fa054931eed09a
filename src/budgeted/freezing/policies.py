"""Which blocks to freeze in a step: none, constant, linear, random. (The adaptive policy has a file of its own.)

A policy answers with a *set* of blocks. It is asked after the forward pass and before the backward pass, and told when
the gradients are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from budgeted.errors import BudgetedError
from budgeted.freezing.looking import Looking

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

    def __post_init__(self) -> None:
        if self.most < 0:
            self.most = self.blocks - 1

    def prefix(self, n: int) -> frozenset[int]:
        """The first n blocks, or as many as may rest."""
        return frozenset(range(min(n, self.most)))


@runtime_checkable
class FreezingPolicy(Protocol):
    """Decides before the backward pass; may look at the gradients after it.

    A policy that keeps more than a few numbers also has `nbytes(model, chain, parameters)` (what it keeps, given the
    bytes of the model's parameters), `tensors()` and `load_tensors(model, tensors)`. One that watches the blocks' own
    tensors says `watches = True` and has `most(model, chain, step)`, what looking costs at most.
    """

    def decide(self, view: StepView) -> frozenset[int]: ...

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class _Stateless:
    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        """These policies do not look at gradients."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept between steps."""


def _at_least_zero(name: str, n: int) -> None:
    if n < 0:
        raise BudgetedError(f"{name} must be 0 or more, got {n}")


@dataclass(frozen=True)
class NeverFreeze(_Stateless):
    """Train every block in every step."""

    def decide(self, view: StepView) -> frozenset[int]:
        return NO_BLOCKS


@dataclass(frozen=True)
class ConstantPrefix(_Stateless):
    """Freeze the same first blocks in every step (the paper's n=8 is 4 blocks of ResNet-32, n=16 is 9)."""

    n: int = 4
    """blocks to freeze, from the stem on"""

    def __post_init__(self) -> None:
        _at_least_zero("n", self.n)

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(self.n)


@dataclass(frozen=True)
class LinearPrefix(_Stateless):
    """Freeze more as training goes on: from 0 blocks in the first step to n_max in the last, in equal stretches."""

    n_max: int = 8
    """blocks frozen at the end"""
    steps: int = 1000
    """steps over which the ramp rises; it stays at n_max afterwards"""

    def __post_init__(self) -> None:
        _at_least_zero("n_max", self.n_max)
        if self.steps < 1:
            raise BudgetedError(f"steps must be 1 or more, got {self.steps}")

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(min(self.n_max, view.step * (self.n_max + 1) // self.steps))


@dataclass
class RandomPrefix:
    """Freeze the first n blocks, n drawn anew in every step from 0 to n_max."""

    n_max: int = 8
    """most blocks that may be frozen"""
    seed: int = 0
    """seed of the draws"""
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _at_least_zero("n_max", self.n_max)
        self._generator = np.random.default_rng(self.seed)

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(int(self._generator.integers(self.n_max + 1)))

    def after_backward(self, view: StepView, frozen: frozenset[int]) -> None:
        """Draws do not depend on gradients."""

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
