"""KLR and KGR against a dense table filled cell by cell from the published description."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.runs.knowledge import knowledge

Case = tuple[list[int], list[int], list[int], list[int], list[int], int]


def dense_joint(case: Case, epsilon: float = 0.0) -> npt.NDArray[np.float64]:
    """P(g, y1, y2), with the branch for classes not yet in the head; epsilon in the divisions if asked."""
    truth, before, after, classes_before, classes_after, n = case
    joint = np.zeros((n, n, n))
    marginals = [[predictions.count(y) / len(truth) for y in range(n)] for predictions in (before, after)]
    for g in range(n):
        images = [i for i, label in enumerate(truth) if label == g]
        if not images:
            continue
        only1 = sum(before[i] == g != after[i] for i in images) / len(images)
        only2 = sum(after[i] == g != before[i] for i in images) / len(images)
        both = sum(before[i] == g == after[i] for i in images)
        neither = sum(before[i] != g != after[i] for i in images) / len(images)
        # neither * m(y); m(g) = only / neither is multiplied out, which is its limit where neither is 0.
        m1, m2 = ([p[y] for y in range(n)] for p in marginals)
        for m, p, head in ((m1, marginals[0], classes_before), (m2, marginals[1], classes_after)):
            if g in head:
                rest = sum(p) - p[g]
                for y in range(n):
                    m[y] = p[y] / (rest + epsilon) if rest > 1e-12 else 0.0
        lost = only1 * (neither / (neither + epsilon) if epsilon else 1.0)
        gained = only2 * (neither / (neither + epsilon) if epsilon else 1.0)
        weight = len(images) / len(truth)
        for y1 in range(n):
            for y2 in range(n):
                if y1 == g and g in classes_before:
                    cell = lost * m2[y2]
                elif y2 == g and g in classes_after:
                    cell = gained * m1[y1]
                else:
                    cell = neither * m1[y1] * m2[y2]
                joint[g, y1, y2] = weight * cell
        joint[g, g, g] = both / len(truth)
    return joint


def dense_information(joint: npt.NDArray[np.float64], epsilon: float = 0.0) -> tuple[float, float, float]:
    """I(g; y1 | y2), I(g; y2 | y1) and I(g; y1) by their definitions as expected log ratios."""
    n = joint.shape[0]
    p_g1, p_g2, p_12 = joint.sum(2), joint.sum(1), joint.sum(0)
    p_g, p_1, p_2 = joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1))

    def term(p: float, up: float, down: float) -> float:
        return p * math.log((up + epsilon) / (down + epsilon)) if p > 0 else 0.0

    loss = gain = previous = 0.0
    for g in range(n):
        for y1 in range(n):
            previous += term(p_g1[g, y1], p_g1[g, y1], p_g[g] * p_1[y1])
            for y2 in range(n):
                p = joint[g, y1, y2]
                loss += term(p, p * p_2[y2], p_g2[g, y2] * p_12[y1, y2])
                gain += term(p, p * p_1[y1], p_g1[g, y1] * p_12[y1, y2])
    return loss / math.log(n), gain / math.log(n), previous / math.log(n)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(2, 5))
    classes = list(range(n))
    head_after = draw(st.lists(st.sampled_from(classes), min_size=1, unique=True))
    head_before = draw(st.lists(st.sampled_from(head_after), min_size=1, unique=True))
    images = draw(st.integers(1, 25))

    def predictions(head: list[int]) -> list[int]:
        # Mostly right where it can be, so that kept, lost, gained and 'none wrong' all occur.
        right = draw(st.booleans())
        drawn = draw(st.lists(st.sampled_from(head), min_size=images, max_size=images))
        hit = draw(st.lists(st.booleans(), min_size=images, max_size=images))
        return [g if g in head and (h or right) else y for g, h, y in zip(truth, hit, drawn, strict=True)]

    truth = draw(st.lists(st.sampled_from(classes), min_size=images, max_size=images))
    return truth, predictions(head_before), predictions(head_after), head_before, head_after, n


@settings(max_examples=300, deadline=None)
@given(cases())
def test_closed_forms_equal_the_dense_table(case: Case) -> None:
    joint = dense_joint(case)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    loss, gain, previous = dense_information(joint)
    found = knowledge(*case)
    assert found.loss == pytest.approx(loss, abs=1e-9)
    assert found.gain == pytest.approx(gain, abs=1e-9)
    assert found.previous == pytest.approx(previous, abs=1e-9)
    missing = math.log(len(case[4])) / math.log(case[5]) - previous
    if previous > 1e-6:
        assert found.klr == pytest.approx(loss / previous, rel=1e-4)
    if missing > 1e-6:
        assert found.kgr == pytest.approx(gain / missing, rel=1e-4)


def synthetic(n: int, images: int, seen_before: int, seen_after: int, right: tuple[float, float], seed: int) -> Case:
    generator = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n), images)

    def predictions(seen: int, accuracy: float) -> npt.NDArray[np.int64]:
        guess = generator.integers(0, seen, len(truth))
        return np.where((generator.random(len(truth)) < accuracy) & (truth < seen), truth, guess)

    before, after = predictions(seen_before, right[0]), predictions(seen_after, right[1])
    heads = list(range(seen_before)), list(range(seen_after))
    return truth.tolist(), before.tolist(), after.tolist(), *heads, n


@pytest.mark.parametrize("n", [10, 30])
def test_an_epsilon_would_not_show_with_few_classes(n: int) -> None:
    case = synthetic(n, 50, n // 2, n // 2 + 3, (0.6, 0.55), seed=n)
    loss, gain, previous = dense_information(dense_joint(case, 1e-10), 1e-10)
    found = knowledge(*case)
    assert (found.loss, found.gain, found.previous) == pytest.approx((loss, gain, previous), abs=1e-5)


def test_a_class_without_wrong_images_keeps_its_mass() -> None:
    """Dividing by neither + epsilon would drop class 0, of which every image is right once."""
    case: Case = ([0, 0, 1, 1], [0, 1, 1, 1], [1, 0, 1, 0], [0, 1], [0, 1], 2)
    assert dense_joint(case, 1e-10).sum() < 0.6
    assert dense_joint(case).sum() == pytest.approx(1)
    assert knowledge(*case).loss == pytest.approx(dense_information(dense_joint(case))[0], abs=1e-9)


def test_all_right_twice_loses_and_gains_nothing() -> None:
    truth = [0, 1, 2, 3] * 5
    found = knowledge(truth, truth, truth, range(4), range(4), 4)
    assert found.previous == pytest.approx(1)
    assert found.loss == pytest.approx(0, abs=1e-12)
    assert found.klr == pytest.approx(0, abs=1e-12)
    assert found.kgr is None


def test_all_forgotten_loses_everything_and_learning_all_gains_everything() -> None:
    truth = [0, 1, 2, 3] * 5
    constant = [0] * 20
    lost = knowledge(truth, truth, constant, range(4), range(4), 4)
    assert lost.klr == pytest.approx(1)
    gained = knowledge(truth, constant, truth, [0], range(4), 4)
    assert gained.previous == pytest.approx(0, abs=1e-12)
    assert gained.klr is None
    assert gained.kgr == pytest.approx(1)


def test_a_thousand_classes_are_small_and_quick() -> None:
    n = 1000
    case = synthetic(n, 50, 800, 850, (0.4, 0.35), seed=0)
    truth, before, after = (np.array(column) for column in case[:3])
    tracemalloc.start()
    start = time.process_time()
    found = knowledge(truth, before, after, *case[3:])
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6
    assert seconds < 5
    assert 0 < found.loss < found.previous < 1
    assert found.klr is not None
    assert found.kgr is not None


def test_the_row_blocks_add_up() -> None:
    """More predicted classes than one block of rows, against entropies of explicit tables of (y1, y2)."""
    case = synthetic(300, 3, 280, 290, (0.5, 0.5), seed=1)
    truth, before, after, *_ = (np.array(column) for column in case[:3])
    n, count = 300, len(case[0])
    p1, p2 = np.bincount(before, minlength=n) / count, np.bincount(after, minlength=n) / count
    joint_12 = np.zeros((n, n))
    conditional = 0.0  # H(y1, y2 | g) = H(g, y1, y2) - H(g)
    h_2_given_g = 0.0
    p_2 = np.zeros(n)
    for g in range(n):
        of_class = truth == g
        right1, right2 = before[of_class] == g, after[of_class] == g
        m1, m2 = p1.copy(), p2.copy()
        m1[g] = m2[g] = 0
        m1, m2 = m1 / m1.sum(), m2 / m2.sum()
        table = (~right1 & ~right2).mean() * np.outer(m1, m2)
        table[g, :] += (right1 & ~right2).mean() * m2
        table[:, g] += (~right1 & right2).mean() * m1
        table[g, g] = (right1 & right2).mean()
        weight = of_class.mean()
        joint_12 += weight * table
        conditional += weight * entropy(table)
        h_2_given_g += weight * entropy(table.sum(0))
        p_2 += weight * table.sum(0)
    loss = (entropy(joint_12) - entropy(p_2)) - (conditional - h_2_given_g)
    assert knowledge(*case).loss == pytest.approx(loss / math.log(n), abs=1e-9)


def entropy(p: npt.NDArray[np.float64]) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log(positive)).sum())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: knowledge([0], [0], [0], [0], [0], 1), "at least 2 classes"),
        (lambda: knowledge([], [], [], [0], [0], 2), "non-empty"),
        (lambda: knowledge([0.5], [0], [0], [0], [0], 2), "class numbers"),
        (lambda: knowledge([0, 1], [0], [0, 0], [0], [0], 2), "both times"),
        (lambda: knowledge([0, 1], [0, 1], [0, 0], [0], [0], 2), "before holds class 1"),
        (lambda: knowledge([0, 2], [0, 0], [0, 0], [0], [0], 2), "truth holds class 2"),
        (lambda: knowledge([0, 1], [0, 0], [0, 0], [0], [0, 7], 2), "raise n_classes"),
    ],
)
def test_undefined_cases_are_one_line_errors(wrong, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BudgetedError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)
