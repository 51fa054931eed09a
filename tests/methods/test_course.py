"""The course of a run before there is data, against counting sample by sample."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from budgeted import streams
from budgeted.learner import LearnerSettings, Settings
from budgeted.runs.plan import course_of
from budgeted.methods import METHODS
from budgeted.methods.course import Course

SETTINGS = Settings(LearnerSettings(batch_size=8))


def course(order: str, slots: int | None = 12, method: str = "er", samples: int = 60, every: int = 25) -> Course:
    info = streams.info("digits")
    return course_of(METHODS[method], SETTINGS, info, samples, order=order, slots=slots, eval_every=every)


@pytest.mark.parametrize("order", ["gaussian", "disjoint", "blurry", "domain"])
def test_counts_are_those_of_the_labels(order: str) -> None:
    made = course(order)
    assert len(made) == 60
    assert set(made.labels.tolist()) == set(range(10))
    seen: list[int] = []
    for arrived, label in enumerate(made.labels.tolist(), 1):
        assert label <= len(set(seen))  # numbered as they first appear
        seen.append(label)
        assert made.known(arrived) == len(set(seen))
        counted = Counter(seen)
        assert made.counts(arrived).tolist() == [counted[row] for row in range(10)]
        stored = made.stored(arrived)
        assert stored.sum() == min(12, arrived)
        assert (stored <= made.counts(arrived)).all()
    assert made.known(0) == 0
    assert made.mean_stored() == pytest.approx(np.mean([min(12, n) for n in range(1, 61)]))
    assert made.mean_rows - 1 < np.mean([made.known(n) for n in range(1, 61)]) <= made.mean_rows


def test_boundaries_and_evaluations_are_those_of_a_run() -> None:
    disjoint, gaussian = course("disjoint"), course("gaussian")
    assert disjoint.boundaries == gaussian.boundaries == (12, 24, 36, 48)
    assert disjoint.evaluations == (12, 24, 25, 36, 48, 50, 60)
    shares, known = zip(*disjoint.behind_boundaries(), strict=True)
    assert shares == pytest.approx((0.2,) * 4)
    assert known == (2, 4, 6, 8)
    for task in range(5):
        assert len(set(disjoint.labels[12 * task : 12 * task + 12].tolist())) == 2
    assert (disjoint.batch, disjoint.new) == (8, 4)


def test_steps_that_wait_for_an_evaluation_meet_its_head() -> None:
    made = course("gaussian", method="gdumb")
    at = [next(each for each in made.evaluations if each > position) for position in range(60)]
    assert made.mean_rows == np.ceil(np.mean([made.known(each) for each in at]))
    assert made.mean_rows > course("gaussian").mean_rows


@pytest.mark.parametrize("samples", [1, 3, 19, 1000])
def test_moments_lie_evenly(samples: int) -> None:
    made = course("gaussian", samples=samples, slots=None)
    moments = made.moments()
    assert len(moments) == min(20, samples)
    assert all(0 <= moment < samples for moment in moments)
    assert np.mean(moments) == pytest.approx(samples / 2, abs=0.5)
    assert made.stored(samples).sum() == samples
