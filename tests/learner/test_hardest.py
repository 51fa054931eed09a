"""Selective backward: the law of the draw, whom it takes by losses computed by hand; charged, foreseen, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.hardest import by_rank, draw_hard
from budgeted.learner.rehearsal import Course, rehearse
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from tests.bright_rows import samples
from tests.learner.small import make, settings_of, tiny

SAMPLES = list(samples(60))


def learner_with(name: str = "vanilla", *, candidates: float = 3.0, hardness: float = 1.0, **more: Any) -> Learner:
    settings = settings_of(METHODS[name], candidates=candidates, hardness=hardness)
    return make(name, tiny(), settings=settings, **more)


def feed(learner: Learner, start: int, end: int) -> None:
    for image, label in SAMPLES[start:end]:
        learner.learn(image, label)


@pytest.mark.parametrize("hardness", [0.0, 1.0, 2.5])
def test_chances_of_one_place_are_the_ranks_to_a_power(hardness: float) -> None:
    generator, losses = np.random.default_rng(0), np.array([0.3, 9.0, 0.1, 2.0], np.float32)
    drawn = [int(by_rank(losses, 1, hardness, generator)[0]) for _ in range(20_000)]
    weights = np.array([2.0, 4.0, 1.0, 3.0]) ** hardness
    assert np.bincount(drawn, minlength=4) / 20_000 == pytest.approx(weights / weights.sum(), abs=0.015)
    assert by_rank(losses, 3, hardness, generator).shape == (3,)
    assert by_rank(np.arange(5_000.0), 1, 100.0, generator)[0] > 2_500  # weights below any number


def test_the_hardest_of_the_memory_are_trained_on() -> None:
    learner = learner_with(candidates=5.0, hardness=100.0)
    feed(learner, 0, 40)
    memory = learner.memory
    assert len(memory) == 20  # as many as are looked at
    stored = memory.gather(np.arange(20))
    with torch.no_grad():
        logits = learner.model.eval()(learner.problem.inputs(stored.samples))
    losses = F.cross_entropy(logits, stored.labels, reduction="none").numpy()
    drawn = draw_hard(learner, 4)
    assert sorted(drawn.slots.tolist()) == sorted(np.argsort(losses)[-4:].tolist())
    assert torch.equal(drawn.labels, memory.gather(drawn.slots).labels)
    assert torch.equal(torch.as_tensor(drawn.samples), torch.as_tensor(memory.gather(drawn.slots).samples))


@pytest.mark.parametrize("name", ["vanilla", "er", "der++"])
def test_charged_as_run_and_resumed_exactly(name: str, tmp_path: Path) -> None:
    learner = learner_with(name)
    feed(learner, 0, 40)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    before = learner.ledger.spent
    with ExecutedOnData() as executed:
        feed(learner, 40, 60)
    # samples are prepared at no charge: a part in a hundred where a network is as small as this
    assert (learner.ledger.spent - before).real == pytest.approx(executed.total, rel=0.02)
    feed(again, 40, 60)
    assert weights_digest(learner) == weights_digest(again)
    assert learner.ledger.spent == again.ledger.spent
    if name == "vanilla":
        assert learner.last is not None
        forward = learner.network.price_of(3 * 4).real
        assert forward < learner.last.costs["retrieval"].real < 1.01 * forward


def test_a_rehearsal_foresees_what_it_costs() -> None:
    labels = np.array([label for _, label in SAMPLES])
    found = rehearse(lambda **more: learner_with(**more), Course(labels, (), (len(labels),)))
    learner = learner_with()
    feed(learner, 0, len(SAMPLES))
    assert found.whole(learner.steps).real == pytest.approx(learner.ledger.spent.real, rel=0.02)


def test_what_it_does_not_go_with_is_refused() -> None:
    for name in ("sar", "mir"):
        with pytest.raises(BudgetedError, match="choose uniform or class-balanced"):
            learner_with(name)
    with pytest.raises(BudgetedError, match="candidates must be from 1"):
        learner_with(candidates=0.5)
    with pytest.raises(BudgetedError, match="hardness must be"):
        learner_with(hardness=-1.0)
