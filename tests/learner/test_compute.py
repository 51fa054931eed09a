"""Compute: no step beyond the budget, savings spent evenly, fractions of an iteration saved up."""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData
from budgeted.budget import Budget, Compute, Rule, total
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS, Method
from tests.bright_rows import FACTS, samples
from tests.learner.small import cnn8, images, make, settings_of, tiny
from tests.nets import seeded


def nominal(learner: Learner, rule: Rule) -> int:
    return total(learner.network.nominal(learner.batch_size).values()).under(rule)


SPENDERS: dict[str, Method | type[Method]] = {
    **METHODS,
    # the end of its base is dearer than all steps here; what cannot be paid then, and after it: test_remind.py
    "remind": dataclasses.replace(METHODS["remind"](), base_share=1.0),  # type: ignore[call-arg]
    "vanilla, mir": METHODS["vanilla"]().with_parts(retrieval="mir"),
    "vanilla, aser": METHODS["vanilla"]().with_parts(retrieval="aser"),
    "er, egeria": METHODS["er"]().with_parts(freezing="egeria"),
    "er, ptlf": METHODS["er"]().with_parts(freezing="ptlf"),
}
LENGTH = 48
STREAM = dataclasses.replace(FACTS, samples=LENGTH)  # schedules go by its length


def spend(learner: Learner) -> tuple[list[int], list[int]]:
    """Learn a stream with its tasks and evaluations: what each sample cost under both rules."""
    paper, real = [], []
    for arrived, (image, label) in enumerate(samples(LENGTH), 1):
        before = learner.ledger.spent
        learner.learn(image, label)
        if arrived % 6 == 0:
            learner.before_prediction()
        if arrived % 12 == 0 and learner.method.boundaries:
            learner.end_task()
        paper.append((learner.ledger.spent - before).paper)
        real.append((learner.ledger.spent - before).real)
        if learner.budget.compute is not None:
            assert (learner.ledger.left or 0) >= 0
    return paper, real


def limited(name: str, amount: int | None, rule: Rule) -> Learner:
    budget = None if amount is None else Budget(Compute(amount, rule))
    return make(SPENDERS[name], tiny(), STREAM, slots=16, budget=budget)


@cache
def unlimited_costs(name: str) -> dict[Rule, list[int]]:
    paper, real = spend(limited(name, None, "real"))
    return {"paper": paper, "real": real}


@pytest.mark.parametrize("rule", ["paper", "real"])
@pytest.mark.parametrize("name", SPENDERS)
def test_when_compute_is_spent_it_goes_on_storing_and_predicting(
    name: str, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    """Against the same learner without a budget: two thirds of what that one spends are spent, and no more."""
    costs = unlimited_costs(name)[rule]
    amount = sum(costs[: 2 * LENGTH // 3]) + max(costs) // 3
    learner = limited(name, amount, rule)
    with caplog.at_level(logging.WARNING, logger="budgeted"):
        spend(learner)
    spent = learner.ledger.spent.under(rule)
    assert spent <= amount
    assert learner.spent_up
    # less is left than the next step, or GDumb's next training, would have cost
    dearest = max(costs) if not learner.method.trains else dearest_step(learner, rule)
    assert amount - spent <= 1.02 * dearest
    assert [record for record in caplog.records if "is spent after" in record.message] == caplog.records
    assert len(caplog.records) == 1
    assert learner.arrived == LENGTH
    weights = weights_digest(learner)
    stored = learner.memory.gather(np.arange(len(learner.memory))).samples.clone()
    for image, label in samples(6, seed=5):
        learner.learn(image, label)
    learner.before_prediction()
    if learner.method.selection != "greedy-quota":  # of which a full memory takes a new class alone
        assert not torch.equal(stored[: len(learner.memory)], learner.memory.gather(np.arange(len(stored))).samples)
    assert set(learner.predict(images(5)).tolist()) <= {0, 1, 2, 3}
    assert weights_digest(learner) == weights


def dearest_step(learner: Learner, rule: Rule) -> int:
    """A full step of this learner as it now is, and twice the most that was ever run beside one: what must be there."""
    extra: int = learner.pace.state()["extra"]
    return learner.network.most(learner.batch_size).under(rule) + 2 * extra


class Bounded(Learner):
    """Compares what every step costs with what was said that it would cost at most."""

    def _step(self) -> None:
        new = min(len(self.waiting), self.stream_batch)
        most = self.network.most(new + min(self.batch_size - new, len(self.memory)))
        before = self.ledger.spent
        super()._step()
        assert self.last is not None
        cost = self.ledger.spent - before
        assert cost == total(self.last.costs.values())
        own = total(self.last.costs[purpose] for purpose in ("forward", "backward", "optimizer"))
        # a loss of a method's own is priced when it is there; EWC's pull and masks are run beside the step
        if self.method.plain() and self.method.name not in ("ewc", "sparcl"):
            assert own.paper <= most.paper
            assert own.real <= most.real
            if self.method.freezing == "none" and self.method.retrieval != "mir":  # which runs the stream's half ahead
                assert own.paper == most.paper
                assert most.real <= 1.01 * own.real


@pytest.mark.parametrize("name", SPENDERS)
def test_no_step_costs_more_than_its_bound_and_none_much_less(name: str) -> None:
    """Beside what is run aside, whose bound is what was met before."""
    chosen = SPENDERS[name]
    learner = Bounded(tiny(), chosen, STREAM, slots=16, settings=settings_of(chosen, batch_size=6), seed=0)
    spend(learner)
    assert learner.steps > 40


SAVING: dict[str, Method | type[Method]] = {
    "constant": METHODS["vanilla"]().with_parts(freezing="constant"),
    "adaptive": METHODS["al-sar"],
    "er, constant": METHODS["er"]().with_parts(freezing="constant"),
}


@pytest.mark.parametrize(
    ("name", "rule"), [("constant", "paper"), ("constant", "real"), ("adaptive", "real"), ("er, constant", "real")]
)
def test_savings_are_spent_evenly_over_the_stream(name: str, rule: Rule) -> None:
    count = 240
    method = SAVING[name]
    budget = Budget(Compute(count * nominal(make(method, savers_model(name)), rule), rule))
    facts = dataclasses.replace(FACTS, samples=count)
    learner = make(method, savers_model(name), facts=facts, budget=budget, spend_savings=True)
    steps = []
    for image, label in samples(count):
        learner.learn(image, label)
        steps.append(learner.steps)
    learner.flush()
    steps[-1] = learner.steps
    assert budget.compute is not None
    assert 0.99 <= learner.ledger.spent.under(rule) / budget.compute.amount <= 1
    tenths = np.diff([0, *steps[count // 10 - 1 :: count // 10]])
    assert len(tenths) == 10
    assert tenths[0] >= count // 10  # one a sample is the plan, until something was saved
    assert tenths[1:].min() > count // 10  # more are extra


def savers_model(name: str) -> nn.Module:
    return cnn8() if name == "adaptive" else tiny()


def test_without_spending_savings_stay_unspent() -> None:
    count = 60
    method = SAVING["constant"]
    budget = Budget(Compute(count * nominal(make(method, tiny()), "real"), "real"))
    learner = make(method, tiny(), facts=dataclasses.replace(FACTS, samples=count), budget=budget)
    for image, label in samples(count):
        learner.learn(image, label)
    assert learner.steps == count
    assert learner.ledger.left is not None
    assert learner.ledger.left > 0.2 * count * nominal(learner, "real")


def test_savings_need_a_budget_and_a_length() -> None:
    with pytest.raises(BudgetedError, match="give both the budget and samples"):
        make("al-sar", spend_savings=True)
    with pytest.raises(BudgetedError, match="give both the budget and samples"):
        make("al-sar", spend_savings=True, budget=Budget(Compute(10**12, "real")))


@pytest.mark.parametrize("iterations", [0.1, 0.25, 0.3, 1.5])
def test_fractions_of_an_iteration_are_saved_up(iterations: float) -> None:
    learner = make("vanilla", tiny(), iterations=iterations)
    for arrived, (image, label) in enumerate(samples(40), 1):
        learner.learn(image, label)
        assert abs(learner.steps - iterations * arrived) <= 1 or arrived == 1
    assert learner.steps == round(40 * iterations)  # as a plan says


def test_senseless_numbers_are_refused() -> None:
    with pytest.raises(BudgetedError, match="must not be negative"):
        make("vanilla", tiny(), iterations=-1.0)
    with pytest.raises(BudgetedError, match="at least 2"):
        make("vanilla", tiny(), settings=settings_of(METHODS["vanilla"], batch_size=1))
    for iterations in (float("nan"), float("inf")):
        with pytest.raises(BudgetedError):
            make("vanilla", tiny(), facts=dataclasses.replace(FACTS, samples=10), iterations=iterations)


def test_too_few_slots_to_train_is_refused_or_trains() -> None:
    """One slot never fills a batch of two; a run that silently never trains helps nobody."""
    try:
        learner = make("vanilla", tiny(), slots=1)
    except BudgetedError:
        return
    for image, label in samples(12):
        learner.learn(image, label)
    assert learner.steps > 0


class Coarse(nn.Module):
    """A few operations for a pixel: what it takes to scale one is no small part of them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 1, 8, 8), nn.BatchNorm2d(1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU())
        self.head = nn.Linear(2, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(images)).mean((2, 3)))
        return logits


@pytest.mark.parametrize("name", ["vanilla", "er", "mir", "aser", "ocs", "rm", "clib", "bic", "x-der"])
def test_scaling_pixels_is_charged_to_nobody(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rule for all: MIR, ASER and OCS, which look at samples beside the batch, were the only ones to pay for it."""
    learner = make(name, seeded(Coarse), DataFacts((1, 32, 32), classes=4))
    executed, inputs = ExecutedOnData(), learner.problem.inputs

    def preparing(samples: Any, generator: Any = None) -> Any:
        with executed.phase("prepared"):
            return inputs(samples, generator)

    monkeypatch.setattr(learner.problem, "inputs", preparing)
    noise = torch.randint(256, (40, 1, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    with executed:
        for arrived, image in enumerate(noise, 1):
            learner.learn(image, arrived % 4)
            if arrived % 10 == 0 and learner.method.boundaries:
                learner.end_task()
    prepared = executed.by_phase["prepared"]
    assert learner.ledger.spent.real == pytest.approx(executed.total - prepared, rel=0.02)
    assert prepared > 0.2 * learner.ledger.spent.real  # so that it would show
