"""Which samples stay: reservoir and balancing against their definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.replay import Column, GreedyBalanced, Memory, Reservoir, Selection, Unlimited, label_column

COLUMNS = (Column("pixels", (1,), torch.uint8), label_column(8))


def arrive(memory: Memory, selection: Selection, number: int, label: int, generator: np.random.Generator) -> int | None:
    slot = selection.select(memory, label, generator)
    if slot is not None:
        memory.put(slot, torch.tensor([number], dtype=torch.uint8), label)
    return slot


def held(memory: Memory) -> list[int]:
    numbers: list[int] = memory.gather(np.arange(len(memory))).samples[:, 0].tolist()
    return numbers


def test_reservoir_keeps_every_subset_equally_often() -> None:
    generator = np.random.default_rng(1)
    outcomes: Counter[tuple[int, ...]] = Counter()
    for _ in range(4000):
        memory, selection = Memory(COLUMNS, 2), Reservoir()
        for number in range(6):
            arrive(memory, selection, number, 0, generator)
        outcomes[tuple(sorted(held(memory)))] += 1
    assert len(outcomes) == 15
    assert scipy.stats.chisquare(list(outcomes.values())).pvalue > 1e-3


def test_reservoir_stays_uniform_after_giving_slots_up() -> None:
    generator = np.random.default_rng(2)
    outcomes: Counter[int] = Counter()
    for _ in range(3000):
        memory, selection = Memory(COLUMNS, 3), Reservoir()
        for number in range(8):
            if number == 5:
                memory.shrink(2, selection.give_up(memory, 1, generator))
            arrive(memory, selection, number, 0, generator)
        outcomes.update(held(memory))
    assert scipy.stats.chisquare([outcomes[number] for number in range(8)]).pvalue > 1e-3


def test_reservoir_continues_where_it_was_saved() -> None:
    generator = np.random.default_rng(3)
    memory, first = Memory(COLUMNS, 2), Reservoir()
    for number in range(50):
        arrive(memory, first, number, 0, generator)
    second = Reservoir()
    second.load_state(first.state())
    assert second.seen == 50


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 7), max_size=80), st.integers(1, 12), st.integers(0, 2**32))
def test_balancing_stores_every_newcomer_at_the_cost_of_the_largest_class(
    labels: list[int], capacity: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    memory, selection = Memory(COLUMNS, capacity), GreedyBalanced()
    for number, label in enumerate(labels):
        before = Counter(memory.labels.tolist())
        was_full = memory.full
        slot = arrive(memory, selection, number, label, generator)
        assert slot is not None
        assert memory.labels[slot] == label
        assert held(memory)[slot] == number
        if was_full:
            after_adding = before + Counter([label])
            gone = after_adding - Counter(memory.labels.tolist())
            stored = [y for y in range(8) if before[y]]
            largest = max(after_adding[y] for y in stored)
            assert gone == Counter([next(y for y in stored if after_adding[y] == largest)])


def test_balancing_evicts_any_member_of_the_largest_class_alike() -> None:
    generator = np.random.default_rng(4)
    memory, selection = Memory(COLUMNS, 6), GreedyBalanced()
    for number, label in enumerate([3, 3, 3, 3, 1, 2]):
        arrive(memory, selection, number, label, generator)
    outcomes = Counter(selection.select(memory, 1, generator) for _ in range(2000))
    assert set(outcomes) == {0, 1, 2, 3}
    assert scipy.stats.chisquare(list(outcomes.values())).pvalue > 1e-3


def test_balancing_gives_up_from_the_largest_classes() -> None:
    generator = np.random.default_rng(5)
    memory, selection = Memory(COLUMNS, 12), GreedyBalanced()
    for number, label in enumerate([0] * 7 + [1] * 4 + [2]):
        arrive(memory, selection, number, label, generator)
    leaving = selection.give_up(memory, 6, generator)
    assert len(set(leaving.tolist())) == 6
    memory.shrink(6, leaving)
    assert memory.counts.tolist() == [2, 3, 1]  # of two classes equally large the lower label gives first
    assert selection.give_up(memory, 0, generator).size == 0


def test_unlimited_stores_everything_and_refuses_a_limit() -> None:
    generator = np.random.default_rng(6)
    memory, selection = Memory(COLUMNS, None), Unlimited()
    for number in range(20):
        assert arrive(memory, selection, number, number % 8, generator) == number
    limited = Memory(COLUMNS, 1)
    arrive(limited, selection, 0, 0, generator)
    with pytest.raises(BudgetedError, match="capacity None"):
        selection.select(limited, 0, generator)
    with pytest.raises(BudgetedError, match="another one"):
        selection.give_up(limited, 1, generator)


@pytest.mark.parametrize("selection", [Reservoir(), GreedyBalanced()])
def test_same_generator_same_memory(selection: Selection) -> None:
    contents = []
    for _ in range(2):
        selection.load_state({"seen": torch.tensor(0)})
        generator = np.random.default_rng(7)
        memory = Memory(COLUMNS, 5)
        for number in range(60):
            arrive(memory, selection, number, number * 5 % 8, generator)
        contents.append(held(memory))
    assert contents[0] == contents[1]
