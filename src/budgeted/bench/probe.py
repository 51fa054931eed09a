"""A learner on noise of a data set's shape: its memory filled, warmed up, and a period of its life counted.

The memory is filled without training. Then samples arrive of a few classes, a fifth of all unless told otherwise, as in
a task of a disjoint stream, and what the ledger is charged over a whole period is noted. A method that needs boundaries
is counted on both sides of its first: half of the classes come before it, the others behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from budgeted import models
from budgeted.audit import ExecutedOnData
from budgeted.budget import Cost, Purpose
from budgeted.learner import DataFacts, Learner, Settings
from budgeted.methods import Method

TASKS = 5
"""tasks of the stream that a boundary is one of"""
_WITHHELD = 50  # samples of each class after which BiC withholds as many as it will: every tenth, five in all


@dataclass(frozen=True)
class Period:
    """What repeats itself in a method, and how long that takes."""

    samples: int = 1
    """that arrive"""
    steps: int = 1
    """training steps, of which a whole multiple is run"""
    what: str = "a step"

    def whole(self, iterations: float) -> int:
        """Steps after which samples and steps have both come round."""
        due = Fraction(iterations).limit_denominator(1000) * self.samples
        return int(due * (due / self.steps).denominator)


@dataclass(frozen=True)
class Spent:
    """What a stretch of the stream was charged, and what was executed in it if that was asked."""

    steps: int
    """training steps that were run, by the stream or for the evaluation"""
    on: Mapping[Purpose, Cost]
    executed: int | None

    @property
    def real(self) -> int:
        return sum(cost.real for cost in self.on.values())


@dataclass(frozen=True)
class Side:
    """One side of a boundary: the period, what was run for one evaluation behind it, and when the task ended."""

    period: Spent
    evaluation: Spent
    end: Spent = Spent(0, {}, None)


class Probe:
    """Feeds a learner with noise and notes what it spends."""

    def __init__(
        self,
        method: Method | type[Method],
        facts: DataFacts,
        model: str,
        *,
        settings: Settings,
        slots: int,
        arriving: int | None = None,
        audit: bool = False,
    ) -> None:
        classes = facts.classes or 1
        network = models.build(model, classes=classes, input_shape=facts.input_shape)
        self.learner = Learner(network, method, facts, slots=slots, iterations=0.0, settings=settings)
        self.arriving = arriving or max(1, classes // TASKS)
        self._audit = audit
        self._noise = torch.Generator().manual_seed(0)
        self._met = 0  # classes

    def meet(self, classes: int) -> None:
        """Fill the memory with all classes up to so many, without a step, and what is withheld as well."""
        before, self._met = self._met, classes
        count = self.learner.slots or 0
        if self.learner.method.boundaries:
            count = max(count, _WITHHELD * (classes - before))
        self.learner.iterations = 0.0
        for number in range(count):
            self.learner.learn(self._sample(), before + number % (classes - before))
        self.learner.flush()

    def side(self, period: Period, iterations: float) -> Side:
        """A period to warm up, so that nothing is traced any more; then a period and an evaluation that count."""
        self.learner.iterations = iterations
        steps = max(2, period.whole(iterations))
        self._arrive(steps)
        self.learner.before_prediction()
        before = self._progress
        of_period = self._counted(lambda: self._arrive(steps))
        run, due = self._progress - before, self.learner.due
        of_evaluation = self._counted(self.learner.before_prediction)
        return Side(replace(of_period, steps=run), replace(of_evaluation, steps=due - self.learner.due))

    def with_end(self, side: Side) -> Side:
        """And what is run when the task ends, the memory full."""
        self.learner.iterations = 0.0
        while not self.learner.memory.full:
            self.learner.learn(self._sample(), self._met - 1)
        return replace(side, end=self._counted(self.learner.end_task))

    @property
    def _progress(self) -> int:
        """Steps so far: run with the stream, or due if the method runs none then."""
        return self.learner.steps if self.learner.method.trains else self.learner.due

    def _counted(self, act: Callable[[], None]) -> Spent:
        ledger = self.learner.ledger
        before = dict(ledger.spent_on)
        with ExecutedOnData() if self._audit else nullcontext() as executed:
            act()
        spent: dict[Purpose, Cost] = {purpose: cost - before[purpose] for purpose, cost in ledger.spent_on.items()}
        return Spent(0, spent, None if executed is None else executed.total)

    def _arrive(self, steps: int) -> None:
        """Samples of the classes met last, until so many steps are run."""
        target, number = self._progress + steps, 0
        while self._progress < target:
            self.learner.learn(self._sample(), self._met - 1 - number % min(self.arriving, self._met))
            number += 1

    def _sample(self) -> Tensor:
        return torch.randint(0, 256, self.learner.data.input_shape, generator=self._noise, dtype=torch.uint8)
