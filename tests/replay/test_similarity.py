"""Class similarity against loops over pairs of samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.replay.similarity import (
    ClassGradientForm,
    ClassGradientSimilarity,
    PairwiseSimilarity,
    start_at_mean,
)

Floats = npt.NDArray[np.float64]
DIMENSION, CLASSES, EMA = 9, 5, 0.1


def batches(seed: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor, npt.NDArray[np.int64]]]:
    """Batches with repeated classes, partial presence, and now and then a gradient of zeros."""
    generator = np.random.default_rng(seed)
    out = []
    for number in range(count):
        size = int(generator.integers(1, 12))
        values = generator.normal(size=(size, DIMENSION)).astype(np.float32) + 0.3
        if number % 3 == 0:
            values[int(generator.integers(size))] = 0.0
        present = generator.random(DIMENSION) < (0.0 if number % 5 == 4 else 0.7)
        out.append((torch.from_numpy(values), torch.from_numpy(present), generator.integers(0, CLASSES, size)))
    return out


def cosine(a: Floats, b: Floats) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_pairwise_is_one_step_towards_the_mean_cosine_of_each_pair_of_classes(seed: int, count: int) -> None:
    similarity = PairwiseSimilarity(CLASSES, EMA)
    expected = np.zeros((CLASSES, CLASSES))
    for values, present, labels in batches(seed, count):
        similarity.update(values, present, labels)
        rows = values.numpy().astype(np.float64)[:, present.numpy()]
        cosines: dict[tuple[int, int], list[float]] = {}
        for i in range(len(rows)):
            for j in range(i):
                if np.any(rows[i]) and np.any(rows[j]):
                    pair = (int(min(labels[i], labels[j])), int(max(labels[i], labels[j])))
                    cosines.setdefault(pair, []).append(cosine(rows[i], rows[j]))
        for (a, b), found in cosines.items():
            expected[a, b] += EMA * (np.mean(found) - expected[a, b])
            expected[b, a] = expected[a, b]
        assert np.allclose(similarity.matrix, expected, atol=1e-6)
        assert np.array_equal(similarity.matrix, similarity.matrix.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 8), st.sampled_from(["cosine", "unit", "published"]))
def test_class_gradients_average_per_class_and_batch(seed: int, count: int, form: ClassGradientForm) -> None:
    similarity = ClassGradientSimilarity(CLASSES, EMA, DIMENSION, form)
    gradients = np.zeros((CLASSES, DIMENSION))
    own, steps = np.zeros(CLASSES), np.zeros(CLASSES)
    for values, present, labels in batches(seed, count):
        before = similarity.matrix.astype(np.float64)
        update = similarity.update(values, present, labels)
        there = present.numpy()
        rows = values.numpy().astype(np.float64)[:, there]
        for label in set(labels.tolist()):
            mine = [row for row, y in zip(rows, labels, strict=True) if y == label and np.any(row)]
            if not mine:
                continue
            if np.any(gradients[label, there]):
                towards = np.mean([cosine(row, gradients[label, there]) for row in mine])
                own[label] += EMA * (towards - own[label])
            steps[label] += 1
            if form == "unit":
                mine = [row / np.linalg.norm(row) for row in mine]
            gradients[label, there] += EMA * (np.mean(mine, axis=0) - gradients[label, there])
        trust = 1 - (1 - EMA) ** steps
        expected = np.zeros((CLASSES, CLASSES))
        for a in range(CLASSES):
            for b in range(CLASSES):
                expected[a, b] = cosine(gradients[a], gradients[b])
                if form == "unit":
                    expected[a, b] = gradients[a] @ gradients[b]
                if form == "published":
                    expected[a, b] *= np.sqrt(max(own[a], 0) * max(own[b], 0)) * trust[a] * trust[b]
        assert np.allclose(similarity.matrix, expected, atol=2e-6)
        if update is not None:  # the reported change is the real one
            classes, change = update
            assert change is not None
            assert np.allclose(before[classes] + change, similarity.matrix[classes], atol=1e-7)
            untouched = np.setdiff1d(np.arange(CLASSES), classes)
            block = np.ix_(untouched, untouched)
            assert np.array_equal(before[block], similarity.matrix[block])


@pytest.mark.parametrize("values", [torch.zeros(3, 4), torch.full((3, 4), torch.nan), torch.ones(3, 4) * 1e38])
def test_gradients_without_a_direction_change_nothing(values: torch.Tensor) -> None:
    present, labels = torch.ones(4, dtype=torch.bool), np.array([0, 1, 1])
    for similarity in (PairwiseSimilarity(2, EMA), ClassGradientSimilarity(2, EMA, 4, "published")):
        similarity.update(torch.eye(4)[:3] + 1, present, labels)
        before = similarity.state()
        similarity.update(values, present, labels)
        for name, tensor in similarity.state().items():
            assert torch.equal(tensor, before[name])


def test_nothing_present_changes_nothing() -> None:
    similarity = PairwiseSimilarity(2, EMA)
    assert similarity.update(torch.ones(3, 4), torch.zeros(4, dtype=torch.bool), np.array([0, 1, 1])) is None
    assert not similarity.matrix.any()
    assert similarity.operations == 0


def test_a_new_class_can_start_at_the_mean() -> None:
    matrix = np.array([[0.5, 0.2, 0.1, 0], [0.2, 0.3, 0.3, 0], [0.1, 0.3, 0.7, 0], [0, 0, 0, 0]], np.float32)
    start_at_mean(matrix, 3, np.array([True, True, True, False]))
    assert matrix[3].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.5])
    assert matrix[:, 3].tolist() == matrix[3].tolist()


def test_unit_gradients_estimate_the_expected_cosine() -> None:
    """The definition of S: the mean cosine between independent samples of two classes."""
    generator = np.random.default_rng(0)
    centres = np.array([[2.0, 0, 0, 0], [1.0, 1.0, 0, 0]])

    def draw(label: int, count: int) -> Floats:
        return np.asarray(centres[label] + generator.normal(size=(count, 4)))

    similarity = ClassGradientSimilarity(2, 0.005, 4, "unit")
    present = torch.ones(4, dtype=torch.bool)
    labels = np.repeat([0, 1], 8)
    for _ in range(2500):
        rows = np.concatenate([draw(0, 8), draw(1, 8)]).astype(np.float32)
        similarity.update(torch.from_numpy(rows), present, labels)
    for a, b in ((0, 1), (0, 0), (1, 1)):
        left, right = draw(a, 40_000), draw(b, 40_000)
        mean = np.mean([cosine(x, y) for x, y in zip(left, right, strict=True)])
        assert similarity.matrix[a, b] == pytest.approx(mean, abs=0.02)
