"""From a budget to a plan: bytes become slots, compute becomes iterations per sample, before any data is there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from budgeted import models
from budgeted.budget import Budget, Compute, Cost, Purpose, Rule, format_bytes, format_compute, total
from budgeted.errors import BudgetedError
from budgeted.learner.foreseen import Foreseen, course_of, foreseen, per_step
from budgeted.learner.learner import DataFacts, Learner
from budgeted.learner.settings import Settings
from budgeted.methods import Method
from budgeted.replay import bytes_per_slot
from budgeted.streams import DatasetInfo

# what the paper's tables count for a model: parameters (a shortcut without parameters, no head) and layers
PAPER_COPIES = {"ewc": 2, "bic": 1}
"""how often the paper's tables count the model's parameters beside the model"""
PAPER_MODELS: dict[str, tuple[int, int]] = {"resnet32": (463_504, 32), "resnet18": (11_170_000, 18)}


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


def facts_of(info: DatasetInfo, samples: int | None = None) -> DataFacts:
    return DataFacts(info.input_shape, info.mean, info.std, info.flips, info.classes, samples or info.train_size)


def fixed_bytes(learner: Learner, model_name: str, rule: Rule) -> dict[str, int]:
    """What does not depend on the number of slots."""
    items = learner.nbytes_by_item(rule)
    items.pop("memory")
    if rule == "paper":
        parameters, layers = PAPER_MODELS.get(model_name, (_body_parameters(learner), len(learner.freezing.chain)))
        items = {"parameters": 4 * parameters}
        similarity = getattr(learner.retrieval, "similarity", None)
        if similarity is not None:
            items["similarity"] = similarity.matrix.nbytes  # the paper pays for S alone
        copies = PAPER_COPIES.get(learner.method.name.removeprefix("lider-"), 0)
        if copies:
            items["method"] = copies * 4 * parameters
        if learner.method.freezing == "adaptive":
            items["freezing"] = 4 * layers
        elif learner.freezing.nbytes(4 * parameters):
            items["freezing"] = learner.freezing.nbytes(4 * parameters)
    return items


def _body_parameters(learner: Learner) -> int:
    head = {id(parameter) for parameter in learner.head.parameters()}
    return sum(parameter.numel() for parameter in learner.model.parameters() if id(parameter) not in head)


def slots_within(learner: Learner, model_name: str, budget: int, rule: Rule) -> int:
    """Slots that fit beside everything else; an impossible budget says the smallest possible one."""
    fixed = sum(fixed_bytes(learner, model_name, rule).values())
    per_slot: int = bytes_per_slot(learner.memory.columns, rule)
    slots: int = (budget - fixed) // per_slot
    if slots < 1:
        raise BudgetedError(
            f"{budget} bytes ({format_bytes(budget)}) do not hold {model_name} and one slot under rule {rule}: "
            f"the smallest possible budget is {fixed + per_slot}B"
        )
    return int(slots)


def iterations_within(foreseen: Foreseen, compute: Compute, samples: int) -> float:
    """Iterations per sample that a compute budget pays for, beside what does not depend on them."""
    step = total(foreseen.step.values()).under(compute.rule)
    beside = total(foreseen.beside.values()).under(compute.rule)
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
    measure: bool = True,
) -> Plan:
    """Work out slots, iterations, cost and time; needs no data on disk. `measure` foresees the method's own work."""
    samples = info.train_size if samples is None else samples
    if samples < 1:
        raise BudgetedError(f"a stream of {samples} samples (--limit) teaches nothing: give at least 1")
    if iterations is not None and (not math.isfinite(iterations) or iterations < 0):
        raise BudgetedError(f"iterations per sample must be a number of 0 or more, got {iterations}")
    facts = facts_of(info, samples)
    course = None
    if measure:
        course = course_of(method, settings, info, samples, order=stream, slots=slots, eval_every=eval_every)
    rows = info.classes if course is None else course.mean_rows
    model = models.build(model_name, classes=rows, input_shape=info.input_shape, seed=seed)
    # one slot: what is planned need not fit into this machine
    learner = Learner(model, method, facts, slots=1, settings=settings, seed=seed)
    if budget.bytes is not None:
        slots = slots_within(learner, model_name, budget.bytes, rule)
    items = fixed_bytes(learner, model_name, rule)
    if slots is not None:
        items["memory"] = slots * bytes_per_slot(learner.memory.columns, rule)
    if course is None:
        costs = Foreseen(per_step(learner, settings.learner.batch_size), {}, None)
    else:
        costs = foreseen(learner, model_name, replace(course, slots=slots))
    if budget.compute is not None:
        iterations = iterations_within(costs, budget.compute, samples)
    if iterations is None:
        raise BudgetedError("a plan needs iterations per sample or a compute budget: give --iterations or --compute")
    steps = int(samples * iterations + 1e-6)
    in_a_step = costs.spread(steps)
    spent = total(in_a_step.values()) * steps
    return Plan(
        method=method.name,
        dataset=info.name,
        model=model_name,
        rule=rule,
        samples=samples,
        batch_size=settings.learner.batch_size,
        slots=slots,
        bytes=items,
        iterations=iterations,
        steps=steps,
        per_step=in_a_step,
        spent=spent,
        seconds=None if costs.pace is None else costs.pace * spent.real,
    )
