"""Measured statistics of batch norm: those of a batch by hand; charged, counted, resumed, gone with the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from budgeted.audit import ExecutedOnData
from budgeted.learner import Learner, load, save
from budgeted.methods import METHODS
from tests.bright_rows import samples
from tests.learner.small import Tiny, images, make, settings_of, tiny

SAMPLES = list(samples(40))


def learner_with(name: str = "vanilla", count: int = 8, **more: Any) -> Learner:
    learner = make(name, tiny(), settings=settings_of(METHODS[name], norms="memory", norm_samples=count, **more))
    feed(learner, 0, 30)
    return learner


def feed(learner: Learner, start: int, end: int) -> None:
    for image, label in SAMPLES[start:end]:
        learner.learn(image, label)


def stem_norm(model: nn.Module) -> nn.BatchNorm2d:
    assert isinstance(model, Tiny)
    found = model.stem[1]
    assert isinstance(found, nn.BatchNorm2d)
    return found


@pytest.mark.parametrize("average", ["none", "float32"])
def test_they_are_those_of_as_many_stored_samples_of_each_class(average: str) -> None:
    learner = learner_with(average=average)
    running = stem_norm(learner.model).running_mean
    assert running is not None
    before = running.clone()
    learner.before_prediction()
    assert torch.equal(before, running)
    memory = learner.memory
    slots = np.concatenate([memory.membership.members(row)[:2] for row in range(4)])
    assert np.bincount(memory.gather(slots).labels.numpy()).tolist() == [2, 2, 2, 2]
    inputs = learner.problem.inputs(memory.gather(slots).samples)
    with learner.network.predicting():
        norm, first = stem_norm(learner.model), learner.model.get_submodule("stem.0")(inputs)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        torch.testing.assert_close(norm.running_mean, first.mean((0, 2, 3)))
        torch.testing.assert_close(norm.running_var, first.var((0, 2, 3)))
    told = learner.logits(images(5))
    feed(learner, 30, 31)
    learner.network.norms = None
    assert not torch.equal(told, learner.logits(images(5)))


def test_they_are_gone_with_the_next_step() -> None:
    learner = learner_with()
    plain = make("vanilla", tiny(), settings=settings_of(METHODS["vanilla"]))
    feed(plain, 0, 30)
    assert torch.equal(learner.logits(images(5)), plain.logits(images(5)))
    learner.before_prediction()
    assert not torch.equal(learner.logits(images(5)), plain.logits(images(5)))
    for each in (learner, plain):
        feed(each, 30, 31)
    assert torch.equal(learner.logits(images(5)), plain.logits(images(5)))


@pytest.mark.parametrize("name", ["vanilla", "gdumb"])
def test_charged_counted_and_resumed(name: str, tmp_path: Path) -> None:
    learner = learner_with(name, average="bfloat16")
    learner.before_prediction()
    before = learner.ledger.spent_on["evaluation_training"].real
    feed(learner, 30, 34)
    with ExecutedOnData() as executed:
        learner.before_prediction()
    charged = learner.ledger.spent_on["evaluation_training"].real - before
    assert charged == pytest.approx(executed.total, rel=0.03)  # samples are prepared at no charge
    assert learner.nbytes_by_item()["norms"] == 4 * 2 * (4 + 8) + 8
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    assert torch.equal(learner.logits(images(5)), again.logits(images(5)))
    told = learner.logits(images(5))
    learner.network.settle()
    assert torch.equal(told, learner.logits(images(5)))


def test_a_model_without_batch_norm_has_nothing_to_measure() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 1))
    learner = make("vanilla", model, settings=settings_of(METHODS["vanilla"], norms="memory"))
    feed(learner, 0, 10)
    learner.before_prediction()
    assert "norms" not in learner.nbytes_by_item()
    assert learner.ledger.spent_on["evaluation_training"].real == 0
