"""Rows of new classes from their first samples: against a computation by hand; charged, averaged, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.rehearsal import Course, rehearse
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.network.head import row_towards
from budgeted.problems import Problem
from tests.bright_rows import samples
from tests.learner.small import Tiny, images, make, settings_of, tiny

SAMPLES = list(samples(40, classes=3))


def learner_with(name: str = "vanilla", model: nn.Module | None = None, **more: Any) -> Learner:
    own = {key: more.pop(key) for key in ("average", "new_rows") if key in more}
    settings = settings_of(METHODS[name], **{"new_rows": "mean", **own})
    return make(name, model or tiny(), **{"settings": settings, **more})


def feed(learner: Learner, start: int = 0, end: int = 30) -> None:
    for image, label in SAMPLES[start:end]:
        learner.learn(image, label)


def features(model: nn.Module, inputs: Any) -> Tensor:
    assert isinstance(model, Tiny)
    with torch.no_grad():
        found: Tensor = model.eval().body(model.stem(inputs)).mean((2, 3))
    return found


@pytest.mark.parametrize("average", ["none", "float32"])
def test_a_row_points_from_the_middle_of_stored_samples_to_the_first_of_its_class(average: str) -> None:
    learner = learner_with(average=average)
    feed(learner)
    memory, problem = learner.memory, learner.problem
    learner.iterations = 0.0
    stored = np.concatenate([memory.membership.members(row)[:2] for row in range(3)])
    new = features(learner.model, problem.inputs(images(1)))[0]
    middle = features(learner.model, problem.inputs(memory.gather(stored).samples)).mean(0)
    old, bias = learner.head.weight.detach().clone(), learner.head.bias.detach().clone()
    learner.learn(images(1)[0], 77)
    row = learner.head.weight[3].detach()
    assert torch.equal(learner.head.weight[:3], old)
    assert torch.equal(learner.head.bias[:3], bias)
    torch.testing.assert_close(row / row.norm(), (new - middle) / (new - middle).norm())
    torch.testing.assert_close(row.norm(), (old[0].norm() + old[1].norm() + old[2].norm()) / 3)
    said = learner.head((new + middle) / 2).detach()
    torch.testing.assert_close(said[3], said[:3].mean())
    if learner.network.average is not None:
        assert torch.equal(learner.network.average.by_name()["head.weight"][3], row)
        assert torch.equal(learner.network.average.by_name()["head.bias"][3], learner.head.bias[3].detach())
    moments = learner.optimizer.state[learner.head.weight]["exp_avg"]
    assert not moments[3].any()


def test_a_head_without_bias_has_the_same_row() -> None:
    seen, weight = torch.randn(5, 8), torch.randn(3, 8)
    with_bias, bias = row_towards(seen, weight, torch.zeros(3))
    without, same = row_towards(seen, weight, None)
    assert torch.equal(with_bias, without)
    torch.testing.assert_close(bias, same)
    assert not row_towards(torch.ones(4, 8), weight, None)[0].any()  # nothing tells the classes apart
    model = tiny()
    model.head = nn.Linear(8, 1, bias=False)
    learner = learner_with(model=model)
    feed(learner)
    assert learner.head.bias is None


def test_the_first_class_is_drawn_and_the_generator_moves_as_ever() -> None:
    learner, plain = learner_with(iterations=0.0), learner_with(iterations=0.0, new_rows="random")
    for each in (learner, plain):
        feed(each, 0, 1)
    assert torch.equal(learner.head.weight, plain.head.weight)
    for each in (learner, plain):
        feed(each, 1)
    assert not torch.equal(learner.head.weight, plain.head.weight)
    assert learner.generators.state() == plain.generators.state()


@pytest.mark.parametrize("name", ["vanilla", "er", "al-sar", "memo", "remind", "ccl-dc"])
def test_charged_as_run_and_resumed_exactly(name: str, tmp_path: Path) -> None:
    learner = learner_with(name)
    feed(learner)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    learner.iterations = again.iterations = 0.0
    for each in (learner, again):
        each.pace.reset()
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        learner.learn(images(1)[0], 77)
    assert executed.total
    # samples are prepared at no charge: much beside so small a network
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.05)
    again.learn(images(1)[0], 77)
    learner.iterations = again.iterations = 1.0
    for each in (learner, again):
        feed(each, 30, 40)
    assert weights_digest(learner) == weights_digest(again)
    assert learner.ledger.spent == again.ledger.spent


def test_what_cannot_be_paid_is_drawn() -> None:
    learner, plain = (learner_with(iterations=0.0, budget="1FLOP", new_rows=each) for each in ("mean", "random"))
    for each in (learner, plain):
        feed(each)
    assert torch.equal(learner.head.weight, plain.head.weight)
    assert learner.ledger.spent.real == 0


def test_a_rehearsal_foresees_what_it_costs() -> None:
    labels = torch.tensor([label for _, label in SAMPLES]).numpy()
    course = Course(labels, (), (len(labels),))
    with_rows, without = (
        rehearse(lambda kind=kind, **more: learner_with(new_rows=kind, **more), course).beside["forward"].real
        for kind in ("mean", "random")
    )
    learner = learner_with(iterations=0.0)
    feed(learner, 0, len(SAMPLES))
    assert without == 0
    assert with_rows == pytest.approx(learner.ledger.spent.real, rel=0.02)


def test_what_has_no_new_rows_is_refused() -> None:
    with pytest.raises(BudgetedError, match="rows of all classes from the start"):
        learner_with("x-der")

    class Other(Problem):
        columns = inputs = example = loss = answer = score = None  # type: ignore[assignment]

    with pytest.raises(BudgetedError, match="new_rows is for samples that are classified"):
        make("vanilla", tiny(), Other(), settings=settings_of(METHODS["vanilla"], new_rows="mean"))  # type: ignore[arg-type]
