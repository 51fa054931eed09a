"""Metrics against direct arithmetic on per-class counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.runs.metrics import Evaluation, a_auc, a_last, f_last


@st.composite
def histories(draw: st.DrawFn) -> list[Evaluation]:
    """Evaluations at increasing samples over a growing number of classes."""
    samples = sorted(draw(st.sets(st.integers(0, 10_000), min_size=2, max_size=8)))
    seen = 0
    evaluations = []
    for count in samples:
        seen = draw(st.integers(max(seen, 1), 6))
        total = draw(st.lists(st.integers(1, 50), min_size=seen, max_size=seen))
        correct = [draw(st.integers(0, n)) for n in total]
        evaluations.append(Evaluation(count, tuple(correct), tuple(total)))
    return evaluations


def test_accuracy_weighs_images_not_classes() -> None:
    evaluation = Evaluation(10, (9, 0), (9, 1))
    assert evaluation.accuracy == 0.9
    assert evaluation.class_accuracy(1) == 0.0
    assert evaluation.class_accuracy(2) is None


def test_counts_from_arrays_become_plain_integers() -> None:
    evaluation = Evaluation(np.int64(5), np.array([1, 2]), [2, 2])  # type: ignore[arg-type]
    assert evaluation == Evaluation(5, (1, 2), (2, 2))
    assert all(type(count) is int for count in (evaluation.samples, *evaluation.correct, *evaluation.total))


@settings(deadline=None)
@given(histories())
def test_a_auc_is_the_mean_and_a_last_the_last(evaluations: list[Evaluation]) -> None:
    accuracies = [sum(e.correct) / sum(e.total) for e in evaluations]
    assert a_auc(evaluations) == pytest.approx(np.mean(accuracies), abs=1e-12)
    assert a_last(evaluations) == accuracies[-1]


def test_f_last_by_hand() -> None:
    evaluations = [
        Evaluation(50, (10, 10), (10, 10)),  # not a task end: its peak must not count
        Evaluation(100, (8, 0), (10, 10)),
        Evaluation(200, (9, 6, 0, 5), (10, 10, 10, 10)),
        Evaluation(300, (3, 7, 5, 5, 9, 9), (10, 10, 10, 10, 10, 10)),
    ]
    # Class 0 falls 0.9 to 0.3, class 1 rises 0.6 to 0.7, 2 was never right, 3 stays, 4 and 5 are new.
    assert f_last(evaluations, [100, 200, 300]) == pytest.approx((0.6 - 0.1 + 0.0) / 3)


@settings(deadline=None)
@given(histories(), st.data())
def test_f_last_against_arrays(evaluations: list[Evaluation], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(evaluations[:-1]), min_size=1))
    accuracy = np.zeros((len(evaluations), 6))
    for row, e in enumerate(evaluations):
        accuracy[row, : len(e.total)] = np.array(e.correct) / np.array(e.total)
    rows = [row for row, e in enumerate(evaluations) if e in chosen]
    best = accuracy[rows].max(axis=0)
    ends = [e.samples for e in chosen] + [evaluations[-1].samples]
    if not (best > 0).any():
        with pytest.raises(BudgetedError, match="nothing to forget"):
            f_last(evaluations, ends)
        return
    expected = (best - accuracy[-1])[best > 0].mean()
    assert f_last(evaluations, ends) == pytest.approx(expected, abs=1e-12)


FINE = Evaluation(100, (1,), (2,))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: a_auc([]), "no evaluation"),
        (lambda: a_last([]), "no evaluation"),
        (lambda: f_last([], [100]), "no evaluation"),
        (lambda: a_auc([FINE, FINE]), "stream order"),
        (lambda: f_last([FINE, Evaluation(200, (1,), (2,))], [200]), "at least two tasks"),
        (lambda: f_last([FINE, Evaluation(200, (1,), (2,))], [90, 200]), "after 90 samples"),
        (lambda: f_last([FINE, Evaluation(200, (0, 1), (0, 2))], [100]), "all seen classes"),
        (lambda: Evaluation(1, (0,), (0,)), "no test image"),
        (lambda: Evaluation(1, (), ()), "no test image"),
        (lambda: Evaluation(1, (3,), (2,)), "damaged"),
        (lambda: Evaluation(1, (-1,), (2,)), "damaged"),
        (lambda: Evaluation(1, (1, 1), (2,)), "one of each"),
        (lambda: Evaluation(-1, (1,), (2,)), "at least 0"),
        (lambda: Evaluation(1, (0.5,), (1.0,)), "no accuracies"),  # type: ignore[arg-type]
        (lambda: Evaluation(1, (float("nan"),), (1,)), "no accuracies"),
        (lambda: Evaluation(1, (1,), (2,), float("nan")), "damaged"),
    ],
)
def test_undefined_cases_are_one_line_errors(wrong, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BudgetedError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)
