"""The memory against a plain list of what it should hold, and its bytes against the tensors it owns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.replay import Column, Memory, bytes_per_slot, label_column, slots_for

PIXELS = Column("pixels", (3, 2, 2), torch.uint8)
LOGITS = Column("logits", (5,), torch.float32)
FREQUENCY = Column("frequency", (), torch.float32, host=True)
COLUMNS = (PIXELS, label_column(5), LOGITS, FREQUENCY)


@dataclass
class Model:
    """What the memory must hold, the slow way: one (sample, label, logits) per slot."""

    slots: list[tuple[int, int, float]] = field(default_factory=list)

    def evict(self, slot: int) -> None:
        last = self.slots.pop()
        if slot < len(self.slots):
            self.slots[slot] = last


def sample(value: int) -> torch.Tensor:
    return torch.full(PIXELS.shape, value, dtype=torch.uint8)


def logits(value: float) -> torch.Tensor:
    return torch.full(LOGITS.shape, float(value))


def assert_same(memory: Memory, model: Model) -> None:
    assert len(memory) == len(model.slots)
    batch = memory.gather(np.arange(len(memory)))
    assert batch.samples.shape == (len(memory), *PIXELS.shape)
    assert batch.samples[:, 2, 1, 1].tolist() == [value for value, _, _ in model.slots]
    assert batch.labels.tolist() == memory.labels.tolist() == [label for _, label, _ in model.slots]
    assert batch.columns["logits"][:, 4].tolist() == [logit for _, _, logit in model.slots]
    for label in range(memory.counts.size):
        expected = {slot for slot, (_, y, _) in enumerate(model.slots) if y == label}
        members = memory.membership.members(label).tolist()
        assert set(members) == expected
        assert len(members) == len(expected) == memory.counts[label]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 4), st.integers(0, 255)),
        st.tuples(st.just("replace"), st.integers(0, 4), st.integers(0, 255)),
        st.tuples(st.just("evict"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("extend"), st.integers(0, 4), st.integers(0, 12)),
        st.tuples(st.just("shrink"), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("reload"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(operations, st.sampled_from([None, 3, 17]))
def test_any_sequence_of_changes_leaves_what_a_list_would_hold(
    sequence: list[tuple[str, int, int]], capacity: int | None
) -> None:
    memory, model = Memory(COLUMNS, capacity), Model()
    for number, (kind, a, b) in enumerate(sequence):
        if kind == "append" and not memory.full:
            memory.put(len(memory), sample(b), a, logits=logits(number))
            model.slots.append((b, a, float(number)))
        elif kind == "replace" and model.slots:
            slot = b % len(model.slots)
            memory.put(slot, sample(b), a)
            model.slots[slot] = (b, a, 0.0)
        elif kind == "evict" and model.slots:
            memory.evict(a % len(model.slots))
            model.evict(a % len(model.slots))
        elif kind == "extend" and (memory.capacity is None or len(memory) + b <= memory.capacity):
            labels = np.array([(a + i) % 5 for i in range(b)], np.int64)
            pixels = torch.stack([sample(i) for i in range(b)]) if b else torch.zeros((0, 3, 2, 2))
            memory.extend(pixels, labels)
            model.slots += [(i, int(labels[i]), 0.0) for i in range(b)]
        elif kind == "shrink" and memory.capacity is not None and memory.capacity - a >= 1:
            target = memory.capacity - a
            leaving = list(range(0, len(memory), 2))[: max(0, len(memory) - target)]
            leaving += [s for s in range(len(memory)) if s not in leaving][
                : max(0, len(memory) - target - len(leaving))
            ]
            memory.shrink(target, leaving)
            for slot in sorted(leaving, reverse=True):
                model.evict(slot)
            assert memory.nbytes() == target * bytes_per_slot(COLUMNS)
        elif kind == "reload":
            stored = safetensors.torch.load(safetensors.torch.save(memory.state()))
            again = Memory(COLUMNS, 1)
            again.load_state(stored)
            assert again.capacity == memory.capacity
            for label in range(memory.counts.size):
                assert np.array_equal(again.membership.members(label), memory.membership.members(label))
            memory = again
        assert_same(memory, model)


def test_bytes_are_those_of_the_tensors_behind_every_slot() -> None:
    memory = Memory(COLUMNS, 7)
    assert bytes_per_slot(COLUMNS) == 12 + 1 + 20 + 4
    assert bytes_per_slot(COLUMNS, "paper") == 12 + 20 + 4
    storage = [tensor.untyped_storage().nbytes() for tensor in memory._storage.tensors.values()]
    assert memory.nbytes() == sum(storage) == 7 * 37
    assert memory.nbytes("paper") == 7 * 36
    assert memory.index_nbytes() > 0


def test_unlimited_memory_reports_the_slots_in_use() -> None:
    memory = Memory(COLUMNS, None)
    for value in range(3000):
        memory.put(value, sample(value % 256), value % 5)
    assert memory.nbytes() == 3000 * 37
    assert not memory.full
    assert memory.allocated >= 3000
    assert memory.gather(np.array([2999])).samples[0, 0, 0, 0] == 2999 % 256
    assert memory.counts.tolist() == [600] * 5


@pytest.mark.parametrize(
    ("extra", "spent_elsewhere", "slots"),
    [
        ((), 0, 2000),  # ER
        ((Column("logits", (10,)),), 0, 1974),  # DER
        ((FREQUENCY,), 400 + 128, 1997),  # aL-SAR: class similarity, and a Fisher trace for each of 32 layers
    ],
)
def test_slots_of_the_papers_cifar10_table(extra: tuple[Column, ...], spent_elsewhere: int, slots: int) -> None:
    columns = (Column("pixels", (3, 32, 32), torch.uint8), label_column(10), *extra)
    assert slots_for(2000 * 3072 - spent_elsewhere, columns, "paper") == slots
    assert slots_for(2000 * 3072 - spent_elsewhere, columns) < slots


@pytest.mark.parametrize(
    ("classes", "dtype"),
    [
        (2, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (2**15, torch.int16),
        (2**15 + 1, torch.int32),
        (None, torch.int32),
    ],
)
def test_labels_take_the_fewest_bytes_that_tell_the_classes_apart(classes: int | None, dtype: torch.dtype) -> None:
    memory = Memory((PIXELS, label_column(classes)), 2)
    assert label_column(classes).dtype == dtype
    top = (classes or 2**31) - 1
    if top <= 2**15:
        memory.put(0, sample(1), top)
        assert memory.gather(np.array([0])).labels.item() == top


def test_a_label_beyond_the_declared_classes_is_refused() -> None:
    memory = Memory((PIXELS, label_column(256)), 2)
    with pytest.raises(BudgetedError, match="declare more classes"):
        memory.put(0, sample(1), 256)
    with pytest.raises(BudgetedError, match="declare more classes"):
        memory.put(0, sample(1), -1)
    assert len(memory) == 0


@pytest.mark.parametrize(
    ("value", "columns", "message"),
    [
        (torch.zeros(PIXELS.shape), {}, "convert it"),
        (torch.zeros((3, 2, 3), dtype=torch.uint8), {}, "convert it"),
        (sample(0), {"logits": torch.zeros(4)}, "convert it"),
        (sample(0), {"codes": torch.zeros(4)}, "no column 'codes'"),
    ],
)
def test_what_does_not_fit_a_column_is_refused(
    value: torch.Tensor, columns: dict[str, torch.Tensor], message: str
) -> None:
    memory = Memory(COLUMNS, 2)
    with pytest.raises(BudgetedError, match=message):
        memory.put(0, value, 1, **columns)
    assert len(memory) == 0


def test_impossible_memories_are_refused() -> None:
    with pytest.raises(BudgetedError, match="raise the byte budget"):
        slots_for(10, COLUMNS)
    with pytest.raises(BudgetedError, match="at least one slot"):
        Memory(COLUMNS, 0)
    with pytest.raises(BudgetedError, match="'label' column"):
        Memory((PIXELS,), 3)
    memory = Memory(COLUMNS, 3)
    for slot in range(3):
        memory.put(slot, sample(0), 0)
    with pytest.raises(BudgetedError, match="enough samples"):
        memory.shrink(2)
    with pytest.raises(BudgetedError, match="limited memory"):
        Memory(COLUMNS, None).shrink(1)
    with pytest.raises(IndexError):
        memory.put(3, sample(0), 0)


def test_a_saved_memory_with_other_columns_is_refused() -> None:
    saved = Memory(COLUMNS, 3).state()
    with pytest.raises(BudgetedError, match="columns it was saved with"):
        Memory((PIXELS, label_column(5), Column("logits", (6,))), 3).load_state(saved)


def test_written_columns_are_gathered() -> None:
    memory = Memory(COLUMNS, 4)
    for slot in range(4):
        memory.put(slot, sample(slot), slot)
    memory.write("logits", np.array([3, 1]), torch.tensor([[3.0] * 5, [1.0] * 5]))
    assert memory.gather(np.array([0, 1, 3])).columns["logits"][:, 0].tolist() == [0.0, 1.0, 3.0]


def test_the_index_stays_small_under_long_churn() -> None:
    generator = np.random.default_rng(0)
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(50)), 200)
    grey = torch.zeros(1, dtype=torch.uint8)
    for arrival in range(5000):  # classes come and go, so that every one has been large once
        memory.put(arrival % 200, grey, (arrival // 100 + int(generator.integers(3))) % 50)
    assert memory.counts.sum() == 200
    assert memory.index_nbytes() < 16 * 200 + 50 * (3 * 8 + 4 * 16) + 200
