"""Training on smaller images: what the model is shown, what is charged, and exact resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from budgeted.audit import ExecutedOnData
from budgeted.budget import NOTHING, total
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.rehearsal import Course, rehearse
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from tests.bright_rows import FACTS, samples
from tests.learner.small import make, settings_of, tiny

LENGTH = 24
STREAM = dataclasses.replace(FACTS, samples=LENGTH)
SAMPLES = list(samples(LENGTH))


def learner_with(name: str = "vanilla", until: float = 1.0, **more: Any) -> Learner:
    settings = settings_of(METHODS[name], train_size=4, train_size_until=until)
    return make(name, tiny(), STREAM, **{"settings": settings, **more})


def feed(learner: Learner, start: int = 0, end: int = LENGTH) -> None:
    for image, label in SAMPLES[start:end]:
        learner.learn(image, label)


def sizes(learner: Learner) -> list[int]:
    """Sides of what the model is trained on from now on."""
    seen: list[int] = []
    inner = learner.network.forward

    def forward(inputs: Any) -> Any:
        seen.append(inputs.shape[-1])
        return inner(inputs)

    learner.network.forward = forward  # type: ignore[method-assign]
    return seen


def test_a_pixel_is_the_mean_of_those_it_stands_for() -> None:
    learner, images = learner_with(until=0.5), torch.rand(3, 1, 8, 8)
    small: Tensor = learner.problem.sized(learner.network, images, 0.5)
    torch.testing.assert_close(small, images.view(3, 1, 4, 2, 4, 2).mean((3, 5)))
    assert learner.problem.sized(learner.network, images, 0.6) is images


def test_it_lasts_up_to_its_share_and_predictions_see_images_as_they_are() -> None:
    learner = learner_with(until=0.5)
    seen = sizes(learner)
    feed(learner, 0, LENGTH // 2)
    assert set(seen) == {4}
    small = learner.last
    feed(learner, LENGTH // 2)
    assert set(seen[-LENGTH // 2 :]) == {8}
    assert small is not None
    assert learner.last is not None
    share = small.costs["forward"].real / learner.last.costs["forward"].real
    assert 0.2 < share < 0.35  # a quarter, beside the head
    asked: list[int] = []
    learner.model.register_forward_pre_hook(lambda module, given: asked.append(given[0].shape[-1]))
    learner.predict(torch.stack([image for image, _ in SAMPLES[:3]]))
    assert asked == [8]


@pytest.mark.parametrize("name", ["vanilla", "al-sar", "bic", "mir"])
def test_charged_as_run_and_resumed_exactly(name: str, tmp_path: Path) -> None:
    learner = learner_with(name)
    feed(learner, 0, 16)
    if learner.method.boundaries:
        learner.end_task()
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        feed(learner, 16)
    # samples are prepared at no charge: a part in a hundred where a network is as small as this
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.02)
    feed(again, 16)
    assert weights_digest(learner) == weights_digest(again)
    assert learner.ledger.spent == again.ledger.spent


def test_a_rehearsal_foresees_what_it_costs() -> None:
    labels = torch.tensor([label for _, label in samples(LENGTH)]).numpy()
    found = rehearse(lambda **more: learner_with(until=0.5, **{"slots": 20, **more}), Course(labels, (), (LENGTH,)))
    learner = learner_with(until=0.5)
    feed(learner)
    executed = total(cost for purpose, cost in learner.ledger.spent_on.items() if purpose in ("forward", "backward"))
    foreseen = total((found.step.get("forward", NOTHING), found.step.get("backward", NOTHING))).real * learner.steps
    assert foreseen == pytest.approx(executed.real, rel=0.1)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(BudgetedError, match="train_size=9: give at most 8"):
        make("vanilla", tiny(), STREAM, settings=settings_of(METHODS["vanilla"], train_size=9))
    with pytest.raises(BudgetedError, match="train_size must be at least 1"):
        settings_of(METHODS["vanilla"], train_size=0)
    with pytest.raises(BudgetedError, match="share of the stream"):
        make("vanilla", tiny(), settings=settings_of(METHODS["vanilla"], train_size=4, train_size_until=0.5))
