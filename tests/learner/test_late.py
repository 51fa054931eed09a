"""Labels that come late: what is learned is what would have been learned at once, and what waits is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from budgeted.errors import BudgetedError
from budgeted.learner import LateLabels, Learner
from tests.bright_rows import SHAPE, samples

STREAM = list(samples(40))


def made(memory: str | None = None) -> Learner:
    return Learner("mlp", "er", SHAPE, memory=memory, slots=None if memory else 20, seed=1)


def test_labels_in_any_order_teach_as_samples_in_that_order() -> None:
    plain, asked = made(), made()
    late = LateLabels(asked, "100kB")
    answers = [late.ask(number, image) for number, (image, _) in enumerate(STREAM)]
    assert answers == [None] * 40
    order = np.random.default_rng(0).permutation(40).tolist()
    for number in order:
        assert late.tell(number, STREAM[number][1])
        plain.learn(*STREAM[number])
    assert len(late) == late.dropped == 0
    images = torch.stack([image for image, _ in STREAM])
    assert torch.equal(plain.logits(images), asked.logits(images))
    assert late.ask("next", STREAM[0][0]) == plain.predict(images[:1])[0]


def test_what_waits_is_bounded_and_its_bytes_are_the_learners() -> None:
    learner = made("200kB")
    slots, each = learner.memory.capacity or 0, STREAM[0][0].numel()
    late = LateLabels(learner, 10 * each)
    assert learner.nbytes_by_item()["waiting for labels"] == 10 * each
    assert (learner.memory.capacity or 0) < slots
    for number, (image, _) in enumerate(STREAM):
        late.ask(number, image)
        assert len(late) <= 10
        assert learner.nbytes() <= 200_000
    assert late.dropped == 30
    assert not late.tell(0, 1)  # it waited longest, and was let go
    assert late.tell(39, STREAM[39][1])
    assert learner.arrived == 1


def test_what_is_refused_changes_nothing() -> None:
    learner = made("200kB")
    late = LateLabels(learner, "5kB")
    late.ask("a", STREAM[0][0])
    wrong: Any
    for wrong in (2.9, None, []):
        with pytest.raises(BudgetedError, match="label must be"):
            late.tell("a", wrong)
    with pytest.raises(BudgetedError, match="already"):
        late.ask("a", STREAM[1][0])
    with pytest.raises(BudgetedError, match="must be uint8"):
        late.ask("b", "no picture")
    assert len(late) == 1
    assert late.tell("a", 3)
    with pytest.raises(BudgetedError, match="hold none"):
        LateLabels(made(), 3)
    with pytest.raises(BudgetedError, match="already"):
        LateLabels(learner, "5kB")
    small = made("200kB")
    with pytest.raises(BudgetedError, match="smallest possible"):
        LateLabels(small, "190kB")
    assert small.nbytes() <= 200_000
    assert "waiting for labels" not in small.nbytes_by_item()


def test_a_picture_that_is_changed_afterwards_is_learned_as_it_was() -> None:
    learner = made()
    late = LateLabels(learner, "5kB")
    image = STREAM[0][0].clone()
    late.ask("a", image)
    image.zero_()
    late.tell("a", 1)
    learner.flush()
    assert torch.equal(learner.memory.gather(np.array([0])).samples[0], STREAM[0][0])
