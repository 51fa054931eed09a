"""From a budget to a plan: bytes become slots, compute becomes iterations per sample, before any data is there."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from budgeted import models
from budgeted.budget import NOTHING, Budget, Compute, Cost, Rule, format_bytes, format_compute, total
from budgeted.errors import BudgetedError
from budgeted.learner.learner import DataFacts, Learner
from budgeted.learner.settings import Settings
from budgeted.methods import Method
from budgeted.replay import bytes_per_slot
from budgeted.streams import DatasetInfo

_STORED = 100  # slots of a measurement: as many as MIR and ASER look at
# what the paper's tables count for a model: parameters (a shortcut without parameters, no head) and layers
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
    per_step: dict[str, Cost]
    """nominal cost of one full step by purpose: nothing frozen"""
    spent: Cost
    """nominal cost of the whole run"""
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
        if learner.retrieval.nbytes("paper"):
            items["similarity"] = learner.retrieval.nbytes("paper")
        technique = learner.technique.nbytes("paper") + learner.technique.copies("paper") * 4 * parameters
        if technique:
            items["technique"] = technique
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


def per_step(learner: Learner, batch: int) -> dict[str, Cost]:
    """Nominal cost of a full step: forward, backward and optimizer with nothing frozen."""
    prices = learner.freezing.price(learner.example(batch))
    forward, backward = total(prices.forward), total(prices.backward)
    everything = [p for p in learner.model.parameters() if p.requires_grad]
    return {"forward": forward, "backward": backward, "optimizer": learner.freezing.optimizer_cost(everything)}


def total_of(costs: Mapping[str, Cost]) -> Cost:
    return total(costs.values())


def iterations_within(step: Cost, compute: Compute, samples: int) -> float:
    """Iterations per sample that a compute budget pays for at the nominal price."""
    steps = compute.amount // max(1, step.under(compute.rule))
    if steps < 1:
        smallest = step.under(compute.rule) * 102 // 100  # printed to five figures, and with room for small extras
        raise BudgetedError(
            f"{compute} does not pay for one step: the smallest possible budget is "
            f"{format_compute(smallest, compute.rule)}"
        )
    return steps / samples


def make_plan(
    method: Method,
    info: DatasetInfo,
    model_name: str,
    *,
    settings: Settings,
    samples: int | None = None,
    slots: int | None = None,
    budget: Budget,
    iterations: float | None = None,
    rule: Rule = "real",
    seed: int = 0,
    measure: bool = True,
) -> Plan:
    """Work out slots, iterations, cost and time; needs no data on disk."""
    samples = info.train_size if samples is None else samples
    if samples < 1:
        raise BudgetedError(f"a stream of {samples} samples (--limit) teaches nothing: give at least 1")
    if iterations is not None and (not math.isfinite(iterations) or iterations < 0):
        raise BudgetedError(f"iterations per sample must be a number of 0 or more, got {iterations}")
    facts = facts_of(info, samples)
    model = models.build(model_name, classes=info.classes, input_shape=info.input_shape, seed=seed)
    learner = Learner(model, method, facts, slots=slots or 1, settings=settings, seed=seed)
    batch = settings.learner.batch_size
    if budget.bytes is not None:
        slots = slots_within(learner, model_name, budget.bytes, rule)
    items = fixed_bytes(learner, model_name, rule)
    if slots is not None:
        items["memory"] = slots * bytes_per_slot(learner.memory.columns, rule)
    extras, seconds = measured(learner, model_name, batch) if measure else ({}, None)
    costs = {**per_step(learner, batch), **extras}
    if budget.compute is not None:
        iterations = iterations_within(total(costs.values()), budget.compute, samples)
    if iterations is None:
        raise BudgetedError("a plan needs iterations per sample or a compute budget: give --iterations or --compute")
    steps = int(samples * iterations + 1e-6)
    return Plan(
        method=method.name,
        dataset=info.name,
        model=model_name,
        rule=rule,
        samples=samples,
        batch_size=batch,
        slots=slots,
        bytes=items,
        iterations=iterations,
        steps=steps,
        per_step=costs,
        spent=total(costs.values()) * steps,
        seconds=None if seconds is None else seconds * steps,
    )


def measured(learner: Learner, model_name: str, batch: int, steps: int = 4) -> tuple[dict[str, Cost], float]:
    """A few real steps on noise: where a purpose costs more than its nominal price, what it costs; seconds per step."""
    small = min(batch, 16)  # large batches of large images would take minutes; time and extras grow with the batch
    facts = replace(learner.data, samples=None)
    settings = replace(learner.settings, learner=replace(learner.settings.learner, batch_size=small))
    model = models.build(model_name, classes=facts.classes or 2, input_shape=facts.input_shape)
    stored = max(2 * small, _STORED)
    probe = Learner(model, learner.method, facts, slots=stored, iterations=0.0, settings=settings, seed=0)
    generator = torch.Generator().manual_seed(0)

    def learn_noise() -> None:
        noise = torch.randint(0, 256, learner.data.input_shape, generator=generator, dtype=torch.uint8)
        probe.learn(noise, probe.arrived % (facts.classes or 2))

    def run(count: int) -> None:
        """Steps that are due at once: the next full stream batch, or the next sample, runs them."""
        if not probe.technique.trains:
            for _ in range(count):
                some = probe.memory.gather(np.arange(small))
                probe.practise(some.samples, some.labels, "evaluation_training")
            return
        before, probe._due = probe.steps, count * probe._one
        while probe.steps == before:
            learn_noise()

    held = 0
    while held <= len(probe.memory) < stored:  # RM thins a memory as soon as it is full
        held = len(probe.memory)
        learn_noise()
    probe.flush()
    run(1)  # traces prices, and checks the closed form, once
    nominal, before = per_step(probe, small), dict(probe.ledger.spent_on)
    steps = max(steps, probe.stream_batch)  # as many as a stream batch of one iteration a sample: it is stored once
    start = time.perf_counter()
    run(steps)
    seconds = (time.perf_counter() - start) / steps
    found: dict[str, Cost] = {}
    for purpose, cost in probe.ledger.spent_on.items():  # the mean: every fourth step also refreshes the Fisher traces
        spent = cost - before[purpose]
        paper, real = spent.paper * batch // (small * steps), spent.real * batch // (small * steps)
        known = nominal.get(purpose, NOTHING).real * batch // small
        if purpose not in ("evaluation_training", "optimizer") and real > known:
            found[purpose] = Cost(paper, real)
    return found, seconds * batch / small
