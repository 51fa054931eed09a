"""From a budget to a plan: bytes become slots, compute becomes steps per sample, before any data is there.

A rehearsal of the same learner over a stream of the same kind shows what will be run and kept.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from budgeted import models
from budgeted.budget import NOTHING, Budget, Compute, Cost, Purpose, Rule, format_bytes, format_compute, total
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner, Settings
from budgeted.learner.rehearsal import Course, Rehearsed, measure, rehearse
from budgeted.methods import Method
from budgeted.network.expandable import Expandable
from budgeted.problems import PROBLEMS, Problem
from budgeted.replay import CODECS, Codec, Column, bytes_per_slot
from budgeted.runs.config import RunConfig
from budgeted.runs.typical import Typical, typical_of
from budgeted.streams import Dataset, DatasetInfo, Stream, make_stream, stream_of

# what the paper's tables count for a model: parameters (a shortcut without parameters, no head) and layers
PAPER_COPIES = {"ewc": 2, "bic": 1, "ccl-dc": 1, "egeria": 1}
"""how often the paper's tables count the model's parameters beside the model"""
PAPER_MODELS: dict[str, tuple[int, int]] = {"resnet32": (463_504, 32), "resnet18": (11_170_000, 18)}
PAPER_STAGES = {"resnet32": 351_488}
"""parameters of the last stage in the paper's tables (a shortcut without parameters)"""
MOMENTS = 5
"""where a stream has no tasks: parts at whose ends methods are told of a boundary"""


@dataclass(frozen=True)
class Plan:
    """What a budget buys."""

    method: str
    dataset: str
    model: str
    rule: Rule
    samples: int
    batch_size: int
    slots: int | None
    bytes: dict[str, int]
    """bytes by item under the rule"""
    iterations: float
    """training steps per sample"""
    steps: int
    per_step: Mapping[Purpose, Cost]
    """cost of one full step by purpose, nothing frozen; what is run beside the steps is spread over them"""
    spent: Cost
    """cost of the whole run with nothing frozen"""
    seconds: float | None
    """predicted from a short measurement on this machine; None if not measured"""
    typical: Typical | None = None
    """where slots differ in bytes: what the estimate of `slots` comes from; without data there is none"""


@dataclass(frozen=True)
class Terms:
    """What a learner is built with so that it spends a budget on a stream."""

    slots: int | None
    iterations: float
    budget: Budget
    spending: tuple[float, ...] = ()
    growth: int = 0
    """bytes that the network will have grown by at the end, which are no slots"""


def boundaries_of(stream: Stream) -> tuple[int, ...]:
    """Where tasks end; after every fifth of a stream without tasks. The stream's own end is none."""
    ends = stream.boundaries() or (len(stream) * k // MOMENTS for k in range(1, MOMENTS))
    return tuple(sorted({*ends} - {0}))


MOST_PLANNED = 10**8


def course_of(info: DatasetInfo, samples: int, order: str, eval_every: int) -> Course:
    """A stream of this kind over classes of one size: nearly what the real one brings, the same for whoever plans."""
    if samples > MOST_PLANNED:
        raise BudgetedError(f"a plan goes over at most {MOST_PLANNED:,} samples: give a lower --limit")
    even = np.arange(samples) % info.classes
    domains = np.arange(samples) * info.domains // samples
    return course_along(make_stream(order, even, 0, domains=domains), even, eval_every)


def course_along(stream: Stream, labels: npt.NDArray[np.int64], eval_every: int, *, known: bool = False) -> Course:
    """Of a stream over samples of these classes."""
    boundaries, samples = boundaries_of(stream), len(stream)
    evaluations = tuple(sorted({*range(eval_every, samples + 1, eval_every), *boundaries, samples}))
    return Course(labels[stream.indices], boundaries, evaluations, known)


def course_in(data: Dataset, samples: int, order: str, seed: int, eval_every: int) -> Course | None:
    """The course of a run over these data, whose labels say what arrives when; none where the data do not say it, or
    where there are not so many samples."""
    labels = data.train_labels
    if data.sequential or not data.classes <= samples <= len(labels):
        return None
    limit = samples if samples < len(labels) else None
    return course_along(stream_of(data, order, seed, limit=limit), labels, eval_every, known=True)


class Planner:
    """Learners for one method, model and stream, and what they will cost."""

    def __init__(
        self,
        method: Method | type[Method],
        info: DatasetInfo,
        model: str,
        *,
        settings: Settings,
        samples: int,
        order: str,
        eval_every: int,
        seed: int = 0,
        device: str = "cpu",
        problem: str | None = None,
    ) -> None:
        self.problem = problem or info.problem
        self.method, self.info, self.model, self.settings = method, info, model, settings
        self.samples, self.seed, self.device = samples, seed, device
        self.course = course_of(info, samples, order, eval_every)

    @classmethod
    def of_run(cls, config: RunConfig, info: DatasetInfo, samples: int) -> Planner:
        """For the run that a configuration gives over data of this kind."""
        return cls(
            config.build_method(), info, config.network, settings=config.build_settings(info.flips, info.problem),
            samples=samples, order=config.stream, eval_every=config.eval_every, seed=config.seed,
            device=config.device, problem=config.problem,
        )  # fmt: skip

    def learner(self, *, rows: int = 1, batch_size: int | None = None, **more: Any) -> Learner:
        """A new one, whose model has so many outputs."""
        info, settings = self.info, self.settings
        if batch_size is not None:
            settings = replace(settings, learner=replace(settings.learner, batch_size=batch_size))
        model = models.build(self.model, classes=rows, input_shape=info.input_shape, seed=self.seed)
        given = {"settings": settings, "seed": self.seed, "device": self.device, **more}
        return Learner(model, copy.deepcopy(self.method), self._data(settings, model, given["device"]), **given)

    def _data(self, settings: Settings, model: nn.Module, device: str) -> DataFacts | Problem:
        if self.problem == "classification":
            return facts_of(self.info, self.samples)
        problem = PROBLEMS[self.problem].of_data(settings.problem, self.info, model, device)
        problem.classes, problem.samples = self.info.classes, self.samples
        return problem

    @cached_property
    def varying(self) -> bool:
        """Whether slots differ in bytes, so that nobody knows beforehand how many there will be."""
        codec: Codec = copy.deepcopy(CODECS.made(self.method.codec, self.settings.codec))
        if self.problem == "classification":
            codec.columns([Column("sample", self.info.input_shape, torch.uint8)])
        return codec.varying

    def rehearsed(self, slots: int | None, nbytes: int | None = None) -> Rehearsed:
        rows = (
            self.info.classes
            if self.method.whole_head
            else self.course.mean_rows(self.method.trains, self.settings.learner.pace_power)
        )
        if self._grows:  # then the head grows in the rehearsal, too
            rows = 1
        budget = Budget(bytes=nbytes) if self.varying and nbytes is not None else None
        found = rehearse(
            lambda **more: self.learner(rows=rows, slots=slots, budget=budget, device="cpu", **more), self.course
        )
        looks = {purpose: cost + found.step.get(purpose, NOTHING) for purpose, cost in self.measured[0].items()}
        return replace(found, step={**found.step, **looks})

    @cached_property
    def _grows(self) -> bool:
        """Whether the network grows with the tasks."""
        probe = self.learner(slots=None if self.varying else 1)
        probe.close()
        return probe.network.grows

    @cached_property
    def measured(self) -> tuple[dict[Purpose, Cost], float]:
        """What freezing looks at, and seconds for an operation."""
        instead: dict[str, Any] = {"slots": None} if self.varying else {}
        return measure(
            lambda **more: self.learner(rows=self.info.classes, **{**more, **instead}), self.settings.learner.batch_size
        )

    def terms(
        self, budget: Budget, slots: int | None, iterations: float | None, rule: Rule, *, spends: bool = False
    ) -> Terms:
        """Slots and steps that a budget buys; `spends`: it is to be spent whatever is saved."""
        growth = 0
        if self.varying:
            if rule == "paper":
                raise BudgetedError("rule paper counts slots of one size: leave it out, or add --codec raw")
            slots = None if budget.bytes is not None else slots
        elif budget.bytes is not None:
            probe = self.learner(slots=1)
            fixed = sum(fixed_bytes(probe, self.model, rule).values())
            if rule == "real" and probe.network.grows:  # what grows with the tasks is reserved
                growth = grown_bytes(probe, sum(end < self.samples for end in self.course.boundaries))
            slots = slots_beside(fixed + growth, probe, self.model, budget.bytes, rule)
            probe.close()
        if rule == "paper":  # the paper's bytes are not the ones that `nbytes()` counts
            budget = budget.without_bytes()
        if budget.compute is None and not spends:
            return Terms(slots, 1.0 if iterations is None else iterations, budget, growth=growth)
        rehearsed = self.rehearsed(slots, budget.bytes)
        if budget.compute is None:
            steps = (1.0 if iterations is None else iterations) * self.samples
            budget = budget.with_compute(rehearsed.whole(steps).real, "real")
        elif budget.compute.each:
            budget = replace(budget, compute=budget.compute.over(self.samples))
        assert budget.compute is not None
        if iterations is None:
            iterations = iterations_within(rehearsed, budget.compute, self.samples)
        spending = rehearsed.spending(iterations * self.samples, budget.compute.rule)
        return Terms(slots, iterations, budget, spending, growth)


def facts_of(info: DatasetInfo, samples: int | None = None) -> DataFacts:
    return DataFacts(info.input_shape, info.mean, info.std, info.flips, info.classes, samples or info.train_size)


def fixed_bytes(learner: Learner, model_name: str, rule: Rule) -> dict[str, int]:
    """What does not depend on the number of slots."""
    items = learner.nbytes_by_item(rule)
    items.pop("memory", None)  # an empty one whose slots differ in bytes has none
    if rule == "paper":
        parameters, layers = PAPER_MODELS.get(model_name, (_body_parameters(learner), len(learner.freezing.chain)))
        items = {"parameters": 4 * parameters}
        similarity = getattr(learner.retrieval, "similarity", None)
        if similarity is not None:
            items["similarity"] = similarity.matrix.nbytes  # the paper pays for S alone
        copies = PAPER_COPIES.get(learner.method.name.removeprefix("lider-"), 0)
        if copies:
            items["method"] = copies * 4 * parameters
        elif isinstance(learner.model, Expandable):  # one stage more, however many come
            items["method"] = 4 * PAPER_STAGES.get(
                model_name, sum(p.numel() for p in learner.model.stages.parameters())
            )
        if learner.method.freezing == "adaptive":
            items["freezing"] = 4 * layers
        elif learner.method.freezing == "egeria":
            items["freezing"] = PAPER_COPIES["egeria"] * 4 * parameters
        elif learner.freezing.nbytes():
            items["freezing"] = learner.freezing.nbytes()
    return items


def _body_parameters(learner: Learner) -> int:
    head = {id(parameter) for parameter in learner.head.parameters()}
    return sum(parameter.numel() for parameter in learner.model.parameters() if id(parameter) not in head)


def raw_bytes(learner: Learner) -> int:
    """Of a slot that holds a sample as it is."""
    return bytes_per_slot((*learner.memory.sample_columns, *learner.memory.columns_beside))


def grown_bytes(learner: Learner, tasks: int) -> int:
    """What a network that grows will have grown by when so many tasks have ended; it has, then."""
    before = learner.nbytes()
    most = before
    for _ in range(tasks):
        learner.network.end_task()
        most = max(most, learner.nbytes())
    return most - before


def slots_beside(fixed: int, learner: Learner, model_name: str, budget: int, rule: Rule) -> int:
    """Slots that fit beside so many bytes."""
    per_slot: int = bytes_per_slot(learner.memory.columns, rule)
    slots: int = (budget - fixed) // per_slot
    if slots < 1:
        average = learner.network.average
        without = (
            "" if average is None else f", about {format_bytes(average.nbytes())} less with --set learner.average=none"
        )
        raise BudgetedError(
            f"{budget} bytes ({format_bytes(budget)}) do not hold {model_name} and one slot under rule {rule}: "
            f"the smallest possible budget is {fixed + per_slot}B{without}"
        )
    return int(slots)


def iterations_within(rehearsed: Rehearsed, compute: Compute, samples: int) -> float:
    """Steps per sample that a compute budget pays for, beside what does not depend on them."""
    step = total(rehearsed.step.values()).under(compute.rule)
    beside = total(rehearsed.beside.values()).under(compute.rule)
    steps = (compute.amount - beside) // max(1, step)
    if steps < 1:
        smallest = (beside + step) * 102 // 100  # printed to five figures, and with room for small extras
        raise BudgetedError(
            f"{compute} does not pay for one step: the smallest possible budget is "
            f"{format_compute(smallest, compute.rule)}"
        )
    return steps / samples


def make_plan(
    method: Method | type[Method],
    info: DatasetInfo,
    model_name: str,
    *,
    settings: Settings,
    samples: int | None = None,
    slots: int | None = None,
    budget: Budget,
    iterations: float | None = None,
    rule: Rule = "real",
    stream: str = "gaussian",
    eval_every: int = 100,
    seed: int = 0,
    problem: str | None = None,
    measure: bool = True,
    dataset: Callable[[], Dataset | None] = lambda: None,
) -> Plan:
    """Work out slots, steps, cost and time; needs no data on disk. `measure` rehearses what the method itself runs.

    dataset: loads the data if they are there. Slots that differ in bytes are estimated from them, and what the steps
        cost is rehearsed with their labels in the order of arrival. How many steps a budget pays for is not: a run
        does not know what is to arrive.
    """
    samples = info.train_size if samples is None else samples
    if samples < 1:
        raise BudgetedError(f"a stream of {samples} samples (--limit) teaches nothing: give at least 1")
    if iterations is not None and (not math.isfinite(iterations) or iterations < 0):
        raise BudgetedError(f"iterations per sample must be a number of 0 or more, got {iterations}")
    planner = Planner(
        method, info, model_name, settings=settings, samples=samples, order=stream, eval_every=eval_every, seed=seed,
        problem=problem,
    )  # fmt: skip
    data = dataset() if measure or planner.varying else None
    learner, growth = planner.learner(rows=info.classes, slots=None if planner.varying else 1), 0
    if budget.bytes is not None or planner.varying:
        terms = planner.terms(budget.without_compute(), slots, 1.0, rule)
        slots, growth = terms.slots, terms.growth
    items, typical = fixed_bytes(learner, model_name, rule) | ({"growth": growth} if growth else {}), None
    if planner.varying and (budget.bytes is not None or slots is not None):
        room = slots * raw_bytes(learner) if slots is not None else 0
        items["memory"] = room if budget.bytes is None else budget.bytes - sum(items.values())
        typical = None if data is None else typical_of(learner, data)
    elif slots is not None:
        items["memory"] = slots * bytes_per_slot(learner.memory.columns, rule)
    course = None if data is None or not measure else course_in(data, samples, stream, seed, eval_every)
    if course is not None and iterations is not None:
        planner.course, course = course, None
    if measure:
        rehearsed, pace = planner.rehearsed(slots, budget.bytes), planner.measured[1]
    else:
        nominal = learner.network.nominal(settings.learner.batch_size)
        rehearsed, pace = Rehearsed(nominal, {}, (total(nominal.values()),), (Cost(0, 0),)), None
    paid_for = math.inf
    if budget.compute is not None and iterations is None:
        compute = budget.compute.over(samples)
        iterations = paid_for = iterations_within(rehearsed, compute, samples)
        if course is not None:  # of which a run knows nothing: its steps are as many, and may be dearer
            planner.course = course
            rehearsed = planner.rehearsed(slots, budget.bytes)
            paid_for = iterations_within(rehearsed, compute, samples)
    if iterations is None:
        raise BudgetedError("a plan needs iterations per sample or a compute budget: give --iterations or --compute")
    steps = int(samples * min(iterations, paid_for) + 1e-6)
    in_a_step = rehearsed.spread(steps)
    spent = total(in_a_step.values()) * steps
    return Plan(
        method=method.name,
        dataset=info.name,
        model=model_name,
        rule=rule,
        samples=samples,
        batch_size=settings.learner.batch_size,
        slots=typical.slots_in(items["memory"]) if typical else None if planner.varying else slots,
        bytes=items,
        iterations=iterations,
        steps=steps,
        per_step={purpose: cost for purpose, cost in in_a_step.items() if cost.real},
        spent=spent,
        seconds=None if pace is None else pace * spent.real,
        typical=typical,
    )
