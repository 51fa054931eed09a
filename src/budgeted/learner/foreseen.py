"""What a run will cost, before there is data: its steps, and what the method runs along the stream beside them.

Forward, backward and optimizer of a full batch are priced, with nothing frozen. So is what the method adds, which
depends on how much is stored, on which classes arrive and on how often is evaluated: the method says it of the
whole course, the retrieval at moments of it. What freezing, draws and a selection that looks at the model add is
measured in a few real steps on noise, and so is the time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch

from budgeted import models
from budgeted.budget import NOTHING, Cost, Purpose, total
from budgeted.learner.learner import Learner
from budgeted.learner.settings import Settings
from budgeted.methods import Method
from budgeted.methods.course import Counts, Course, part, together
from budgeted.replay import Considers
from budgeted.replay.view import LearnerView
from budgeted.streams import DatasetInfo, Stream, make_stream

MOMENTS = 5
"""where a stream has no tasks: parts at whose ends methods are told of a boundary"""
_STORED = 100  # slots of a measurement: as many as MIR and ASER look at
_STEPS = 4  # of a measurement: one of them refreshes the Fisher traces


def boundaries_of(stream: Stream) -> tuple[int, ...]:
    """Where tasks end; after every fifth of a stream without tasks. The stream's own end is none."""
    ends = stream.boundaries() or (len(stream) * k // MOMENTS for k in range(1, MOMENTS))
    return tuple(sorted({*ends} - {0}))


def course_of(
    method: Method | type[Method],
    settings: Settings,
    info: DatasetInfo,
    samples: int,
    *,
    order: str,
    slots: int | None,
    eval_every: int,
) -> Course:
    """A stream of this kind over classes of one size; the same for a plan and for the run."""
    even = np.arange(samples) % info.classes
    domains = np.arange(samples) * info.domains // samples
    stream = make_stream(order, even, 0, domains=domains)
    _, first, numbered = np.unique(even[stream.indices], return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))
    boundaries = boundaries_of(stream)
    return Course(
        labels=by_appearance[numbered],
        boundaries=boundaries,
        evaluations=tuple(sorted({*range(eval_every, samples + 1, eval_every), *boundaries, samples})),
        slots=slots,
        batch=settings.learner.batch_size,
        new=int(settings.learner.batch_size * method.stream_share),
        trains=method.trains,
    )


@dataclass(frozen=True)
class Foreseen:
    """What a run costs: so much for every step, so much however many there are."""

    step: Mapping[Purpose, Cost]
    """of a step in the mean over the stream, nothing frozen"""
    beside: Mapping[Purpose, Cost]
    """of the whole stream, beside the steps"""
    pace: float | None
    """seconds for an operation under rule `real` on this machine; None if not measured"""

    def whole(self, steps: float) -> Cost:
        """Of a run with so many steps."""
        return part(total(self.step.values()), steps) + total(self.beside.values())

    def spread(self, steps: int) -> dict[Purpose, Cost]:
        """Of one of so many steps, what is beside them spread over all."""
        return together(self.step, {purpose: part(cost, 1 / max(1, steps)) for purpose, cost in self.beside.items()})


def per_step(learner: Learner, batch: int) -> dict[Purpose, Cost]:
    """Nominal cost of a full step: forward, backward and optimizer with nothing frozen."""
    prices = learner.freezing.price(learner.example(batch))
    forward, backward = total(prices.forward), total(prices.backward)
    everything = [p for p in learner.model.parameters() if p.requires_grad]
    return {"forward": forward, "backward": backward, "optimizer": learner.freezing.optimizer_cost(everything)}


def foreseen(learner: Learner, model_name: str, course: Course) -> Foreseen:
    """Of a learner whose head has as many rows as classes are known in the mean: the head grows, prices with it."""
    found = _measured(learner, model_name, course)
    parts = dict(found.step)
    looking = _retrieval(learner, course)
    if looking != NOTHING:  # it looks at the model, and says what that costs when so much is stored
        parts["retrieval"] = looking
    stored_in_full_memory = 0 if course.slots is None else max(0, len(course) - course.slots)
    return Foreseen(
        together(per_step(learner, course.batch), parts, learner.method.each_step(course)),
        together({"retrieval": part(found.stored, stored_in_full_memory)}, learner.method.beside_steps(course)),
        found.pace,
    )


def _retrieval(learner: Learner, course: Course) -> Cost:
    """What a retrieval that looks at the model runs in a step, in the mean over the course."""
    moments = course.moments()
    costs = [
        learner.retrieval.most(_then(learner, course.stored(moment), course.slots), course.new, course.batch)
        for moment in moments
    ]
    return part(total(costs), 1 / len(moments))


@dataclass(frozen=True)
class _Stored:
    """A memory that will be, as far as prices depend on it."""

    counts: Counts
    capacity: int | None

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def full(self) -> bool:
        return self.capacity is not None and len(self) >= self.capacity


class _View:
    """A learner in all but what is given."""

    def __init__(self, learner: Learner, **instead: Any) -> None:
        self.__dict__.update(instead)
        self._learner = learner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)


def _then(learner: Learner, counts: Counts, slots: int | None) -> LearnerView:
    return cast(LearnerView, _View(learner, memory=_Stored(counts, slots)))


class _Probe:
    """A learner on noise, with a full memory that is no larger than need be."""

    def __init__(self, learner: Learner, model_name: str, course: Course) -> None:
        # large batches of large images would take minutes; time and extras grow with the batch
        self.batch = min(course.batch, 16)
        self.classes = learner.data.classes or 2
        settings = replace(learner.settings, learner=replace(learner.settings.learner, batch_size=self.batch))
        model = models.build(model_name, classes=self.classes, input_shape=learner.data.input_shape)
        slots = max(2 * self.batch, min(_STORED, course.slots or _STORED))
        facts = replace(learner.data, samples=None)
        self.learner = Learner(model, learner.method, facts, slots=slots, iterations=0.0, settings=settings, seed=0)
        self.learner.freezing.share = 0.0  # as at the start of the stream
        self.of_method: dict[Purpose, Cost] = {}  # what the method was charged
        # the method foresees its own; what it does only if that can be paid, it leaves out here
        view = _View(self.learner, charge=self._note, affords=lambda cost: False)
        self.learner.method.learner = cast(LearnerView, view)
        self._noise = torch.Generator().manual_seed(0)
        while len(self.learner.memory) < slots:
            self._arrive()
        self.learner.flush()

    def train(self, steps: int) -> None:
        """Steps that are due at once: the next full stream batch, or the next sample, runs them."""
        learner = self.learner
        if not learner.method.trains:
            for _ in range(steps):
                some = learner.memory.gather(np.arange(self.batch))
                learner.practise(some.samples, some.labels, "evaluation_training")
            return
        before = learner.steps
        learner._due.reset(steps)
        while learner.steps == before:
            self._arrive()

    def offer(self) -> int:
        """Offer as many samples to the memory as come to it at once, without a step; how many they are."""
        waiting = max(1, self.learner.stream_batch * self.learner.method.choices)
        for _ in range(waiting):
            self._arrive()
        return waiting

    def _arrive(self) -> None:
        sample = torch.randint(0, 256, self.learner.data.input_shape, generator=self._noise, dtype=torch.uint8)
        self.learner.learn(sample, self.learner.arrived % self.classes)

    def _note(self, purpose: Purpose, cost: Cost) -> None:
        self.of_method[purpose] = self.of_method.get(purpose, NOTHING) + cost
        self.learner.charge(purpose, cost)


@dataclass(frozen=True)
class _Measured:
    """What a few steps showed."""

    step: Mapping[Purpose, Cost]
    """of parts beside the method; of the method too if it foresees nothing itself"""
    stored: Cost
    """of offering one sample to a full memory"""
    pace: float


def _measured(learner: Learner, model_name: str, course: Course) -> _Measured:
    probe = _Probe(learner, model_name, course)
    ledger = probe.learner.ledger
    probe.train(1)  # traces prices, and checks the closed form, once
    offered, of_one = NOTHING, NOTHING
    if isinstance(probe.learner.selection, Considers):
        before = ledger.spent
        count = probe.offer()
        offered = ledger.spent - before
        of_one = part(offered, 1 / count)
    probe.of_method.clear()
    known, before = dict(ledger.spent_on), ledger.spent
    start = time.perf_counter()
    probe.train(_STEPS)
    seconds = time.perf_counter() - start
    elsewhere = together({"retrieval": offered}, probe.of_method)  # the batch was stored behind the steps
    purposes: tuple[Purpose, ...] = ("fisher", "similarity", "retrieval")
    if type(learner.method).each_step is Method.each_step:  # it foresees nothing: what was seen is taken
        elsewhere = {"retrieval": offered, **{p: c * _STEPS for p, c in per_step(probe.learner, probe.batch).items()}}
        purposes = (*purposes, "forward", "backward")
    found: dict[Purpose, Cost] = {}
    for purpose in purposes:
        cost = ledger.spent_on[purpose] - known[purpose] - elsewhere.get(purpose, NOTHING)
        if cost.real > 0:
            found[purpose] = part(cost, course.batch / (probe.batch * _STEPS))
    probe.learner.close()
    return _Measured(found, of_one, seconds / max(1, (ledger.spent - before).real))
