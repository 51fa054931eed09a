"""CLIB: the least important of the largest class leaves; importance and learning rate follow the memory's loss."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from budgeted.errors import BudgetedError
from budgeted.learner import LearnerSettings, Settings
from budgeted.methods import METHODS
from budgeted.methods.clib import SampleWiseImportance, better_by_chance
from budgeted.replay import Column, Memory, label_column
from budgeted.replay.importance import LeastImportant
from tests.bright_rows import FACTS, SHAPE, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, learner_of

CLIB = METHODS["clib"]


def memory_of(labels: list[int], importance: list[float], capacity: int) -> Memory:
    columns = (Column("sample", SHAPE, torch.uint8), label_column(9), Column("importance", host=True))
    memory = Memory(columns, capacity)
    for slot, label in enumerate(labels):
        memory.put(slot, torch.zeros(SHAPE, dtype=torch.uint8), label)
    memory.host("importance")[:] = importance
    return memory


def test_the_selection_equals_its_definition() -> None:
    """Against a search over all slots, for memories drawn at random."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        labels = generator.integers(0, 4, 9).tolist()
        importance = generator.permutation(9).astype(float).tolist()
        memory, newcomer = memory_of(labels, importance, 9), int(generator.integers(0, 6))
        counts = np.bincount([*labels, newcomer], minlength=6)
        chosen = LeastImportant().select(memory, newcomer, generator)
        assert chosen is not None
        largest = {c for c in set(labels) if counts[c] == max(counts[c] for c in set(labels))}
        assert labels[chosen] in largest
        assert importance[chosen] == min(h for h, c in zip(importance, labels, strict=True) if c == labels[chosen])
    assert LeastImportant().select(memory_of([0], [1.0], 2), 1, generator) == 1  # room is left


def test_when_slots_are_given_up_the_least_important_of_the_largest_go() -> None:
    memory = memory_of([0, 0, 0, 0, 1, 1, 2], [3, 0, 2, 1, -5, 9, -9], 7)
    given_up = LeastImportant().give_up(memory, 3, np.random.default_rng(0))
    assert sorted(given_up.tolist()) == [1, 3, 4] or sorted(given_up.tolist()) == [1, 2, 3]
    assert LeastImportant().give_up(memory, 0, np.random.default_rng(0)).size == 0


def test_a_selection_without_importances_is_refused() -> None:
    learner = learner_of(METHODS["vanilla"]().with_parts(selection="least-important"), slots=2)
    *first, (image, label) = samples(3)
    for each in first:
        learner.learn(*each)
    with pytest.raises(BudgetedError, match="use --method clib"):
        learner.learn(image, label)


def losses_of(learner: Any) -> np.ndarray:
    """The loss of every stored sample, by a plain forward."""
    stored = learner.memory.gather(np.arange(len(learner.memory)))
    learner.model.eval()
    with torch.no_grad():
        found = F.cross_entropy(learner.model(learner.inputs_of(stored.samples)), stored.labels, reduction="none")
    learner.model.train()
    return found.numpy()


@pytest.mark.parametrize("period", [1, 3])
def test_importance_is_an_average_of_the_memorys_fall_of_loss(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a hand-written account of every step."""
    learner = learner_of(CLIB, slots=200, own={"importance_period": period, "ema": 0.8}, iterations=0.0)
    for image, label in samples(30):
        learner.learn(image, label)
    assert not learner.memory.host("importance").any()
    assert np.isnan(learner.memory.host("loss")).all()
    expected, before, trained = np.zeros(30), None, set[int]()
    for step in range(1, 10):
        slots: list[int] = []
        draw = learner.retrieval.draw

        def noting(*args: Any, draw: Any = draw, slots: list[int] = slots) -> Any:
            slots += (found := draw(*args)).tolist()
            return found

        monkeypatch.setattr(learner.retrieval, "draw", noting)
        learner._step()
        monkeypatch.undo()
        trained |= set(slots)
        if step % period == 0:
            after = losses_of(learner)
            if before is not None:
                who = sorted(trained)
                expected[who] += 0.2 * ((before - after).mean() - expected[who].mean())
            before, trained = after, set()
            np.testing.assert_allclose(learner.memory.host("loss"), after, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(learner.memory.host("importance"), expected, rtol=1e-3, atol=1e-5)
    assert expected.any()


def test_a_newcomer_starts_as_its_class_and_is_not_compared_with_who_left() -> None:
    learner = learner_of(CLIB, slots=12, iterations=0.0)
    for image, label in samples(12):
        learner.learn(image, label)
    importance, labels = learner.memory.host("importance"), learner.memory.labels
    importance[:] = np.arange(12)
    learner.memory.host("loss")[:] = 1.0
    image, _ = next(samples(1))
    learner.learn(image, int(learner.class_labels[0]))
    (slot,) = np.flatnonzero(np.isnan(learner.memory.host("loss")))
    others = [i for i in range(12) if labels[i] == 0 and i != slot]
    assert importance[slot] == pytest.approx(np.mean([importance[i] for i in others]))
    learner.learn(image, 99)  # the first of its class: as important as all the others are
    (late,) = np.flatnonzero(labels == 2)
    assert importance[late] == pytest.approx(np.delete(importance, late).mean())


def follower(**settings: Any) -> SampleWiseImportance:
    learner = learner_of(CLIB, own={"rate_period": 1, "rate_turns": 4, **settings})
    assert isinstance(learner.method, SampleWiseImportance)
    return learner.method


@pytest.mark.parametrize(("better", "moves"), [("lower", 0.95), ("higher", 1 / 0.95)])
def test_the_rate_moves_to_the_one_that_lets_the_loss_fall_faster(better: str, moves: float) -> None:
    technique = follower()
    groups = technique.learner.network.optimizer.param_groups
    noise = np.random.default_rng(0)
    start = 1e-3
    for turn in range(8):
        higher = turn % 2 == 0
        assert groups[0]["lr"] == pytest.approx(start / 0.95 if higher else start * 0.95)
        technique._follow((1.0 if higher == (better == "higher") else 0.2) + 0.01 * float(noise.random()))
    assert technique._rate == pytest.approx(start * moves)
    assert technique._turns == [0, 0]


@pytest.mark.parametrize("length", [300, 1200])
def test_on_a_short_stream_the_rates_are_compared_after_a_tenth_too(length: int) -> None:
    """With 10 measurements a turn none of these would see a comparison: it took 2,000 steps."""
    facts = dataclasses.replace(FACTS, samples=length)
    learner = learner_of(CLIB, own={"importance_period": 1, "rate_turns": 3}, facts=facts, iterations=1.0)
    technique = learner.method
    assert isinstance(technique, SampleWiseImportance)
    rates, turned, compared = set(), 0, None
    for number, (image, label) in enumerate(samples(length // 6), start=1):
        learner.learn(image, label)
        rates.add(learner.optimizer.param_groups[0]["lr"])
        if compared is None and technique._turn >= 6:
            compared = number
        turned = technique._turn
    assert compared == pytest.approx(length / 10, abs=2)
    assert turned == pytest.approx(10, abs=1)  # a sixth of sixty turns
    assert len(rates) >= 2


def test_the_rate_stays_when_neither_is_better() -> None:
    technique = follower()
    for fall in [1.0, 1.0, 2.0, 2.0] * 10:
        technique._follow(fall)
    assert technique._rate == pytest.approx(1e-3)
    assert max(technique._turns) <= 4
    assert better_by_chance(np.ones(2), np.ones(2)) == 0.5
    fixed = follower(adaptive_rate=False)
    for _ in range(40):
        fixed._follow(1.0)
    assert fixed.learner.network.optimizer.param_groups[0]["lr"] == 1e-3


def test_the_ledger_holds_the_forwards_of_the_memory() -> None:
    learner = learner_of(CLIB, own={"importance_period": 1})
    assert_charged_as_executed(learner)
    assert learner.ledger.spent_on["retrieval"].real > 0.5 * learner.ledger.spent_on["forward"].real
    thrifty = learner_of(CLIB, own={"importance_period": 4})
    assert_charged_as_executed(thrifty)
    ratio = thrifty.ledger.spent_on["retrieval"].real / learner.ledger.spent_on["retrieval"].real
    assert ratio == pytest.approx(0.25, rel=0.1)


def test_resume_is_exact(tmp_path: Path) -> None:
    eager = {"rate_period": 1, "rate_turns": 2, "significance": 0.4, "importance_period": 2}
    assert_resumes_exactly(learner_of(CLIB, own=eager), tmp_path / "saved", 23, 45)


def test_bytes_are_what_is_kept() -> None:
    learner = learner_of(CLIB, slots=30, own={"rate_period": 1, "importance_period": 1})
    before = learner.nbytes()
    for image, label in samples(60):
        learner.learn(image, label)
    assert learner.nbytes() == before
    assert learner.nbytes_by_item()["memory"] == 30 * (64 + 1 + 4 + 4 + 1)
    # the falls of ten turns of each rate; the rate, this turn's fall, three counters, and turns of each
    assert learner.nbytes_by_item()["method"] == 8 * (2 * 10 + 5 + 2)


@pytest.mark.parametrize(
    "settings",
    [{"ema": 1.0}, {"importance_period": 0}, {"rate_step": 1.0}, {"rate_period": 0}, {"rate_turns": 1},
     {"significance": 0.6}],
)  # fmt: skip
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=rf"method\.{next(iter(settings))} must be"):
        learner_of(CLIB, own=settings)


def test_a_schedule_beside_it_is_refused() -> None:
    learner, facts = LearnerSettings(schedule="cosine"), dataclasses.replace(FACTS, samples=100)
    with pytest.raises(BudgetedError, match=r"keep learner\.schedule=constant"):
        learner_of(CLIB, settings=Settings(learner), facts=facts)
    learner_of(CLIB, settings=Settings(learner, method={"adaptive_rate": False}), facts=facts)
