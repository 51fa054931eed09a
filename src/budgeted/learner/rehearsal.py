"""What a stream will cost, before there is data: the same learner goes through it dry, and is charged as if it ran.

Every sample of the course is offered to the memory and every evaluation is held; training steps of a long stream are
run in short stretches, evenly over it, and stand for the others. So whatever a method, a retrieval or a selection runs
is known without its author saying anything. What freezing looks at, which depends on real gradients, and the time of an
operation are measured in a few real steps on noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted.budget import NOTHING, Cost, Ledger, Purpose, total
from budgeted.budget.account import Account
from budgeted.learner.learner import Learner
from budgeted.learner.pace import crowding
from budgeted.learner.parts import Parts
from budgeted.network import Inputs, Network
from budgeted.network.dry import CLASSES, DryNetwork
from budgeted.problems import Sample
from budgeted.problems.batches import length
from budgeted.replay import Memory
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Batch

_PARTS = 40  # of the stream: steps are run in the middle of each
_STEPS = 20  # so many at least: methods do something in every tenth step
_MEASURED = 4  # real steps: one of them refreshes the Fisher traces
_Spent: TypeAlias = "tuple[int, Mapping[Purpose, Cost]]"
"""steps, and what was charged for them"""
_STORED = 100  # slots of a measurement


@dataclass(frozen=True)
class Course:
    """A stream as far as it is known before there is data, and what is done along it."""

    labels: npt.NDArray[np.int64]
    """the class of every sample, in order of arrival"""
    boundaries: tuple[int, ...]
    """samples that have arrived when a task ends"""
    evaluations: tuple[int, ...]
    """samples that have arrived when an evaluation comes"""
    known: bool = False
    """whether these labels will arrive, and not just such as them"""

    def mean_rows(self, trains: bool, power: float = 1.0) -> int:
        """Classes that have been met when a step is run, in the mean: with the stream, at its pace, or at the next
        evaluation."""
        first = np.unique(self.labels, return_index=True)[1]
        run_at = np.arange(len(self.labels))
        if not trains:
            run_at = np.array(self.evaluations)[np.searchsorted(self.evaluations, run_at, side="right")] - 1
        met = np.searchsorted(np.sort(first), run_at, side="right")
        return max(1, round(float((met * crowding(len(met), power)).mean())))


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal showed: costs of a step, and of what is run however many steps there are."""

    step: Mapping[Purpose, Cost]
    """of a step in the mean over the stream, nothing frozen"""
    beside: Mapping[Purpose, Cost]
    """of the whole stream, beside the steps"""
    steps_over_stream: tuple[Cost, ...]
    """of a step in equal parts of the stream"""
    beside_over_stream: tuple[Cost, ...]
    """beside the steps, up to the ends of these parts"""
    power: float = 1.0
    """of the pace"""

    def whole(self, steps: float) -> Cost:
        """Of a run with so many steps."""
        return part_of(total(self.step.values()), steps) + total(self.beside.values())

    def spread(self, steps: int) -> dict[Purpose, Cost]:
        """Of one of so many steps, what is beside them spread over all."""
        found = dict(self.step)
        for purpose, cost in self.beside.items():
            found[purpose] = found.get(purpose, NOTHING) + part_of(cost, 1 / max(1, steps))
        return found

    def spending(self, steps: float, rule: Any) -> tuple[float, ...]:
        """Shares of the compute that are spent at the ends of equal parts of the stream."""
        parts = len(self.beside_over_stream)
        each = [cost.under(rule) for cost in self.steps_over_stream]
        there = np.interp(np.linspace(0, 1, parts), np.linspace(0, 1, len(each)), each) * crowding(parts, self.power)
        of_steps = np.cumsum(there) * steps / parts
        spent = of_steps + np.array([cost.under(rule) for cost in self.beside_over_stream])
        return tuple((spent / max(1.0, float(spent[-1]))).tolist())


def rehearse(build: Callable[..., Learner], course: Course) -> Rehearsed:
    """Go through the course with the learner that `build(parts=…)` makes: one without a budget, whose model has as many
    rows as classes are known in the mean."""
    learner = build(parts=_DryParts, iterations=0.0)
    tally, count = learner.account, len(course.labels)
    sample = learner.problem.noise(np.random.default_rng(0))
    assert isinstance(tally, _Tally)
    parts = max(1, min(_PARTS, count // 2))
    begins = 0 if count <= parts * _STEPS else 0.5  # of a short stream every step is run
    # without stretches, whose ends are rounded
    whole = not learner.method.trains or (course.known and not begins and learner.pace.power == 1)
    evaluations, boundaries = {*course.evaluations}, {*course.boundaries}
    of_parts: list[dict[Purpose, Cost]] = []  # of a step in each part of the stream
    beside: list[Cost] = []  # at the ends of the parts
    before, until = (0, dict(tally.of_steps)), 0
    power, learner.pace.power = learner.pace.power, 1.0  # its own steps are even
    learner.iterations = float(whole)  # one that trains for evaluations runs all of its steps, too
    for arrived, label in enumerate(course.labels.tolist(), start=1):
        if not whole and not until and arrived > (len(of_parts) + begins) * count / parts:
            before, until = (learner.steps, dict(tally.of_steps)), learner.steps + _STEPS
            learner.iterations = 1.0
        known = learner.problem.row(label)
        learner.learn(_marked(sample, len(learner.problem.keys) if known is None else known), label)
        if until and (learner.steps >= until or arrived == count):
            learner.iterations, until = 0.0, 0
            learner.pace.reset()
            found = _mean_since(before, (learner.steps, tally.of_steps)) or (of_parts[-1] if of_parts else {})
            passed = max(len(of_parts) + 1, arrived * parts // count)  # on a short stream a stretch goes over several
            of_parts += [found] * (passed - len(of_parts))
        if arrived in evaluations:
            learner.before_prediction()
        if arrived in boundaries and arrived < count and learner.boundaries:
            learner.end_task()
        while len(beside) < parts and arrived >= (len(beside) + 1) * count // parts:
            beside.append(learner.ledger.spent - total(tally.of_steps.values()))
    if course.known:
        learner.flush()
    learner.close()
    if not of_parts or not all(of_parts):  # no step came while the stream ran
        anywhere = _mean_since((0, {}), (learner.steps, tally.of_steps))
        of_parts = [anywhere or learner.network.nominal(learner.batch_size)] * parts
    on: dict[Purpose, Cost] = {p: c - tally.of_steps.get(p, NOTHING) for p, c in learner.ledger.spent_on.items()}
    weights = crowding(len(of_parts), power).tolist()
    return Rehearsed(
        _mean(of_parts, weights), on, tuple(total(each.values()) for each in of_parts), tuple(beside), power
    )


def _marked(sample: Sample, row: int) -> Sample:
    """The sample of a class: its first number says which."""
    if not isinstance(sample, Tensor) or sample.ndim == 0:
        return sample
    found = sample.clone()
    found.view(-1)[0] = row % CLASSES
    return found


def _mean_since(before: _Spent, after: _Spent) -> dict[Purpose, Cost]:
    """Of a step between two moments; nothing if there was none."""
    steps = after[0] - before[0]
    spent = {purpose: cost - before[1].get(purpose, NOTHING) for purpose, cost in after[1].items()}
    return {purpose: part_of(cost, 1 / steps) for purpose, cost in spent.items()} if steps else {}


def _mean(costs: Sequence[Mapping[Purpose, Cost]], weights: Sequence[float]) -> dict[Purpose, Cost]:
    purposes = dict.fromkeys(purpose for each in costs for purpose in each)
    found: dict[Purpose, Cost] = {}
    for p in purposes:
        weighed = (part_of(each.get(p, NOTHING), weight) for each, weight in zip(costs, weights, strict=True))
        found[p] = part_of(total(weighed), 1 / len(costs))
    return found


def measure(build: Callable[..., Learner], batch: int) -> tuple[dict[Purpose, Cost], float]:
    """A few real steps on noise: what freezing looks at costs in a step of so many samples, and seconds for an
    operation under rule `real` on this machine."""
    # large batches of large images would take minutes; time and looks grow with the batch
    few = min(batch, 16)
    learner = build(parts=_LookingParts, iterations=0.0, batch_size=few, slots=max(2 * few, _STORED))
    looks = learner.account
    assert isinstance(looks, _Looks)
    noise = np.random.default_rng(0)
    classes, number = learner.problem.classes or 2, 0

    def arrive() -> None:
        nonlocal number
        learner.learn(learner.problem.noise(noise), number % classes)
        number += 1

    def train(steps: int) -> None:
        if not learner.method.trains:
            for _ in range(steps):
                some = learner.memory.gather(np.arange(min(few, len(learner.memory))))
                learner.practise("evaluation_training", some.samples, some.labels)
            return
        before = learner.steps
        learner.pace.reset(steps)
        while learner.steps == before:
            arrive()

    while len(learner.memory) < 2 * few and number < 20 * few:
        arrive()
    train(1)  # traces prices, and checks the closed form, once
    looked, spent, start = looks.cost, learner.ledger.spent, time.perf_counter()
    train(_MEASURED)
    seconds = time.perf_counter() - start
    ran = (learner.ledger.spent - spent).real
    of_step = part_of(looks.cost - looked, batch / (few * _MEASURED))
    learner.close()
    return ({"fisher": of_step} if of_step.real else {}), seconds / max(1, ran)


def part_of(cost: Cost, share: float) -> Cost:
    """A share of a cost, or a multiple."""
    return Cost(round(cost.paper * share), round(cost.real * share))


class _Tally(Account):
    """Knows what was charged for steps, by purpose."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.of_steps: dict[Purpose, Cost] = {}

    def end_step(self, costs: Mapping[Purpose, Cost], steps: int = 1) -> dict[Purpose, Cost]:
        found = super().end_step(costs, steps)
        for purpose, cost in found.items():
            self.of_steps[purpose] = self.of_steps.get(purpose, NOTHING) + cost
        return found


class _Looks(Account):
    """Knows what freezing looked at, without what else goes by that purpose."""

    cost = NOTHING

    def end_step(self, costs: Mapping[Purpose, Cost], steps: int = 1) -> dict[Purpose, Cost]:
        self.cost += costs.get("fisher", NOTHING)
        return super().end_step(costs, steps)


class _LookingParts(Parts):
    account = _Looks


class _MarkedMemory(Memory):
    """Its samples, which are all alike, tell their classes."""

    def gather(self, slots: Slots) -> Batch:
        found = super().gather(slots)
        if isinstance(found.samples, Tensor):
            found.samples.flatten(1)[:, 0] = (found.labels % CLASSES).to(found.samples.dtype)
        return found


class _DryParts(Parts):
    """A network that runs nothing, a memory without pixels."""

    account = _Tally
    network_type = DryNetwork
    memory_type = _MarkedMemory
    alike = True

    def network(self, model: nn.Module, device: torch.device) -> Network:
        problem = self.learner.problem

        @cache
        def nothing(count: int) -> Inputs:
            made: Inputs = pytree.tree_map(lambda each: torch.zeros_like(each, device=device), problem.example(count))
            return made

        network = super().network(model, device)
        assert isinstance(network, DryNetwork)

        def inputs(samples: Sample, generator: np.random.Generator | None = None) -> Inputs:
            network.marks = samples.flatten(1)[:, 0].long() if isinstance(samples, Tensor) else None
            return nothing(length(samples))

        problem.inputs = inputs  # type: ignore[method-assign]
        return network
