"""Compute of an iteration over ER's, method by method; and what every freezing policy itself keeps and runs.

An iteration is one training step that a sample is due. What a method runs outside the steps is spread over them: the
training for an evaluation over the steps between two evaluations, work for the memory over the samples that caused it,
what is run when tasks end, the first and the last aside, over all steps of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from budgeted import streams
from budgeted.bench.probe import TASKS, Period, Probe, Side, Spent
from budgeted.bench.published import MULTIPLIERS, POLICY_RUNS, PublishedCompute
from budgeted.bench.slot_costs import slot_row
from budgeted.bench.sparse_costs import sparse_share
from budgeted.budget import RULES, Budget, Purpose, Rule
from budgeted.errors import BudgetedError
from budgeted.freezing import AdaptivePrefix, Egeria, TaskCorrelated
from budgeted.freezing.policies import POLICIES
from budgeted.learner import LearnerSettings, Settings
from budgeted.methods import METHODS, Method
from budgeted.methods.clib import SampleWiseImportance
from budgeted.methods.remind import REMIND
from budgeted.methods.sparcl import SparseContinualLearning
from budgeted.runs.plan import facts_of, make_plan

_SLOTS = 128  # of a measurement: more than MIR and ASER look at, and a quarter of it is whole stream batches
_OF_EACH_CLASS = 3  # slots at least: two for ASER's sets, and one to spare
_WHOLE_MEMORY = frozenset({"clib"})  # run the memory as a whole now and then, so they are measured at its real size
_GROWING = frozenset({"memo"})  # whose network grows when a task ends


@dataclass(frozen=True)
class Setup:
    """On what is measured."""

    dataset: str = "cifar10"
    model: str = "resnet32"
    budget: int = 7_998_016
    batch_size: int = 16
    iterations: float = 1.0
    """training steps per sample"""
    eval_every: int = 100
    """samples between two evaluations"""
    arriving: int | None = None
    """classes that arrive while it is measured; a fifth of all if None"""
    audit: bool = False
    """count what is executed as well, independently"""

    def __post_init__(self) -> None:
        if not 0 < self.iterations <= 100:
            raise BudgetedError(f"--iterations must be above 0 and at most 100 to be measured, got {self.iterations:g}")
        if self.eval_every < 1:
            raise BudgetedError(f"--eval-every must be 1 or more, got {self.eval_every}")
        if self.arriving is not None and not 1 <= self.arriving <= self.classes:
            raise BudgetedError(f"--arriving must be from 1 to the {self.classes} classes, got {self.arriving}")

    @property
    def classes(self) -> int:
        return streams.info(self.dataset).classes

    @property
    def slots(self) -> int:
        return max(_SLOTS, -(-_OF_EACH_CLASS * self.classes // _SLOTS) * _SLOTS)


@dataclass(frozen=True)
class Multiplier:
    """One method's compute per iteration over ER's."""

    method: str
    published: PublishedCompute
    over_er: Mapping[Rule, float]
    by_purpose: Mapping[Purpose, float]
    """under rule `real`, in ER's iterations"""
    executed_over_charged: float | None
    averaged_over: str
    if_sparse: float | None = None
    """of the layers' multiply-adds, what kernels that skip masked weights would execute; not charged"""


def period_of(method: type[Method], setup: Setup, slots: int) -> Period:
    """What repeats itself: a stream batch, a measurement of the memory, a refresh of the Fisher traces."""
    waiting = int(setup.batch_size * method.stream_share) * method.choices
    if not method.trains:
        passes = -(-slots // setup.batch_size)
        return Period(passes, what="a training for an evaluation, over the steps that were due")
    if isinstance(method.freezing, str) and method.freezing != "none":
        return policy_period(method.freezing)
    if method.name in _WHOLE_MEMORY:
        every = SampleWiseImportance.importance_period
        return Period(steps=every, what=f"{every} steps, one of which measures {slots:,} slots")
    if not waiting:
        return Period()
    if issubclass(method, SparseContinualLearning):
        every = SparseContinualLearning.refresh
        return Period(waiting, every, f"stream batches of {waiting} samples, one step in {every} choosing weights")
    what = f"a stream batch of {waiting} samples"
    if method.whole_head:
        what += ", behind the first boundary, half of the classes still to come"
    elif method.name in _GROWING:
        what += ", in each of five tasks"
    elif issubclass(method, REMIND):
        what += f", {REMIND.base_share:.0%} of the steps before the end of the base"
    elif method.boundaries:
        what += f", a fifth of the steps before the first boundary; evaluations every {setup.eval_every} samples"
    return Period(waiting, what=what)


def multipliers(methods: Sequence[type[Method]], setup: Setup) -> Iterator[Multiplier]:
    """One after the other: each takes from seconds to a minute."""
    for method in methods:
        sides, period = _measured(method.name, setup)
        at_ends = {rule: _ends_per_iteration(method, sides[-1], setup, rule) for rule in RULES}
        first = _first_share(method.name)
        by_rule = {rule: _sum(_per_iteration(sides, setup, rule, first), at_ends[rule]) for rule in RULES}
        over_er = {rule: sum(by_rule[rule].values()) / of_er(setup, rule) for rule in RULES}
        costs = by_rule["real"]
        by_purpose = {purpose: cost / of_er(setup, "real") for purpose, cost in costs.items() if cost}
        yield Multiplier(
            method.name,
            MULTIPLIERS.get(method.name, PublishedCompute()),
            over_er,
            by_purpose,
            _executed_over_charged([spent for side in sides for spent in (side.period, side.evaluation, side.end)]),
            period.what,
            sparse_share(method.name, setup.dataset, setup.model),
        )


def of_er(setup: Setup, rule: Rule) -> float:
    """An iteration of ER."""
    return sum(_per_iteration(_measured("er", setup)[0], setup, rule).values())


@cache
def _measured(name: str, setup: Setup) -> tuple[tuple[Side, ...], Period]:
    """Both sides of the first boundary; just one if the method needs none, all tasks if the network grows."""
    method = METHODS[name]
    slots = setup.slots
    if method.name in _WHOLE_MEMORY:
        planned = slot_row(method, setup.dataset, setup.model, setup.budget, setup.batch_size)
        slots = planned.slots("real") or slots
    period = period_of(method, setup, slots)
    facts = facts_of(streams.info(setup.dataset))
    probe = Probe(
        method,
        replace(facts, samples=None) if issubclass(method, REMIND) else facts,  # whose base then ends with a task
        setup.model,
        settings=Settings(LearnerSettings(batch_size=setup.batch_size)),
        slots=slots,
        arriving=setup.arriving,
        audit=setup.audit,
    )
    sides = []
    if method.whole_head:  # what it does for classes to come is measured while there are some
        probe.meet(max(1, setup.classes // 4))
        probe.learner.end_task()
        probe.meet(max(2, setup.classes // 2))
    elif method.boundaries:
        probe.meet(max(1, setup.classes // 2))
        sides.append(probe.side(period, setup.iterations))
        probe.learner.end_task()
        probe.meet(setup.classes)
    else:
        probe.meet(setup.classes)
    sides.append(probe.side(period, setup.iterations))
    grows = probe.learner.network.grows
    if method.boundaries and not grows:
        sides[-1] = probe.with_end(sides[-1])
    for _ in range(TASKS - 2 if grows else 0):  # every boundary makes a step dearer
        probe.learner.end_task()
        sides.append(probe.side(period, setup.iterations))
    probe.learner.close()
    return tuple(sides), period


def _ends_per_iteration(method: type[Method], side: Side, setup: Setup, rule: Rule) -> dict[Purpose, float]:
    """What is run over the memory when a task ends, at the slots of the budget and spread over the whole stream. In the
    first nothing was chosen before it, and behind the last there is nothing to learn."""
    spent = {purpose: cost.under(rule) for purpose, cost in side.end.on.items() if cost.real}
    if not spent:
        return {}
    slots = slot_row(method, setup.dataset, setup.model, setup.budget, setup.batch_size).slots("real") or setup.slots
    steps = streams.info(setup.dataset).train_size * setup.iterations
    return {purpose: cost * slots / setup.slots * (TASKS - 2) / steps for purpose, cost in spent.items()}


def _sum(one: Mapping[Purpose, float], other: Mapping[Purpose, float]) -> dict[Purpose, float]:
    return {purpose: one.get(purpose, 0.0) + other.get(purpose, 0.0) for purpose in {**one, **other}}


def _first_share(name: str) -> float:
    """Share of the steps that are before the first boundary."""
    return REMIND.base_share if name == REMIND.name else 1 / TASKS


def _per_iteration(sides: Sequence[Side], setup: Setup, rule: Rule, first: float = 1 / TASKS) -> dict[Purpose, float]:
    """Cost of an iteration by purpose, weighted over both sides of the boundary, or over the tasks."""
    found: dict[Purpose, float] = {}
    shares = (first, 1 - first) if len(sides) == 2 else (1 / len(sides),) * len(sides)
    for share, side in zip(shares, sides, strict=True):
        between = side.evaluation.steps or setup.eval_every * setup.iterations
        for spent, steps in ((side.period, side.period.steps), (side.evaluation, between)):
            for purpose, cost in spent.on.items():
                found[purpose] = found.get(purpose, 0.0) + share * cost.under(rule) / steps
    return found


def _executed_over_charged(spent: Sequence[Spent]) -> float | None:
    charged = sum(each.real for each in spent)
    executed = [each.executed for each in spent if each.executed is not None]
    return sum(executed) / charged if executed and charged else None


@dataclass(frozen=True)
class PolicyCost:
    """What a freezing policy itself keeps and runs; what it saves is another matter."""

    policy: str
    bytes: Mapping[Rule, int]
    per_iteration: float
    """operations under rule `real`"""
    over_er: float
    """these over an iteration of ER"""
    paper_run: str
    """the paper's whole run over one without freezing"""
    averaged_over: str


def policy_period(policy: str) -> Period:
    """What repeats itself in a policy's own work."""
    if policy == "adaptive":
        every = AdaptivePrefix.refresh_every
        return Period(steps=every, what=f"{every} steps, one of which refreshes the Fisher traces")
    if policy == "egeria":
        return Period(steps=Egeria.period, what=f"{Egeria.period} steps, one of which runs the reference")
    if policy == "ptlf":
        probe = TaskCorrelated.probe
        return Period(steps=probe + 1, what=f"a task, of which {probe} steps compare and one decomposes")
    return Period()


def policy_costs(setup: Setup) -> Iterator[PolicyCost]:
    """Every policy under Vanilla."""
    info = streams.info(setup.dataset)
    facts = facts_of(info)
    for policy in POLICIES:
        method, period = METHODS["vanilla"]().with_parts(freezing=policy), policy_period(policy)
        settings = Settings(LearnerSettings(batch_size=setup.batch_size))
        # a task as short as what PTLF does in it; the work is then spread over a whole one
        short = replace(settings, freezing={"stretch": period.steps}) if policy == "ptlf" else settings
        probe = Probe(method, facts, setup.model, settings=short, slots=setup.slots)
        probe.meet(setup.classes)
        spent = probe.side(period, setup.iterations).period
        probe.learner.close()
        steps = info.train_size * setup.iterations / TaskCorrelated.tasks if policy == "ptlf" else spent.steps
        cost = spent.on["fisher"].real / steps
        kept = {
            rule: make_plan(
                method, info, setup.model, settings=settings, slots=1, budget=Budget(), iterations=1, rule=rule,
                measure=False,
            ).bytes.get("freezing", 0)
            for rule in RULES
        }  # fmt: skip
        yield PolicyCost(policy, kept, cost, cost / of_er(setup, "real"), POLICY_RUNS[policy], period.what)
