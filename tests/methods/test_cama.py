"""CAMA: renewed logits against a run of the definition by hand; the loss is DER++'s."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted import streams
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.methods import METHODS, Step
from budgeted.methods.cama import ConfidenceAwareMovingAverage
from budgeted.methods.der import LOGITS
from budgeted.runs.plan import make_plan
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

CAMA = METHODS["cama"]


def technique_of(learner: Learner) -> ConfidenceAwareMovingAverage:
    assert isinstance(learner.method, ConfidenceAwareMovingAverage)
    return learner.method


def stored(learner: Learner) -> list[list[float]]:
    columns = learner.memory.gather(np.arange(len(learner.memory))).columns
    return [[float(value) for value in row] for row in columns[LOGITS]]


class ByHand:
    """The definition, one number at a time, beside a learner that runs."""

    def __init__(self, learner: Learner, recent: int) -> None:
        self.learner, self.recent = learner, recent
        self.queues: dict[int, list[float]] = {}
        self.renewed = 0
        self._after_step = learner.method.after_step
        learner.method.after_step = self.after_step  # type: ignore[method-assign]

    def after_step(self, step: Step, logits: Tensor) -> None:
        expected = stored(self.learner)
        values = logits.tolist()
        classes = len(values[0])
        for row, label in zip(values, step.labels.tolist(), strict=True):
            queue = self.queues.setdefault(label, [])
            queue.append(math.exp(row[label]) / sum(math.exp(value) for value in row))
            del queue[: -self.recent]
        for slot, row, label in zip(
            step.slots.tolist(), values[step.new :], step.labels[step.new :].tolist(), strict=True
        ):
            queue = self.queues[label]
            gamma = min(1.0, max(0.0, sum(queue) / len(queue) - 1 / classes))
            for c in range(classes):
                old = expected[slot][c]
                expected[slot][c] = row[c] if math.isnan(old) else (1 - gamma) * old + gamma * row[c]
                self.renewed += 1
        self._after_step(step, logits)
        torch.testing.assert_close(
            torch.tensor(stored(self.learner)), torch.tensor(expected), equal_nan=True, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize(("recent", "share"), [(1, 0.375), (5, 0.375), (5, 0.0)])
def test_stored_logits_are_renewed_as_defined(recent: int, share: float) -> None:
    learner = learner_of(CAMA, own={"recent": recent, "stream_share": share})
    hand = ByHand(learner, recent)
    feed(learner, 0, 36)
    assert hand.renewed > 200
    assert len(hand.queues) == 4
    for label, queue in hand.queues.items():
        known = technique_of(learner).confidences[label]
        torch.testing.assert_close(known[~known.isnan()], torch.tensor(queue), rtol=1e-4, atol=1e-6)


def test_an_unsure_model_renews_nothing_and_a_sure_one_nearly_all() -> None:
    learner = learner_of(CAMA, slots=30)
    feed(learner, 0, 12)
    technique = technique_of(learner)
    slot = int(np.flatnonzero(learner.memory.labels == 0)[0])
    learner.memory.write(LOGITS, np.array([slot]), torch.tensor([[1.0, -1.0, math.nan, math.nan]]))

    def replay(logits: list[float]) -> list[float]:
        technique.confidences.fill_(math.nan)
        slots = np.array([slot])
        drawn = learner.memory.gather(slots)
        step = Step(0, slots, torch.empty(0), drawn.labels, drawn.columns)
        technique.after_step(step, torch.tensor([logits]))
        return stored(learner)[slot]

    assert replay([0.0, 0.0])[:2] == [1.0, -1.0]  # as good as chance
    assert replay([-9.0, 9.0])[:2] == [1.0, -1.0]  # surely wrong
    sure = replay([20.0, -20.0])  # certain: half of the way, since one in two is chance
    assert sure[:2] == pytest.approx([0.5 * 1 + 0.5 * 20, -0.5 * 1 - 0.5 * 20])
    assert all(math.isnan(value) for value in sure[2:])


def test_a_class_that_comes_late_gets_its_logits_when_a_sample_is_replayed() -> None:
    learner = learner_of(CAMA, slots=30)
    feed(learner, 0, 9)
    assert all(math.isnan(row[1]) for row in stored(learner))
    feed(learner, 9, 30)
    early = stored(learner)[:9]
    assert any(not math.isnan(row[1]) for row in early)


def test_the_loss_is_that_of_der() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 3, generator=generator)
    columns = {LOGITS: torch.randn(4, 4, generator=generator)}
    step = Step(3, np.arange(4), torch.empty(0), torch.tensor([0, 1, 2, 0, 1, 2, 0]), columns)
    mine, other = (learner_of(METHODS[name]).method.loss(step, logits) for name in ("cama", "der++"))
    assert torch.equal(mine, other)


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_it_charges_what_it_executes(model: str) -> None:
    assert_charged_as_executed(learner_of(CAMA, model))


def test_bytes_are_those_of_what_is_kept() -> None:
    cama, der = (learner_of(METHODS[name]) for name in ("cama", "der++"))
    assert cama.nbytes() - der.nbytes() == 4 * 4 * 5 == technique_of(cama).state()["confidences"].nbytes


@pytest.mark.parametrize(("dataset", "slots"), [("cifar10", 1974), ("cifar100", 1769)])
def test_slots_at_the_papers_budget(dataset: str, slots: int) -> None:
    budget = Budget(bytes=7_998_016)
    info = streams.info(dataset)
    plan = make_plan(
        CAMA, info, "resnet32", settings=Settings(), budget=budget, iterations=1.0, rule="paper", measure=False
    )
    assert plan.slots == slots


@pytest.mark.parametrize("share", [0.375, 0.0])
def test_it_resumes_exactly(share: float, tmp_path: Path) -> None:
    own = {"recent": 3, "stream_share": share}
    assert_resumes_exactly(learner_of(CAMA, own=own), tmp_path / "saved", at=16, end=34)


@pytest.mark.parametrize("own", [{"recent": 0}, {"alpha": -1.0}])
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        learner_of(CAMA, own=own)
