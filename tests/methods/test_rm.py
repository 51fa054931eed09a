"""RM: those at equal intervals of uncertainty stay, and uncertainty is how little augmented views agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Augmentation, Learner, LearnerSettings, Settings
from budgeted.methods import METHODS
from budgeted.methods.rm import RainbowMemory, thinned
from tests.bright_rows import augmenter_of, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

RM = METHODS["rm"]


def technique_of(learner: Learner) -> RainbowMemory:
    assert isinstance(learner.method, RainbowMemory)
    return learner.method


@pytest.mark.parametrize(("count", "quota"), [(10, 10), (10, 9), (10, 4), (7, 3), (12, 1), (5, 0)])
def test_those_at_equal_intervals_stay(count: int, quota: int) -> None:
    generator = np.random.default_rng(count)
    members = generator.permutation(100)[:count]
    uncertainty = generator.random(count)
    leaving = set(thinned(members, uncertainty, quota).tolist())
    by_uncertainty = sorted(range(count), key=lambda i: uncertainty[i])
    staying = {int(members[by_uncertainty[int(i * count / quota)]]) for i in range(quota)}
    assert len(staying) == quota
    assert leaving == set(members.tolist()) - staying
    if 1 < quota < count:  # from the most certain up to the last interval
        ranks = [by_uncertainty.index(members.tolist().index(slot)) for slot in staying]
        assert min(ranks) == 0
        assert max(ranks) >= count - int(np.ceil(count / quota))


def test_uncertainty_is_how_little_the_views_agree() -> None:
    """Against votes counted one sample and one view at a time, from the same draws."""
    learner = learner_of(RM, slots=100, own={"views": 7}, iterations=3.0)
    feed(learner, 0, 40)
    technique, slots = technique_of(learner), np.arange(len(learner.memory))
    generator = learner.generators["technique"]
    before = generator.bit_generator.state
    found = technique.uncertainty(slots)
    generator.bit_generator.state = before
    stored = learner.memory.gather(slots).samples
    votes: list[list[int]] = [[] for _ in slots]
    learner.model.eval()
    for _ in range(7):
        views = augmenter_of(learner)(stored, generator)
        for place, view in enumerate(views):
            with torch.no_grad():
                votes[place].append(int(learner.model(view[None]).argmax()))
    expected = [1 - max(map(own.count, own)) / 7 for own in votes]
    assert found.tolist() == pytest.approx(expected)
    assert 0 < np.mean(found) < 6 / 7
    assert learner.model.training is False  # as it was found: this test put it there


def held(learner: Learner) -> set[bytes]:
    stored = learner.memory.gather(np.arange(len(learner.memory))).samples
    return {image.numpy().tobytes() for image in stored}


def test_what_stays_after_a_task_is_what_the_definition_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy quotas, then equal intervals, against what the memory holds afterwards."""
    learner = learner_of(RM, slots=20, own={"spare": 0.3}, iterations=0.0)
    monkeypatch.setattr(
        learner.method, "uncertainty", lambda slots: learner.memory.gather(slots).samples[:, 0, 0, 0].double().numpy()
    )
    learner.end_task()
    stream = [*samples(20)]
    for image, label in stream:
        learner.learn(image, label)
    learner.flush()
    assert len(learner.memory) == 20
    learner.end_task()
    by_class = [[image for image, label in stream if label == wanted] for wanted in range(4)]
    counts = [len(members) for members in by_class]
    while sum(counts) > 14:
        counts[counts.index(max(counts))] -= 1
    expected = set()
    for members, quota in zip(by_class, counts, strict=True):
        if len(members) == quota:
            expected |= {image.numpy().tobytes() for image in members}
            continue
        order = sorted(members, key=lambda image: float(image[0, 0, 0]))
        expected |= {order[i * len(order) // quota].numpy().tobytes() for i in range(quota)}
    assert len(held(learner)) == len(learner.memory) == 14
    assert held(learner) == expected
    assert learner.memory.capacity == 20


def test_samples_are_scored_once_per_task_never_in_the_first_and_not_while_all_fit() -> None:
    """Before, a full memory was thinned whenever a sample was stored: twice as dear as the authors' schedule."""
    learner = learner_of(RM, slots=20, own={"views": 2})
    for task, (upto, scored) in enumerate([(40, False), (60, True), (63, False), (80, True)]):
        start = [0, 40, 60, 63][task]
        before = learner.ledger.spent_on["retrieval"].real
        feed(learner, start, upto)
        learner.flush()
        ran = learner.ledger.spent_on["retrieval"].real
        assert ran - before <= 8 * (upto - start) + 8  # what draws cost, and no pass over samples
        stored = len(learner.memory)
        learner.end_task()
        passed = learner.ledger.spent_on["retrieval"].real - ran
        if scored:
            assert stored == 20
            assert passed >= 2 * learner.network.price_of(16).real  # two views of nearly all that is stored
            assert len(learner.memory) == 15
        else:
            assert passed == 0
            assert len(learner.memory) == stored
    assert learner.memory.counts.min() >= 3


def test_between_the_ends_of_tasks_classes_stay_balanced() -> None:
    learner = learner_of(RM, slots=20, own={"views": 2})
    feed(learner, 0, 120, task=30)
    assert learner.memory.counts.min() >= 3


def test_one_slot_and_no_end_of_slots() -> None:
    for slots in (1, 2, None):
        learner = learner_of(RM, slots=slots, own={"views": 2})
        feed(learner, 0, 16, task=4)
        learner.flush()
        assert len(learner.memory) == (16 if slots is None else 1)


def test_what_the_views_cost_is_charged() -> None:
    learner = learner_of(RM, slots=16, own={"views": 3})
    assert_charged_as_executed(learner, 48, task=16)
    assert learner.ledger.spent_on["retrieval"].real > 0.1 * learner.ledger.spent_on["forward"].real


def test_when_compute_is_spent_storing_goes_on() -> None:
    budget = Budget(Compute(10_000_000, "real"))
    learner = learner_of(RM, slots=8, budget=budget)
    feed(learner, 0, 60)
    learner.end_task()
    learner.end_task()
    assert learner.spent_up
    assert learner.ledger.spent.real <= 10_000_000
    assert len(learner.memory) == 8


def test_resume_is_exact(tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(RM, slots=10, own={"views": 3}), tmp_path / "saved", 27, 50, task=10)


def test_bytes_are_the_slots_alone() -> None:
    learner = learner_of(RM, slots=20)
    before = learner.nbytes()
    feed(learner, 0, 50, task=20)
    assert learner.nbytes() == before
    assert learner.nbytes_by_item()["method"] == 8  # how many tasks have ended
    assert learner.nbytes_by_item()["memory"] == 20 * (64 + 1)


def test_without_augmentation_all_views_agree() -> None:
    plain = Settings(LearnerSettings(batch_size=8), Augmentation(0, flip=False, randaugment_ops=0))
    learner = learner_of(RM, slots=20, settings=plain)
    feed(learner, 0, 30)
    assert not technique_of(learner).uncertainty(np.arange(len(learner.memory))).any()


@pytest.mark.parametrize("settings", [{"views": 1}, {"spare": 0.0}, {"spare": 1.0}])
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=rf"method\.{next(iter(settings))} must be"):
        learner_of(RM, own=settings)
