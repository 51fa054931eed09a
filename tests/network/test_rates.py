"""Learning rates along the stream: against torch's own schedules, and resumed exactly."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.network.rates import Rates, Schedule
from tests.bright_rows import FACTS, samples
from tests.learner.small import make, settings_of, tiny

LENGTH = 30
STREAM = dataclasses.replace(FACTS, samples=LENGTH)


def optimizer() -> torch.optim.SGD:
    groups: list[dict[str, Any]] = [
        {"params": [nn.Parameter(torch.ones(2))]},
        {"params": [nn.Parameter(torch.ones(1))], "lr": 3.0},
    ]
    return torch.optim.SGD(groups, 0.5)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_rates_are_those_of_torch(schedule: Schedule) -> None:
    ours, theirs = optimizer(), optimizer()
    rates = Rates(ours, schedule)
    torchs: LRScheduler = (
        CosineAnnealingLR(theirs, LENGTH) if schedule == "cosine" else LinearLR(theirs, 1.0, 1e-12, LENGTH)
    )
    for step in range(LENGTH):
        rates.set(ours, step / LENGTH)
        for a, b in zip(ours.param_groups, theirs.param_groups, strict=True):
            assert a["lr"] == pytest.approx(b["lr"], rel=1e-9)
        theirs.step()
        torchs.step()
    rates.set(ours, 1.5)
    assert ours.param_groups[0]["lr"] == 0


def learner_with(**settings: Any) -> Learner:
    return make("vanilla", tiny(), STREAM, settings=settings_of(METHODS["vanilla"], **settings))


def test_a_new_class_is_met_with_rising_rates() -> None:
    learner = learner_with(warm_up=4)
    since = 0
    for image, label in samples(LENGTH):
        before, steps = len(learner.class_labels), learner.steps
        learner.learn(image, label)
        since = (0 if len(learner.class_labels) > before else since) + learner.steps - steps
        if learner.steps > steps:
            assert float(learner.optimizer.param_groups[0]["lr"]) == pytest.approx(1e-2 * min(1.0, since / 5))
    assert len(learner.class_labels) == 4


def test_it_is_resumed_exactly(tmp_path: Path) -> None:
    learner = learner_with(schedule="linear", warm_up=5)
    stream = list(samples(LENGTH))
    for image, label in stream[:21]:
        learner.learn(image, label)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    for each in (learner, again):
        for image, label in stream[21:]:
            each.learn(image, label)
        assert each.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    assert weights_digest(learner) == weights_digest(again)


def test_a_schedule_needs_an_end() -> None:
    settings = settings_of(METHODS["vanilla"], schedule="cosine")
    with pytest.raises(BudgetedError, match="length of the stream"):
        make("vanilla", tiny(), settings=settings)
    with pytest.raises(BudgetedError, match="length of the stream"):
        make(
            "vanilla",
            tiny(),
            STREAM,
            settings=settings,
            iterations=None,
            budget=Budget(Compute(10**9, "real", each=True)),
        )
