"""GDumb: a memory balanced by its own rule, training from scratch at evaluations alone, within what is due and paid."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings, load, save
from budgeted.learner.settings import from_pairs
from budgeted.learner.state import tensors_of, weights_digest
from budgeted.methods import METHODS
from budgeted.methods.gdumb import TrainsForEvaluation
from budgeted.models import build
from budgeted.replay import Column, GreedyQuota, Memory, label_column
from tests.bright_rows import FACTS, SHAPE, samples
from tests.methods.small import RealOps, feed, learner_of, network

GDUMB = METHODS["gdumb"]


def made(model: str = "mlp", **more: Any) -> Learner:
    return learner_of(GDUMB, model, **more)


# -- the memory -------------------------------------------------------------------------------------------------


def by_the_papers_algorithm(labels: list[int], capacity: int, seed: int) -> list[int]:
    """Algorithm 1 of the paper, on a plain list of (class, number of the sample)."""
    rng = np.random.default_rng(seed)
    stored: list[tuple[int, int]] = []
    seen: set[int] = set()
    for number, label in enumerate(labels):
        seen.add(label)
        counts = {each: sum(held == each for held, _ in stored) for each in sorted(seen)}
        if counts[label] < capacity / len(seen):
            if len(stored) >= capacity:
                largest = max(counts, key=lambda each: counts[each])
                members = [place for place, (held, _) in enumerate(stored) if held == largest]
                stored[members[int(rng.integers(len(members)))]] = (label, number)
            else:
                stored.append((label, number))
    return sorted(held for held, _ in stored)


@pytest.mark.parametrize("capacity", [3, 10, 24])
def test_the_sampler_is_that_of_the_paper(capacity: int) -> None:
    labels = [0] * 30 + [1] * 4 + [2, 0, 3] * 9 + [4] * 2
    memory = Memory((Column("sample", (1,), torch.uint8), label_column(5)), capacity)
    selection, generator = GreedyQuota(), np.random.default_rng(0)
    for number, label in enumerate(labels):
        slot = selection.select(memory, label, generator)
        if slot is not None:
            memory.put(slot, torch.tensor([number], dtype=torch.uint8), label)
    assert sorted(memory.labels.tolist()) == by_the_papers_algorithm(labels, capacity, 0)


def test_the_memory_is_balanced() -> None:
    learner = made(slots=12, iterations=0.0)
    feed(learner, 0, 48)
    assert learner.memory.counts.tolist() == [3, 3, 3, 3]


# -- the training -------------------------------------------------------------------------------------------------


def test_nothing_is_trained_while_the_stream_runs() -> None:
    learner = made()
    start = network().state_dict()
    feed(learner, 0, 40)
    assert (learner.steps, learner.ledger.spent.real) == (0, 0)
    assert all(torch.equal(start[name], learner.model.state_dict()[name]) for name in ("stem.1.weight", "stem.1.bias"))


@pytest.mark.parametrize("restart", ["draw", "given"])
def test_the_model_is_trained_from_scratch(restart: str) -> None:
    """Whatever the weights were before, and whatever was trained earlier, the result is the same."""
    digests = []
    for disturbed in (False, True):
        learner = made("cnn8", own={"epochs": 1, "restart": restart})
        feed(learner, 0, 30)
        if disturbed:
            with torch.no_grad():
                for tensor in learner.model.state_dict().values():
                    tensor.mul_(3)
            learner.optimizer.param_groups[0]["params"][0].grad = None
        learner.before_prediction()
        digests.append(weights_digest(learner))
        assert learner.optimizer.param_groups[0]["lr"] == 1e-3
    assert digests[0] == digests[1]


def test_it_is_plain_training_with_a_cosine() -> None:
    """Against a loop written by hand, with torch's own scheduler."""
    settings = Settings(
        LearnerSettings(batch_size=4, learning_rate=1e-2),
        from_pairs(
            {"augmentation.randaugment_ops": "0", "augmentation.crop_padding": "0"}, TrainsForEvaluation(), False
        ).augmentation,
        method={"epochs": 3, "last_rate": 0.0},
    )
    learner = made(settings=settings, slots=10)
    feed(learner, 0, 30)
    rng = np.random.default_rng(0)
    rng.bit_generator.state = learner.generator("technique").bit_generator.state
    learner.before_prediction()

    classes = len(learner.class_labels)
    model = build("mlp", classes=classes, input_shape=SHAPE, seed=int(rng.integers(2**62)))  # drawn by the same law
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
    order: list[int] = []
    for _ in range(9):
        while len(order) < 4:
            order += rng.permutation(10).tolist()
        slots, order = np.array(order[:4]), order[4:]
        batch = learner.memory.gather(slots)
        optimizer.zero_grad()
        F.cross_entropy(model(learner.inputs_of(batch.samples)), batch.labels).backward()
        optimizer.step()
        schedule.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(learner.model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_it_learns_what_is_in_the_memory() -> None:
    learner = made(slots=24, own={"epochs": 40}, settings=Settings(LearnerSettings(8, learning_rate=1e-2)))
    feed(learner, 0, 60)
    learner.before_prediction()
    test = [*samples(40, seed=5)]
    right = learner.predict(torch.stack([image for image, _ in test])) == torch.tensor([label for _, label in test])
    assert right.float().mean() > 0.9


# -- the budget ---------------------------------------------------------------------------------------------------


def test_every_training_step_is_charged_as_executed() -> None:
    learner = made("cnn8", own={"epochs": 1})
    with RealOps() as executed:
        feed(learner, 0, 30)
        learner.before_prediction()
    assert learner.ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    assert learner.ledger.spent_on["evaluation_training"] == learner.ledger.spent
    assert learner.ledger.spent.paper > 0


def test_it_runs_as_many_steps_as_are_due(caplog: pytest.LogCaptureFixture) -> None:
    learner = made(iterations=0.5, slots=40)
    price = learner.network.practice_price(8).real
    feed(learner, 0, 24)  # 12 steps due, 3 of them a pass
    learner.before_prediction()
    spent = learner.ledger.spent.real
    assert spent >= 12 * price  # the head has grown since
    assert spent == 12 * learner.network.practice_price(8).real
    feed(learner, 24, 28)
    with caplog.at_level(logging.WARNING, "budgeted"):
        learner.before_prediction()
    assert "2 training steps are due, this training takes 10: the model stays" in caplog.text
    assert learner.ledger.spent.real == spent
    assert learner.due == 2  # saved for the next evaluation
    learner.learn(torch.zeros(SHAPE, dtype=torch.uint8), 0)
    learner.iterations = 20
    feed(learner, 28, 29)
    learner.before_prediction()
    assert learner.due == 0
    assert learner.ledger.spent.real == spent + 22 * learner.network.practice_price(8).real


def test_a_fraction_of_an_iteration_makes_it_wait_for_no_evaluation() -> None:
    """Ten samples are due 7 steps or 6: one fewer than the last time is a training like it."""
    learner = made(iterations=0.65, slots=12)
    taken = []
    for end in range(10, 80, 10):
        feed(learner, end - 10, end)
        before = learner.steps
        learner.before_prediction()
        taken.append(learner.steps - before)
    assert set(taken) == {6, 7}
    assert sum(taken) == 45


def test_it_says_when_it_cannot_pay(caplog: pytest.LogCaptureFixture) -> None:
    plain = made(own={"epochs": 4}, slots=16)
    feed(plain, 0, 40)
    plain.before_prediction()
    whole = plain.ledger.spent.real  # of 8 steps
    learner = made(own={"epochs": 4}, slots=16, budget=Budget(Compute(whole * 3 // 2, "real")))
    feed(learner, 0, 40)
    with caplog.at_level(logging.WARNING, "budgeted"):
        learner.before_prediction()
        learner.before_prediction()  # half of the passes
        assert learner.ledger.spent.real == whole * 3 // 2
        assert caplog.text == ""
        before = weights_digest(learner)
        learner.before_prediction()
    assert "is spent after" in caplog.text
    assert weights_digest(learner) == before  # predicts with what it has


# -- what holds for every method ----------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", ["draw", "given"])
def test_resume_is_exact(restart: str, tmp_path: Path) -> None:
    learner = made(own={"restart": restart}, iterations=1.5)
    feed(learner, 0, 12)
    learner.before_prediction()
    feed(learner, 12, 20)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", network(seed=9))
    for each in (learner, again):
        feed(each, 20, 30)  # two classes appear
        spent = each.ledger.spent.real
        each.before_prediction()
        assert each.ledger.spent.real > spent
    mine, other = tensors_of(learner), tensors_of(again)
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert again.ledger.spent == learner.ledger.spent
    assert again.nbytes_by_item() == learner.nbytes_by_item()


def test_bytes_are_those_of_what_is_kept() -> None:
    plain = learner_of(METHODS["vanilla"]).nbytes_by_item()
    assert made().nbytes_by_item() == plain | {"method": 8}  # steps of the model in use
    given = made("cnn8", own={"restart": "given"})
    body = [tensor for name, tensor in network("cnn8").state_dict().items() if not name.startswith("head")]
    assert given.nbytes_by_item()["method"] == 8 + sum(tensor.numel() * tensor.element_size() for tensor in body)


def test_a_module_of_an_unknown_kind_starts_from_what_is_given() -> None:
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    with pytest.raises(BudgetedError, match="restart=given"):
        Learner(model, GDUMB, FACTS, slots=8)
    learner = Learner(model, GDUMB, FACTS, slots=8, settings=Settings(method={"restart": "given", "epochs": 1}))
    feed(learner, 0, 12)
    learner.before_prediction()
    assert learner.ledger.spent.real > 0


def test_an_evaluation_before_there_is_anything_trains_nothing() -> None:
    learner = made(own={"epochs": 1})
    learner.before_prediction()
    feed(learner, 0, 1)
    learner.before_prediction()
    assert learner.ledger.spent.real == 0


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", "0"), ("last_rate", "2"), ("restart", "never"), ("passes", "3"), ("epochs", "x")]
)
def test_bad_settings_are_one_line(name: str, value: str) -> None:
    with pytest.raises(BudgetedError) as refused:
        TrainsForEvaluation(**from_pairs({f"method.{name}": value}, TrainsForEvaluation(), False).method)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value)


@pytest.mark.parametrize("part", ["selection", "retrieval", "freezing"])
def test_its_parts_are_its_own(part: str) -> None:
    with pytest.raises(BudgetedError, match=f"its own {part}"):
        TrainsForEvaluation().with_parts(**{part: "random"})
