"""Both ways of drawing against the enumerated law of drawing one after another without replacement."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
import torch

from budgeted.replay import Column, Memory, label_column
from budgeted.replay.bands import Bands
from budgeted.replay.softmin import Scores, draw_by_pass, draw_by_proposals

Floats = npt.NDArray[np.float64]

LABELS = np.array([0, 0, 1, 1, 1, 3])
STORED = np.array([0.0, 0.4, 0.1, 1.3, 2.2, 0.7], np.float32)
SCORES = {
    "gentle": Scores(np.array([0.1, 0.3, 0.0, 0.2]), np.array([1.0, 0.7, 1.0, 0.5]), False, 0.8),
    "steep": Scores(np.zeros(4), np.ones(4), False, 0.25),
    "clamped": Scores(np.array([-0.4, 0.3, 0.0, -2.0]), np.array([1.0, 0.7, 1.0, 0.5]), True, 0.5),
    "one far below": Scores(np.array([0.0, 0.5, 0.0, -500.0]), np.array([1.0, 0.7, 1.0, 0.0]), False, 0.6),
    "hardly any slope": Scores(np.array([0.0, 0.5, 0.0, 0.2]), np.full(4, 0.01), True, 1.0),
    # The least score of class 1 promises much more than its slots hold, and class 3 runs out at once.
    "misleading": Scores(np.array([0.0, -600, 0, -500]), np.array([1.25, 6000, 1, 0]), False, 1.0),
}
ENDLESS = 10**9
CASES = [  # scores, width of a band, slots with their own clocks, proposals
    *itertools.product(["gentle", "clamped", "one far below"], [0.5], [0, 2], [3, ENDLESS]),
    ("steep", 100.0, 0, ENDLESS),
    ("steep", 100.0, 2, ENDLESS),
    ("steep", 100.0, 2, 9),
    ("one far below", 100.0, 0, ENDLESS),
    ("hardly any slope", 100.0, 0, ENDLESS),
    ("misleading", 100.0, 3, ENDLESS),
    ("misleading", 100.0, 0, 30),
    ("gentle", 0.5, 6, 0),
]
COUNT = 3
DRAWS = 5_000


def sequential_law(scores: Scores) -> dict[tuple[int, ...], float]:
    """Probability of every ordered draw of COUNT slots: each next one by softmax among those left."""
    score = scores.offset[LABELS] + scores.slope[LABELS] * STORED.astype(np.float64)
    if scores.clamp:
        score = np.maximum(score, 0.0)
    law = {}
    for order in itertools.permutations(range(LABELS.size), COUNT):
        probability, left = 1.0, list(range(LABELS.size))
        for slot in order:
            energy = -score[left] / scores.temperature
            weight = np.exp(energy - energy.max())
            probability *= weight[left.index(slot)] / weight.sum()
            left.remove(slot)
        law[order] = float(probability)
    return law


def small_memory() -> Memory:
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(4)), 6)
    memory.extend(torch.zeros((6, 1), dtype=torch.uint8), LABELS)
    return memory


def assert_law(outcomes: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> None:
    """Chi-square over all ordered outcomes, those expected fewer than five times taken together."""
    probability = np.array(list(law.values()))
    observed = np.array([outcomes[order] for order in law], float)
    assert probability.sum() == pytest.approx(1.0)
    assert observed.sum() == DRAWS
    rare = probability * DRAWS < 5
    expected = np.append(probability[~rare], probability[rare].sum()) * DRAWS
    observed = np.append(observed[~rare], observed[rare].sum())
    if expected[-1] < 5:
        assert observed[-1] < 25
        expected, observed = expected[:-1], observed[:-1]
        expected *= observed.sum() / expected.sum()
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("name", SCORES)
def test_one_pass_follows_the_law(name: str) -> None:
    generator, scores = np.random.default_rng(0), SCORES[name]
    outcomes: Counter[tuple[int, ...]] = Counter()
    for _ in range(DRAWS):
        drawn: dict[int, None] = {}
        draw_by_pass(scores, LABELS, STORED, drawn, COUNT, generator)
        outcomes[tuple(drawn)] += 1
    assert_law(outcomes, sequential_law(scores))


@pytest.mark.parametrize(("name", "width", "direct", "patience"), CASES)
def test_proposals_follow_the_law_alone_and_with_a_pass_for_the_rest(
    name: str, width: float, direct: int, patience: int
) -> None:
    generator, scores = np.random.default_rng(1), SCORES[name]
    bands = Bands.over(small_memory(), STORED, width)
    assert bands.counts.shape == (4, 1 if width > 3 else 9)
    outcomes: Counter[tuple[int, ...]] = Counter()
    completed = 0
    for _ in range(DRAWS):
        drawn: dict[int, None] = {}
        draw_by_proposals(scores, bands, STORED, drawn, COUNT, direct, patience, generator)
        if len(drawn) < COUNT:
            completed += 1
            draw_by_pass(scores, LABELS, STORED, drawn, COUNT, generator)
        outcomes[tuple(drawn)] += 1
    assert (completed == 0) == (patience == ENDLESS or direct == LABELS.size)
    assert_law(outcomes, sequential_law(scores))


def test_every_slot_can_be_drawn_whatever_the_spread_of_scores() -> None:
    """Energies apart by more than any float's exponent: nothing underflows into never being drawn."""
    scores = Scores(np.array([0.0, 1e5, 0.0, 3e6]), np.array([4e5, 9e5, 1.0, 1.0]), False, 1e-3)
    energy = (scores.offset[LABELS] + scores.slope[LABELS] * STORED) / scores.temperature
    for direct, patience in ((0, 0), (0, 100), (2, 20_000), (6, 0)):
        drawn: dict[int, None] = {}
        generator = np.random.default_rng(2)
        bands = Bands.over(small_memory(), STORED, 0.5)
        draw_by_proposals(scores, bands, STORED, drawn, 6, direct, patience, generator)
        draw_by_pass(scores, LABELS, STORED, drawn, 6, generator)
        assert list(drawn) == np.argsort(energy).tolist()


def test_bands_hold_every_slot_at_or_above_their_edge_through_uses_and_changes() -> None:
    generator = np.random.default_rng(3)
    frequency = Column("frequency", (), torch.float32, host=True)
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(6), frequency), 300)
    memory.extend(
        torch.zeros((300, 1), dtype=torch.uint8),
        generator.integers(0, 6, 300),
        frequency=torch.from_numpy((generator.random(300) * 3).astype(np.float32) + 1),
    )
    stored = memory.host("frequency")
    bands = Bands.over(memory, stored, 0.25)
    for _ in range(200):
        slots = generator.choice(300, 8, replace=False)
        before = stored[slots].copy()
        stored[slots] += np.float32(0.9)
        bands.move(memory.labels[slots].astype(np.int64), slots, before, stored[slots])
        leaving = int(generator.integers(300))
        bands.remove(int(memory.labels[leaving]), leaving, stored[leaving])
        memory.put(leaving, torch.zeros(1, dtype=torch.uint8), int(generator.integers(6)))
        bands.add(int(memory.labels[leaving]), leaving)
    classes, number = bands.counts.shape
    assert bands.counts.sum() == 300
    found = []
    for label, band in itertools.product(range(classes), range(number)):
        count = int(bands.counts[label, band])
        slots = bands.pick(np.full(count, label * number + band), np.arange(count))
        found += slots.tolist()
        assert (memory.labels[slots] == label).all()
        assert (stored[slots] >= bands.edges[band]).all()
        if band + 1 < number:
            assert (stored[slots] < bands.edges[band + 1]).all()
    assert sorted(found) == list(range(300))
