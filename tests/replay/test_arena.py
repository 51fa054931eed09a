"""The arena of codes against a dictionary of them: contents, bytes, and no room that is lost for good."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.replay.arena import AlikeArena, Arena, place_columns

SLOTS = 40


def code(length: int, value: int) -> np.ndarray:
    return ((np.arange(length) * 7 + value) % 256).astype(np.uint8)


def assert_holds(arena: Arena, model: dict[int, np.ndarray]) -> None:
    read = arena.read(np.arange(SLOTS))
    for slot in range(SLOTS):
        assert np.array_equal(read[slot].numpy(), model.get(slot, np.empty(0, np.uint8)))
    assert arena.live == sum(each.size for each in model.values())


operations = st.lists(
    st.tuples(st.sampled_from(["write", "clear", "move", "reload"]), st.integers(0, SLOTS - 1), st.integers(0, 3000)),
    min_size=25,
    max_size=60,
)


@settings(max_examples=80, deadline=None)
@given(operations)
def test_any_sequence_of_changes_leaves_what_a_dictionary_would_hold(sequence: list[tuple[str, int, int]]) -> None:
    arena, model = Arena(), dict[int, np.ndarray]()
    arena.ensure_slots(SLOTS)
    for kind, slot, number in sequence:
        if kind == "write":
            arena.write(slot, code(number, slot))
            model[slot] = code(number, slot)
        elif kind == "clear":
            arena.clear(slot)
            model.pop(slot, None)
        elif kind == "move" and number % SLOTS not in model and slot in model:
            arena.move(slot, number % SLOTS)
            model[number % SLOTS] = model.pop(slot)
        elif kind == "reload":
            again = Arena()
            again.ensure_slots(SLOTS)
            again.load_state({name: tensor.clone() for name, tensor in arena.state(SLOTS).items()})
            arena = again
        assert_holds(arena, model)
        assert 0 <= arena.slack <= arena.live // 4 + 8192


def test_a_hundred_thousand_changes_leak_nothing() -> None:
    generator = np.random.default_rng(1)
    arena, model = Arena(limit=10**6), dict[int, np.ndarray]()
    arena.ensure_slots(SLOTS)
    pool = generator.integers(0, 256, 20_000, dtype=np.uint8)
    slots, kinds = generator.integers(SLOTS, size=100_000).tolist(), generator.random(100_000).tolist()
    lengths = generator.integers(8000, size=100_000).tolist()
    most = 0
    for number, (slot, kind, length) in enumerate(zip(slots, kinds, lengths, strict=True)):
        if kind < 0.1:
            arena.clear(slot)
            model.pop(slot, None)
        else:
            model[slot] = pool[length : length + length // (1 + number // 10_000)]  # the codes become shorter
            arena.write(slot, model[slot])
        assert arena.slack <= arena.live // 4 + 8192
        most = max(most, arena.live + arena.slack)
    assert_holds(arena, model)
    assert most < 1.3 * SLOTS * 8000
    assert arena.live + arena.slack < 1.25 * arena.live + 8193  # room that shorter codes left was given back


def test_runs_longer_than_a_piece_move_whole() -> None:
    arena, model = Arena(), dict[int, np.ndarray]()
    arena.ensure_slots(SLOTS)
    for slot in range(4):
        model[slot] = code(1_300_000, slot)
        arena.write(slot, model[slot])
    arena.write(0, code(10, 9))
    model[0] = code(10, 9)
    for slot in (4, 5):
        model[slot] = code(700_000, slot)
        arena.write(slot, model[slot])
    assert_holds(arena, model)


@pytest.mark.parametrize(("limit", "nbytes"), [(1000, 8), (2**30, 8), (2**30 + 1, 12), (None, 12)])
def test_places_take_the_bytes_that_they_are_counted_with(limit: int | None, nbytes: int) -> None:
    arena = Arena(limit)
    arena.ensure_slots(5)
    assert arena._starts.nbytes + arena.lengths.nbytes == 5 * nbytes
    assert sum(column.nbytes for column in place_columns(limit)) == nbytes


def test_an_arena_of_codes_alike_keeps_one_and_all_lengths() -> None:
    arena, real = AlikeArena(), Arena()
    for each in (arena, real):
        each.ensure_slots(SLOTS)
        for slot in range(20):
            each.write(slot, code(100 + slot, slot))
        each.clear(3)
        each.move(19, 3)
    assert arena.live == real.live
    assert arena.lengths.tolist() == real.lengths.tolist()
    assert arena._buffer.size == 119
    assert all(np.array_equal(each.numpy(), code(119, 19)) for each in arena.read(np.arange(20)))
    for saved in (arena.state(19), real.state(19)):
        again = AlikeArena()
        again.load_state(saved)
        assert again.live == real.live
        assert torch.equal(
            again.read(np.array([0]))[0], real.read(np.array([18 if saved["codes"].numel() > 119 else 3]))[0]
        )
