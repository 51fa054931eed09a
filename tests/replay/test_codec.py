"""Codecs in the memory: against a dictionary of what it should hold, and against the memory before there were any."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_sample_image
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay import (
    CODECS,
    SELECTIONS,
    ClassBalanced,
    Codec,
    Column,
    GreedyBalanced,
    Memory,
    Raw,
    Reservoir,
    SARSettings,
    SimilarityAware,
    Unlimited,
    bytes_per_slot,
    label_column,
    shrink_to,
    store,
)
from budgeted.replay.sar import Effort
from tests.replay.codecs import LENGTH, SAMPLE, Nearest, Shared, Trimmed, sample, slots

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
COLUMNS = (SAMPLE, label_column(5), Column("logits", (3,)))
PER_SLOT = 2 + 4 + 4 + 1 + 12  # zeros, start, length, label, logits
LIMIT = 900


class Model:
    """What the memory must hold, the slow way; it hears what every watcher hears."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[Tensor, int]] = {}
        self.coming: tuple[Tensor, int] = (torch.empty(0), 0)
        self.in_bulk = False

    def evicting(self, memory: Memory, slot: int) -> None:
        del self.held[slot]
        if self.in_bulk and slot < len(self.held):
            self.held[slot] = self.held.pop(len(self.held))

    def stored(self, memory: Memory, slot: int) -> None:
        self.held[slot] = self.coming

    def moved(self, memory: Memory, old: int, new: int) -> None:
        assert new not in self.held
        self.held[new] = self.held.pop(old)

    def adopt(self, memory: Memory) -> None:
        assert sorted(self.held) == [*range(len(memory))]

    @property
    def nbytes(self) -> int:
        return sum(PER_SLOT + int(each.count_nonzero()) for each, _ in self.held.values())


def assert_same(memory: Memory, model: Model) -> None:
    assert sorted(model.held) == [*range(len(memory))]
    batch = memory.gather(np.arange(len(memory)))
    for slot, (each, label) in model.held.items():
        assert torch.equal(batch.samples[slot], each)
        assert batch.labels[slot] == memory.labels[slot] == label
        assert slot in memory.membership.members(label)
        assert memory.lengths[slot] == each.count_nonzero()
    assert int(memory.counts.sum()) == len(memory)
    assert memory.nbytes() == model.nbytes
    assert memory.nbytes("paper") == model.nbytes - len(memory)
    assert memory.limit is not None
    assert memory.nbytes() <= memory.limit


operations = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "put", "evict", "evict many", "shrink", "rewrite", "reload"]),
        st.integers(0, LENGTH),
        st.integers(0, 254),
    ),
    min_size=25,
    max_size=60,
)


@settings(max_examples=50, deadline=None)
@given(operations, st.sampled_from([GreedyBalanced, Reservoir]), st.integers(0, 2**32))
def test_any_sequence_of_changes_leaves_what_a_dictionary_would_hold(
    sequence: list[tuple[str, int, int]], kind: type[GreedyBalanced | Reservoir], seed: int
) -> None:
    memory, model, selection = Memory(COLUMNS, limit=LIMIT, codec=Trimmed()), Model(), kind()
    memory.watch(model)
    generator = np.random.default_rng(seed)
    for what, a, b in sequence:
        each, label = sample(a, b), b % 5
        model.coming = (each, label)
        if what == "store":
            slot = store(memory, selection, each, label, generator)
            assert slot is None or torch.equal(memory.gather(slots(slot)).samples[0], each)
        elif what == "put":
            slot = b % (len(memory) + 1)
            before = model.nbytes - (0 if slot == len(memory) else int(memory.lengths[slot]) + PER_SLOT)
            if before + PER_SLOT + a <= (memory.limit or 0):
                memory.put(slot, each, label)
            else:
                with pytest.raises(BudgetedError, match="evict samples first"):
                    memory.put(slot, each, label)
        elif what == "evict" and len(memory):
            memory.evict(b % len(memory))
        elif what in ("evict many", "shrink"):
            model.in_bulk = True
            if what == "shrink":
                shrink_to(memory, selection, max(PER_SLOT, (memory.limit or 0) - a), generator)
            else:
                memory.evict(range(0, len(memory), 2 + a))
            model.in_bulk = False
        elif what == "rewrite" and len(memory):
            slot = b % len(memory)
            shorter = sample(int(memory.lengths[slot]) * a // LENGTH, b)
            memory.rewrite(slot, memory.codec.encode(shorter))
            model.held[slot] = (shorter, model.held[slot][1])
        elif what == "reload":
            stored = safetensors.torch.load(safetensors.torch.save(memory.state()))
            again = Memory(COLUMNS, limit=LIMIT * 2, codec=Trimmed())
            again.load_state(stored)
            assert again.limit == memory.limit
            for label in range(memory.counts.size):
                assert np.array_equal(again.membership.members(label), memory.membership.members(label))
            again.watch(model)
            memory = again
        assert_same(memory, model)


def test_a_memory_of_codes_leaks_nothing_and_stays_full() -> None:
    generator = np.random.default_rng(3)
    memory, selection = Memory((SAMPLE, label_column(5)), limit=20_000, codec=Trimmed()), GreedyBalanced()
    lengths = generator.integers(LENGTH + 1, size=10_000).tolist()
    for number, length in enumerate(lengths):
        store(memory, selection, sample(length // 2 + (20 if number < 5_000 else 0), number), number % 5, generator)
        assert memory.nbytes() <= 20_000
        if number > 1000:
            assert memory.nbytes() > 20_000 - 2 * (11 + LENGTH)  # what one that is large leaves to one that is small
    # the index by class, gaps of the arena and rows that were once in use: bounded by what was stored at most
    assert memory.index_nbytes() < 20_000 // 4 + 8192 + 2000 * (11 + 16)


def digest(name: str, capacity: int | None) -> str:
    columns = (Column("pixels", (3, 2, 2), torch.uint8), label_column(7), Column("logits", (5,)))
    memory, selection, retrieval = Memory(columns, capacity), SELECTIONS[name].made({}), ClassBalanced()
    generator = np.random.default_rng(5)
    found = hashlib.sha256()

    def take(tensors: Mapping[str, Tensor]) -> None:
        for key in sorted(tensors):
            found.update(key.encode() + tensors[key].numpy().tobytes())

    for number in range(400):
        label = int(generator.integers(7))
        pixels = torch.from_numpy(generator.integers(0, 256, (3, 2, 2), dtype=np.uint8))
        slot = store(memory, selection, pixels, label, generator)
        if slot is not None:
            memory.write("logits", slots(slot), torch.full((1, 5), float(number)))
        batch = memory.gather(retrieval.draw(memory, 8, generator))
        take({"samples": batch.samples, "labels": batch.labels, **batch.columns})
        if number == 250 and capacity is not None:
            memory.shrink(capacity - 9, selection.give_up(memory, 9, generator))
    if capacity is None:
        memory.extend(torch.ones(5, 3, 2, 2, dtype=torch.uint8), np.arange(5), logits=torch.ones(5, 5))
    take(memory.state())
    take(selection.state())
    found.update(str([memory.nbytes(), memory.nbytes("paper"), memory.index_nbytes()]).encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "capacity", "expected"),
    [
        ("reservoir", 60, "f5289a26110027cf"),
        ("greedy-balanced", 60, "3b8de303a7d2caba"),
        ("greedy-quota", 60, "351e41b115d69b6e"),
        ("unlimited", None, "90622e9e45ab898d"),
    ],
)
def test_raw_is_the_memory_that_there_was_before_codecs(name: str, capacity: int | None, expected: str) -> None:
    """Digests of the same walk with `select` and `put`, by the memory at commit 9c8fd63."""
    assert digest(name, capacity) == expected


def test_a_sample_of_several_tensors_comes_back_as_one() -> None:
    columns = (Column("picture", (2, 2), torch.uint8), Column("words", (3,), torch.int32), label_column(4))
    memory = Memory(columns, 3)
    assert bytes_per_slot(memory.columns) == 4 + 12 + 1
    for number in range(4):
        given = {"words": torch.full((3,), number, dtype=torch.int32), "picture": torch.full((2, 2), number).byte()}
        store(memory, GreedyBalanced(), given, number, np.random.default_rng(number))
    assert [part.shape for part in memory.gather(slots()).samples.values()] == [(0, 2, 2), (0, 3)]
    batch = memory.gather(slots(2, 0))
    assert sorted(batch.samples) == ["picture", "words"]
    assert batch.samples["picture"].shape == (2, 2, 2)
    assert batch.samples["words"][:, 1].tolist() == batch.samples["picture"][:, 1, 1].tolist() == batch.labels.tolist()
    memory = Memory(columns)
    memory.extend({"picture": torch.ones(5, 2, 2).byte(), "words": torch.arange(15).view(5, 3).int()}, np.arange(5) % 4)
    assert memory.gather(slots(4)).samples["words"].tolist() == [[12, 13, 14]]
    for wrong in (torch.zeros(2, 2).byte(), {"picture": torch.zeros(2, 2).byte()}):
        with pytest.raises(BudgetedError, match="a dictionary of tensors named picture, words"):
            memory.put(5, wrong, 0)
    with pytest.raises(BudgetedError, match="a tensor for a sample"):
        Memory(COLUMNS, 2).put(0, {"sample": sample(1, 1)}, 0)


def test_a_limit_in_bytes_gives_fixed_slots_their_capacity() -> None:
    memory = Memory(COLUMNS, limit=10 * 53 + 52)
    assert (memory.capacity, memory.limit) == (10, 530)
    for number in range(10):
        memory.put(number, sample(3, number), number % 5)
    assert memory.full
    memory.shrink(limit=5 * 53 + 1, given_up=range(5))
    assert (memory.capacity, len(memory), memory.nbytes()) == (5, 5, 5 * 53)
    shrink_to(memory, GreedyBalanced(), 4 * 53 - 1, np.random.default_rng(0))
    assert (memory.capacity, len(memory)) == (3, 3)
    with pytest.raises(BudgetedError, match="not both"):
        Memory(COLUMNS, 3, limit=1000)
    with pytest.raises(BudgetedError, match="raise the byte budget"):
        Memory(COLUMNS, limit=22, codec=Trimmed())
    with pytest.raises(BudgetedError, match="lower limit in bytes"):
        Memory(COLUMNS, limit=900, codec=Trimmed()).shrink(3)


def test_a_newcomer_that_needs_the_room_of_several_gets_it_and_is_counted_once() -> None:
    generator = np.random.default_rng(0)
    memory, selection = Memory(COLUMNS, limit=10 * (PER_SLOT + 2), codec=Trimmed()), Reservoir()
    for number in range(10):
        assert store(memory, selection, sample(2, number), number % 5, generator) == number
    assert memory.full
    slot = None
    while slot is None:
        slot = store(memory, selection, sample(LENGTH, 77), 3, generator)
        assert len(memory) == (10 if slot is None else 8)
    assert slot == len(memory) - 1
    assert torch.equal(memory.gather(slots(slot)).samples[0], sample(LENGTH, 77))
    seen = selection.seen
    for number in range(50):
        store(memory, selection, sample(number % LENGTH, 1), 0, generator)
    assert selection.seen == seen + 50


@pytest.mark.parametrize(
    ("each", "label", "message"),
    [
        (sample(30, 1), 0, "a sample takes 53 bytes, the whole memory has 52"),
        (sample(1, 1).float(), 0, "convert it first"),
        (sample(1, 1), 256, "declare more classes"),
    ],
)
def test_what_can_never_be_stored_is_refused_and_changes_nothing(each: Tensor, label: int, message: str) -> None:
    generator = np.random.default_rng(0)
    memory, selection = Memory(COLUMNS, limit=PER_SLOT + 29, codec=Trimmed()), Reservoir()
    store(memory, selection, sample(20, 1), 2, generator)
    before = {name: tensor.clone() for name, tensor in memory.state().items()}
    drawn = generator.bit_generator.state
    with pytest.raises(BudgetedError, match=message):
        store(memory, selection, each, label, generator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in memory.state().items())
    assert (selection.seen, generator.bit_generator.state) == (1, drawn)


def test_a_selection_that_gives_nothing_up_says_so_at_the_limit() -> None:
    memory = Memory(COLUMNS, limit=100, codec=Trimmed())
    store(memory, Unlimited(), sample(10, 1), 0, np.random.default_rng(0))
    store(memory, Unlimited(), sample(10, 1), 0, np.random.default_rng(0))
    with pytest.raises(BudgetedError, match="gives nothing up"):
        store(memory, Unlimited(), sample(40, 1), 0, np.random.default_rng(0))  # one of average size would fit
    assert len(memory) == 2


def test_a_reservoir_of_codes_prefers_neither_early_nor_short_ones() -> None:
    generator = np.random.default_rng(4)
    arrivals, by_time, by_length = 60, np.zeros(6), np.zeros(2)
    for _ in range(400):
        memory, selection = Memory((SAMPLE, label_column(5)), limit=12 * 31, codec=Trimmed()), Reservoir()
        lengths = generator.permutation(np.repeat([10, 30], arrivals // 2))
        for number, length in enumerate(lengths.tolist()):
            store(memory, selection, sample(length, number), 0, generator)
        numbers = memory.gather(np.arange(len(memory))).samples[:, 0].numpy().astype(int) - 1
        by_time += np.bincount(numbers // 10, minlength=6)
        by_length += np.bincount(lengths[numbers] // 30, minlength=2)
    share = by_time / by_time.sum()
    assert abs(share - 1 / 6).max() < 0.016  # whatever comes while there is room enters: 0.141 are of the first sixth
    assert scipy.stats.chisquare(by_length).pvalue > 1e-3


def test_a_codebook_is_counted_saved_and_loaded_with_the_memory() -> None:
    columns = (Column("feature", (3,)), label_column(4))
    memory = Memory(columns, limit=16 * 12 + 11, codec=Nearest())
    assert (memory.capacity, memory.nbytes()) == (5, 16 * 12 + 10)
    memory.extend(torch.tensor([[3.1, 3.0, 2.9], [7.0, 8.0, 9.1]]), np.arange(2))
    assert memory.gather(slots(1, 0)).samples.tolist() == [[8.0] * 3, [3.0] * 3]
    memory.codec.book += 1  # type: ignore[attr-defined]
    again = Memory(columns, 1, codec=Nearest())
    again.load_state({name: tensor.clone() for name, tensor in memory.state().items()})
    assert again.gather(slots(1)).samples.tolist() == [[9.0] * 3]


def test_what_slots_share_is_counted_once_and_leaves_with_the_last() -> None:
    columns = (Column("picture", (100,), torch.uint8), Column("words", (2,), torch.int32), label_column(4))
    memory, codec = Memory(columns, limit=500, codec=(codec := Shared())), codec
    per_slot = 8 + 8 + 4 + 4 + 1

    def arriving(picture: int, word: int) -> dict[str, Tensor]:
        return {"picture": torch.full((100,), picture).byte(), "words": torch.tensor([word, word], dtype=torch.int32)}

    for number in range(6):
        store(memory, GreedyBalanced(), arriving(number // 3, number), 0, np.random.default_rng(0))
    assert memory.nbytes() == 6 * per_slot + 2 * 108
    assert memory.gather(slots(5, 1)).samples["picture"][:, 7].tolist() == [1, 0]
    memory.put(5, arriving(1, 9), 1)  # the same picture in the place of one that has it
    memory.evict([0, 1, 2])
    assert memory.nbytes() == 3 * per_slot + 108
    again = Memory(columns, limit=500, codec=Shared())
    again.load_state({name: tensor.clone() for name, tensor in memory.state().items()})
    assert again.nbytes() == memory.nbytes()
    assert again.gather(np.arange(3)).samples["picture"][:, 0].tolist() == [1, 1, 1]
    for number in range(3, 40):
        store(memory, GreedyBalanced(), arriving(number, number), 0, np.random.default_rng(number))
        assert memory.nbytes() <= 500
        assert len(codec.pictures) <= len(memory)


def test_a_memory_of_samples_alike_keeps_one_and_is_all_else() -> None:
    columns = (Column("sample", (3, 64, 64), torch.uint8), label_column(5), Column("logits", (3,)))
    alike = Memory(columns, 2_000_000, alike=True)  # 24 GB of pixels
    assert alike.nbytes() == 2_000_000 * (12_288 + 1 + 12)
    pair = [Memory(COLUMNS, 20, alike=True), Memory(COLUMNS, 20)]
    coded = [Memory(COLUMNS, limit=900, codec=Trimmed(), alike=kind) for kind in (True, False)]
    for both in (pair, coded):
        for memory in both:
            generator = np.random.default_rng(6)
            for number in range(60):
                store(memory, GreedyBalanced(), sample(number % 40, number), number % 5, generator)
            memory.evict(3)
            shrink_to(memory, GreedyBalanced(), 12 * 53, generator)
            saved = {name: tensor.clone() for name, tensor in memory.state().items()}
            memory.load_state(saved)
        assert both[0].labels.tolist() == both[1].labels.tolist()
        assert both[0].lengths.tolist() == both[1].lengths.tolist()
        assert both[0].nbytes() == both[1].nbytes()
        assert (both[0].gather(np.arange(5)).samples == sample(19, 59)).all()
    assert alike._storage.tensors["sample"].untyped_storage().nbytes() == 12_288
    alike.extend(torch.ones(2, 3, 64, 64, dtype=torch.uint8), np.arange(2))
    assert alike.gather(slots(0, 1)).samples.sum() == 2 * 12_288


@pytest.mark.parametrize("pass_below", [0, 8192])
def test_retrieval_by_similarity_follows_every_move(pass_below: int) -> None:
    settings = SARSettings(similarity="own_class", normalisation="none", self_term="double", temperature=0.1)
    sar = SimilarityAware(settings, 5, effort=Effort(pass_below=pass_below))
    memory = Memory((SAMPLE, label_column(5), *sar.columns), limit=2000, codec=Trimmed())
    memory.watch(sar)
    generator = np.random.default_rng(8)
    banded = 0
    for number in range(300):
        store(memory, GreedyBalanced(), sample(int(generator.integers(41)), number), number % 5, generator)
        drawn = sar.draw(memory, 4, generator)
        assert len({*drawn.tolist()}) == min(4, len(memory))
        assert drawn.max() < len(memory)
        kept_up = sar.probabilities(memory)
        if sar._bands is not None and sar._bands._own is not None:
            banded += 1
            keys = sar._bands._keys(memory.labels, memory.host("frequency"))
            for key in range(sar._bands._own.counts.size):
                assert sorted(sar._bands._own.members(key).tolist()) == np.flatnonzero(keys == key).tolist()
        if number % 50 == 0:
            bands = sar._bands
            sar.adopt(memory)
            assert np.allclose(sar.probabilities(memory), kept_up, rtol=1e-6)
            sar._bands = bands
    assert (banded > 200) == (pass_below == 0)


class Broken(Codec):
    """As its settings say."""

    def __init__(self, encoded: dict[str, Tensor], decoded: Any = None, varying: bool = False) -> None:
        self.encoded, self.decoded = encoded, decoded
        type(self).varying = varying

    def columns(self, sample: Any) -> tuple[Column, ...]:
        return (Column("kept", (2,), torch.uint8),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        return self.encoded

    def decode(self, stored: Mapping[str, Any]) -> Any:
        return self.decoded


KEPT = torch.zeros(2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("codec", "message"),
    [
        (Broken({}), r"holds \['kept'\] in a slot, but encodes \[\]"),
        (Broken({"kept": KEPT.float()}), "codec Broken holds torch.uint8 of shape"),
        (Broken({"kept": KEPT, "code": KEPT}), "encodes"),
        (Broken({"kept": KEPT}, torch.zeros(1, 3)), "codec Broken decodes torch.uint8 of shape"),
        (Broken({"kept": KEPT}, None), "codec Broken decodes a tensor for a sample, not NoneType"),
    ],
)
def test_a_codec_that_does_not_do_what_it_says_is_named(codec: Codec, message: str) -> None:
    memory = Memory((SAMPLE, label_column(2)), 2, codec=codec)

    def there_and_back() -> None:
        memory.put(0, sample(1, 1), 0)
        memory.gather(slots(0))

    with pytest.raises(BudgetedError, match=message):
        there_and_back()


def test_a_memory_saved_with_one_codec_is_not_loaded_with_another() -> None:
    saved = Memory((SAMPLE, label_column(2)), limit=100, codec=Trimmed()).state()
    with pytest.raises(BudgetedError, match="saved with"):
        Memory((SAMPLE, label_column(2)), 2).load_state(saved)


def test_codecs_go_by_name_and_by_file() -> None:
    assert isinstance(CODECS["raw"].made({}), Raw)
    path = EXAMPLES / "lossless.py"
    assert len(path.read_text().splitlines()) <= 60
    codec = CODECS[f"{path}:Lossless"].made({"level": 6})
    assert codec == CODECS[f"{path}:Lossless"](level=6)  # type: ignore[call-arg]
    photo = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    pictures = photo[:, :416].unfold(1, 32, 32).unfold(2, 32, 32).permute(1, 2, 0, 3, 4).flatten(0, 1)
    columns = (Column("sample", (3, 32, 32), torch.uint8), label_column(10))
    memory = Memory(columns, limit=400_000, codec=codec)
    filled = 0
    while not memory.full:
        assert store(memory, GreedyBalanced(), pictures[filled], filled % 10, np.random.default_rng(0)) == filled
        filled += 1
    assert torch.equal(memory.gather(np.arange(filled)).samples, pictures[:filled])
    raw = Memory(columns, limit=400_000).capacity
    assert raw == 130
    assert filled > 1.4 * raw
    memory = Memory(columns, codec=codec)
    memory.extend(pictures, np.zeros(len(pictures), np.int64))
    assert torch.equal(memory.gather(np.arange(len(pictures))).samples, pictures)
    assert codec.operations(3) == 3 * 3072 * 11
    with pytest.raises(BudgetedError, match="one uint8 picture"):
        Memory((Column("sample", (3, 32, 32)), label_column(10)), limit=9000, codec=codec)
