"""Uniform and class-balanced draws against enumerated probabilities."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.replay import ClassBalanced, Column, Memory, Retrieval, Uniform, label_column

COLUMNS = (Column("pixels", (1,), torch.uint8), label_column(8))


def filled(labels: list[int]) -> Memory:
    memory = Memory(COLUMNS, max(1, len(labels)))
    memory.extend(torch.zeros((len(labels), 1), dtype=torch.uint8), np.array(labels, np.int64))
    return memory


def class_balanced_law(labels: list[int], count: int, young: int = 0) -> dict[tuple[int, ...], float]:
    """Probability of every ordered draw, by the definition."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for order in itertools.permutations(range(len(labels)), count):
        probability, left = 1.0, set(range(len(labels)))
        for slot in order:
            chances = {labels[other]: min(1.0, labels.count(labels[other]) / max(1, young)) for other in left}
            probability *= chances[labels[slot]] / sum(chances.values())
            probability /= sum(labels[other] == labels[slot] for other in left)
            left.remove(slot)
        law[order] = probability
    return law


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 7), max_size=40),
    st.integers(1, 30),
    st.integers(0, 2**32),
    st.sampled_from([Uniform, ClassBalanced]),
)
def test_draws_are_different_slots_of_the_memory(
    labels: list[int], batch_size: int, seed: int, policy: type[Uniform] | type[ClassBalanced]
) -> None:
    memory = filled(labels)
    slots = policy().draw(memory, batch_size, np.random.default_rng(seed))
    assert slots.dtype == np.int64
    assert len(set(slots.tolist())) == len(slots) == min(batch_size, len(labels))
    assert set(slots.tolist()) <= set(range(len(labels)))


def test_uniform_draws_every_ordered_triple_alike() -> None:
    memory, generator, policy = filled([0, 0, 0, 1, 1]), np.random.default_rng(0), Uniform()
    outcomes = Counter(tuple(policy.draw(memory, 3, generator).tolist()) for _ in range(12000))
    assert len(outcomes) == 60
    assert scipy.stats.chisquare(list(outcomes.values())).pvalue > 1e-3


def test_uniform_covers_a_large_memory() -> None:
    memory, generator = filled([0] * 200_000), np.random.default_rng(1)
    drawn = np.concatenate([Uniform().draw(memory, 256, generator) for _ in range(100)])
    assert scipy.stats.kstest(drawn / len(memory), "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    ("labels", "count", "young"),
    [([0, 0, 0, 2, 5, 5], 2, 0), ([0, 0, 0, 1, 1], 4, 0), ([0, 0, 0, 2, 5, 5], 2, 3), ([0, 0, 0, 1, 1], 4, 8)],
)
def test_class_balanced_follows_its_law_also_when_classes_run_out(labels: list[int], count: int, young: int) -> None:
    memory, generator, policy = filled(labels), np.random.default_rng(2), ClassBalanced(young)
    draws = 20_000
    outcomes = Counter(tuple(policy.draw(memory, count, generator).tolist()) for _ in range(draws))
    law = class_balanced_law(labels, count, young)
    assert sum(law.values()) == pytest.approx(1.0)
    expected = np.array(list(law.values())) * draws
    observed = np.array([outcomes[order] for order in law])
    assert observed.sum() == draws
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("policy", [Uniform(), ClassBalanced()])
def test_stateless_policies_keep_no_bytes_and_cost_a_batch(policy: Retrieval) -> None:
    memory = filled([0, 1, 2, 3] * 10)
    memory.watch(policy)
    policy.draw(memory, 16, np.random.default_rng(3))
    policy.observe(torch.ones(16, 3), torch.ones(3, dtype=torch.bool), torch.zeros(16, dtype=torch.int64))
    assert policy.nbytes() == policy.index_nbytes() == 0
    assert policy.state() == {}
    assert not policy.wants_gradients
    assert 16 <= policy.price() < 200
