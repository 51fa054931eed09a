"""Averaged weights: against a sum by hand; predicted with, counted, charged and resumed, whatever the method."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from budgeted.audit import ExecutedOnData, ExecutedOps
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, export, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.network import Average
from budgeted.network.average import Precision
from tests.bright_rows import FACTS, samples
from tests.learner.small import images, make, settings_of, tiny
from tests.nets import seeded
from tests.network.test_changed import Branching

PRECISIONS: list[Precision] = ["float32", "bfloat16"]


def network() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))


def moved(model: nn.Module, generator: torch.Generator) -> None:
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=0.1)


def learner_with(name: str = "vanilla", average: str = "float32", **more: Any) -> Learner:
    return make(name, tiny(), settings=settings_of(METHODS[name], average=average, average_decay=0.9), **more)


def feed(learner: Learner, start: int, end: int) -> None:
    for number, (image, label) in enumerate(samples(end)):
        if number >= start:
            learner.learn(image, label)
            if (number + 1) % 12 == 0:
                learner.before_prediction()
                learner.end_task()


def test_it_is_the_weighted_mean_of_all_weights_so_far() -> None:
    model, generator = network(), torch.Generator().manual_seed(0)
    average = Average(model, decay=0.8, warm_up=4.0)
    states, decays = [{k: v.double().clone() for k, v in model.state_dict().items()}], []
    for step in range(1, 31):
        moved(model, generator)
        average.update(model)
        states.append({name: tensor.double().clone() for name, tensor in model.state_dict().items()})
        decays.append(min(0.8, (1 + step) / (4 + step)))
    shares = np.array([1.0, *(1 - d for d in decays)]) * np.array([float(np.prod(decays[k:])) for k in range(31)])
    assert shares.sum() == pytest.approx(1)
    assert decays[0] < decays[5] < 0.8 == decays[-1]
    assert "1.running_var" in average.weights
    assert "1.num_batches_tracked" not in average.weights
    for name, found in average.weights.items():
        by_hand = sum(share * state[name] for share, state in zip(shares, states, strict=True))
        torch.testing.assert_close(found.double(), by_hand, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_small_shares_are_not_rounded_away() -> None:
    """Towards 1.5 from 1, by a five-hundredth of the way in a step: plain rounding would never leave 1."""
    model = nn.Module()
    model.register_buffer("weights", torch.ones(4000))
    average = Average(model, decay=0.998, warm_up=1.0001, precision="bfloat16", seed=3)
    model.get_buffer("weights").fill_(1.5)
    for _ in range(200):
        average.update(model)
    found = average.weights["weights"].double()
    assert found.mean().item() == pytest.approx(1.5 - 0.5 * 0.998**200, abs=2e-3)
    again = Average(model, decay=0.998, warm_up=1.0001, precision="bfloat16", seed=3)
    again.weights["weights"].fill_(1)
    for _ in range(200):
        again.update(model)
    assert torch.equal(found, again.weights["weights"].double())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_its_price_is_what_is_executed(precision: Precision) -> None:
    model = network()
    average = Average(model, decay=0.9, precision=precision)
    with ExecutedOps() as executed:
        average.update(model)
    assert executed.total > 0
    assert average.price().real == executed.total


def test_new_rows_start_with_their_own_value_and_old_ones_stay() -> None:
    learner = learner_with()
    feed(learner, 0, 12)  # two classes
    average = learner.network.average
    assert average is not None
    name = f"{learner.freezing.chain.head}.weight"
    before = average.by_name()[name].clone()
    learner.network.grow_head(4, np.random.default_rng(0))
    grown = average.by_name()[name]
    assert torch.equal(grown[: len(before)], before)
    assert torch.equal(grown[len(before) :], learner.head.weight[len(before) :])
    assert not torch.equal(before, learner.head.weight[: len(before)])


def test_a_changed_network_is_followed() -> None:
    model = seeded(Branching)
    average = Average(model, decay=0.9)
    moved(model, torch.Generator().manual_seed(0))
    average.update(model)
    before = {name: tensor.clone() for name, tensor in average.by_name().items()}
    model.end_task()
    del model.stem[1]
    average.follow(model)
    assert average.by_name().keys() == dict(model.named_parameters()).keys()
    assert "stem.1.weight" in before.keys() - average.by_name().keys()
    for name, tensor in average.by_name().items():
        assert torch.equal(tensor, before.get(name, model.get_parameter(name)))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_predictions_are_those_of_the_averaged_model_and_training_never_sees_it(precision: Precision) -> None:
    learner, plain = learner_with(average=precision), learner_with(average="none")
    for each in (learner, plain):
        feed(each, 0, 30)
    assert not torch.equal(learner.logits(images(6)), plain.logits(images(6)))
    for a, b in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(a, b)
    average = learner.network.average
    assert average is not None
    state = plain.model.state_dict() | {name: tensor.float() for name, tensor in average.by_name().items()}
    plain.model.load_state_dict(state)
    assert torch.equal(learner.logits(images(6)), plain.logits(images(6)))


def test_an_exported_model_has_the_averaged_weights(tmp_path: Path) -> None:
    learner = learner_with()
    feed(learner, 0, 20)
    export(learner, tmp_path / "model")
    average = learner.network.average
    assert average is not None
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if name in average.by_name():
            assert torch.equal(tensor, average.by_name()[name])
    told = learner.logits(images(4))
    learner.network.settle()
    assert torch.equal(told, learner.logits(images(4)))


@pytest.mark.parametrize(
    ("name", "precision"),
    [("vanilla", "float32"), ("vanilla", "bfloat16"), ("bic", "float32"), ("gdumb", "float32"), ("al-sar", "bfloat16")],
)
def test_charged_as_run_and_resumed_exactly(name: str, precision: Precision, tmp_path: Path) -> None:
    learner = learner_with(name, precision)
    feed(learner, 0, 24)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    assert torch.equal(learner.logits(images(5)), again.logits(images(5)))
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        feed(learner, 24, 36)
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.01)
    feed(again, 24, 36)
    assert weights_digest(learner) == weights_digest(again)
    assert learner.ledger.spent == again.ledger.spent
    if name == "vanilla":
        plain = learner_with(name, "none")
        feed(plain, 0, 36)
        average = learner.network.average
        assert average is not None
        assert learner.steps == plain.steps > 0
        difference = learner.ledger.spent_on["optimizer"].real - plain.ledger.spent_on["optimizer"].real
        assert 0 < difference <= average.price().real * learner.steps  # less before the head had all rows


@pytest.mark.parametrize("precision", PRECISIONS)
def test_its_bytes_count_and_are_reserved(precision: Precision) -> None:
    plain, learner = learner_with(average="none"), learner_with(average=precision)
    numbers = sum(t.numel() for t in (*plain.model.parameters(), *plain.model.buffers()) if t.is_floating_point())
    rows = 3 * (plain.head.in_features + 1)  # of the four declared classes, one is there
    expected = (numbers + rows) * (4 if precision == "float32" else 2) + 8
    assert learner.nbytes_by_item()["average"] == expected
    assert learner.nbytes() == plain.nbytes() + expected
    learner = learner_with(average=precision, slots=None, budget=Budget(bytes=learner.nbytes()))
    feed(learner, 0, 30)
    assert len(learner.class_labels) == 4
    assert learner.nbytes_by_item()["average"] == expected
    assert learner.nbytes() <= (learner.budget.bytes or 0)


def test_classes_that_nobody_declared_find_room_for_their_averages() -> None:
    undeclared = dataclasses.replace(FACTS, classes=None)
    smallest = learner_with(facts=undeclared, slots=1).nbytes()
    learner = learner_with(facts=undeclared, slots=None, budget=Budget(bytes=smallest + 600))
    slots = learner.memory.capacity or 0
    for image, label in samples(30):
        learner.learn(image, label)
        assert learner.nbytes() <= smallest + 600
    assert len(learner.class_labels) == 4
    assert 1 <= (learner.memory.capacity or 0) < slots
    tight = learner_with(facts=undeclared, slots=None, budget=Budget(bytes=smallest + 50))
    with pytest.raises(BudgetedError, match="2 classes and one slot"):
        feed(tight, 0, 12)
    assert tight.nbytes() <= smallest + 50


def test_gdumb_begins_its_average_anew() -> None:
    learner = learner_with("gdumb")
    feed(learner, 0, 24)
    average = learner.network.average
    assert isinstance(average, Average)
    assert 0 < average.steps < learner.steps


def test_bic_is_fitted_on_what_it_predicts_with(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("bic", tiny(), settings=settings_of(METHODS["bic"], average="float32", average_decay=0.9))
    learner.method.every, learner.method.validation = 3, 2  # type: ignore[attr-defined]
    feed(learner, 0, 23)
    asked: list[bool] = []
    inner = learner.network.answers

    def answers(*given: Any, as_predicted: bool = False) -> Any:
        asked.append(as_predicted)
        return inner(*given, as_predicted=as_predicted)

    monkeypatch.setattr(learner.network, "answers", answers)
    learner.before_prediction()
    assert asked == [True]


@pytest.mark.parametrize("wrong", [{"average_decay": 1.0}, {"average_decay": -0.1}, {"average_warm_up": 1.0}])
def test_settings_that_make_no_average_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=next(iter(wrong))):
        LearnerSettings(**wrong)  # type: ignore[arg-type]
