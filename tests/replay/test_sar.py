"""Similarity-aware retrieval against a dense evaluation of its equations, for every reading."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError, UnknownName
from budgeted.replay import (
    Column,
    Effort,
    GreedyBalanced,
    Memory,
    SARSettings,
    SimilarityAware,
    label_column,
)

Floats = npt.NDArray[np.float64]
CLASSES, DIMENSION, BATCH = 4, 6, 3
WAYS = (Effort(pass_below=0, direct=0), Effort(pass_below=0, direct=1), Effort(pass_below=10**9))
GREY = torch.zeros(1, dtype=torch.uint8)


def made(how: SARSettings, capacity: int | None = 9, **options: Any) -> tuple[Memory, SimilarityAware]:
    sar = SimilarityAware(how, coordinates=DIMENSION, **options)
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(CLASSES), *sar.columns), capacity)
    memory.watch(sar)
    return memory, sar


def gradients(generator: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.from_numpy(generator.normal(size=(count, DIMENSION)).astype(np.float32) + 0.4)
    return values, torch.from_numpy(generator.random(DIMENSION) < 0.8)


class Dense:
    """The equations, evaluated over the whole memory at every step; S is taken as given."""

    def __init__(self, how: SARSettings) -> None:
        self.how = how
        self.c: list[float] = []
        self.y: list[int] = []
        self.kept = np.zeros(CLASSES)  # C_y under eviction = keep

    def store(self, slot: int, label: int) -> None:
        if slot == len(self.c):
            self.c.append(0.0)
            self.y.append(label)
        self.c[slot], self.y[slot] = 0.0, label

    def evict(self, slot: int) -> None:
        last = self.c.pop(), self.y.pop()
        if slot < len(self.c):
            self.c[slot], self.y[slot] = last

    @property
    def of_class(self) -> Floats:
        if self.how.eviction == "keep":
            return self.kept
        return np.array([sum(c for c, y in zip(self.c, self.y, strict=True) if y == k) for k in range(CLASSES)])

    def used(self, slots: list[int], batch_size: int) -> None:
        if self.how.frequency != "use" and len(self.c) > batch_size:
            left = 1 - batch_size / (self.how.k * len(self.c))
            self.c = [c * left for c in self.c]
            self.kept *= left
        for slot in slots:
            self.c[slot] += 1
            self.kept[self.y[slot]] += 1

    def score(self, c: float, y: int, similarity: Floats) -> float:
        others = 0.0
        if self.how.frequency == "effective":
            others = sum(similarity[k, y] * self.of_class[k] for k in range(CLASSES))
            if self.how.self_term == "removed":
                others -= similarity[y, y] * c
        if self.how.normalisation == "all":
            return (c + others) / len(self.c)
        if self.how.normalisation == "class":
            return c + others / len(self.c)
        return c + others

    def probabilities(self, similarity: Floats) -> Floats:
        scores = []
        for c, y in zip(self.c, self.y, strict=True):
            score = self.score(c, y, similarity)
            if self.how.own == "class_mean":
                mean = float(np.mean([other for other, label in zip(self.c, self.y, strict=True) if label == y]))
                score -= self.score(mean, y, similarity) - self.score(0.0, y, similarity)
            scores.append(max(score, 0.0) if self.how.clamp else score)
        energy = -np.array(scores) / self.how.temperature
        weight = np.exp(energy - energy.max())
        return np.asarray(weight / weight.sum())


def similarity_of(sar: SimilarityAware) -> Floats:
    full = np.zeros((CLASSES, CLASSES))
    if sar.similarity is not None:
        matrix = sar.similarity.matrix
        full[: len(matrix), : len(matrix)] = matrix
    return full


def possible(**how: Any) -> SARSettings:
    if how["own"] == "class_mean":
        how |= {"clamp": False, "eviction": "reduce"}
    if how["similarity"] == "own_class":
        how |= {"new_class": "zero"}
    return SARSettings(**how)


readings = st.builds(
    possible,
    own=st.sampled_from(["absolute", "absolute", "class_mean"]),
    frequency=st.sampled_from(["use", "discounted", "effective", "effective"]),
    temperature=st.sampled_from([0.125, 1.0]),
    k=st.sampled_from([1.0, 4.0]),
    ema=st.sampled_from([0.01, 0.5]),
    similarity=st.sampled_from(["pairwise", "class_gradient", "own_class"]),
    class_gradient=st.sampled_from(["cosine", "unit", "published"]),
    normalisation=st.sampled_from(["all", "class", "none"]),
    clamp=st.booleans(),
    self_term=st.sampled_from(["removed", "double"]),
    new_class=st.sampled_from(["zero", "mean"]),
    eviction=st.sampled_from(["reduce", "keep"]),
    warmup=st.sampled_from([0, 2]),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, CLASSES - 1)),
        st.tuples(st.just("arrive"), st.integers(0, CLASSES - 1)),
        st.tuples(st.just("draw"), st.just(0)),
        st.tuples(st.just("draw"), st.just(0)),
        st.tuples(st.just("evict"), st.integers(0, 100)),
        st.tuples(st.just("shrink"), st.integers(0, 100)),
        st.tuples(st.just("reload"), st.just(0)),
    ),
    min_size=40,
    max_size=90,
)


@settings(max_examples=150, deadline=None)
@given(readings, events, st.integers(0, 2**32), st.sampled_from(WAYS), st.sampled_from([0, 2, CLASSES]))
def test_any_history_leaves_the_frequencies_and_probabilities_of_the_equations(
    how: SARSettings, history: list[tuple[str, int]], seed: int, way: Effort, declared: int
) -> None:
    generator = np.random.default_rng(seed)
    selection = GreedyBalanced()
    options: dict[str, Any] = {"effort": way, "classes": declared}
    memory, sar = made(how, **options)
    dense = Dense(how)
    for kind, number in history:
        if kind == "arrive":
            slot = selection.select(memory, number, generator)
            assert slot is not None
            memory.put(slot, GREY, number)
            dense.store(slot, number)
        elif kind == "draw" and len(memory):
            slots = sar.draw(memory, BATCH, generator)
            assert len(set(slots.tolist())) == min(BATCH, len(memory))
            dense.used(slots.tolist(), BATCH)
            labels = torch.from_numpy(memory.labels[slots].astype(np.int64))
            sar.observe(*gradients(generator, len(slots)), labels)
        elif kind == "evict" and len(memory):
            memory.evict(number % len(memory))
            dense.evict(number % len(dense.c))
        elif kind == "shrink" and len(memory) > 1 and memory.capacity is not None and memory.capacity > 4:
            memory.shrink(memory.capacity - 1, [number % len(memory)])
            dense.evict(number % len(dense.c))
        elif kind == "reload":
            saved = safetensors.torch.load(safetensors.torch.save(memory.state()))
            saved_sar = safetensors.torch.load(safetensors.torch.save(sar.state()))
            memory, sar = made(how, **options)
            memory.load_state(saved)
            sar.load_state(saved_sar)
        assert np.allclose(sar.frequencies.of_samples(memory), dense.c, rtol=1e-5, atol=1e-6)
        known = sar.frequencies.of_class.size
        assert np.allclose(
            sar.frequencies.of_class * sar.frequencies.scale, dense.of_class[:known], rtol=1e-5, atol=1e-5
        )
        assert not dense.of_class[known:].any()
        if len(memory):
            expected = dense.probabilities(similarity_of(sar))
            assert np.allclose(sar.probabilities(memory), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("normalisation", ["all", "class", "none"])
def test_first_draws_follow_the_probabilities(normalisation: Any, way: Effort) -> None:
    """The whole path from frequencies to slots: what is drawn first has the stated chances."""
    how = SARSettings(normalisation=normalisation, temperature=0.5, clamp=False)
    memory, sar = made(how, effort=way)
    generator = np.random.default_rng(0)
    for number in range(9):
        memory.put(number, GREY, number % CLASSES)
    for _ in range(30):
        slots = sar.draw(memory, BATCH, generator)
        sar.observe(*gradients(generator, BATCH), torch.from_numpy(memory.labels[slots].astype(np.int64)))
    saved_memory, saved = {k: v.clone() for k, v in memory.state().items()}, sar.state()
    probabilities = sar.probabilities(memory)
    assert probabilities.max() > 1.05 * probabilities.min()
    draws = 3000
    outcomes: Counter[int] = Counter()
    for _ in range(draws):
        outcomes[int(sar.draw(memory, BATCH, generator)[0])] += 1
        memory.load_state(saved_memory)
        sar.load_state(saved)
    observed = np.array([outcomes[slot] for slot in range(9)])
    likely = probabilities * draws >= 5
    expected = np.append(probabilities[likely], probabilities[~likely].sum()) * draws
    seen = np.append(observed[likely], observed[~likely].sum())
    keep = expected > 0
    assert scipy.stats.chisquare(seen[keep], expected[keep]).pvalue > 1e-3


def assert_bands_hold(memory: Memory, sar: SimilarityAware) -> None:
    """Every slot is in the band of its class and stored frequency, once."""
    bands = sar._bands
    assert bands is not None
    number = bands.edges.size
    found = 0
    for key, count in enumerate(bands.counts.ravel().tolist()):
        slots = bands.pick(np.full(count, key), np.arange(count))
        found += len(set(slots.tolist()))
        stored = memory.host("frequency")[slots]
        assert (memory.labels[slots] == key // number).all()
        assert (bands.edges.searchsorted(stored, "right") - 1 == key % number).all()
    assert found == len(memory) == bands.counts.sum()


def run(memory: Memory, sar: SimilarityAware, generator: np.random.Generator, steps: int) -> list[list[int]]:
    """A stream of four classes into the memory, a draw and an observation for each arrival."""
    selection, drawn = GreedyBalanced(), []
    for _ in range(steps):
        label = int(generator.integers(CLASSES))
        slot = selection.select(memory, label, generator)
        assert slot is not None
        memory.put(slot, GREY, label)
        slots = sar.draw(memory, 16, generator)
        drawn.append(slots.tolist())
        sar.observe(*gradients(generator, len(slots)), torch.from_numpy(memory.labels[slots].astype(np.int64)))
    return drawn


@pytest.mark.parametrize(
    "how",
    [
        SARSettings(),
        SARSettings(normalisation="class"),
        SARSettings(normalisation="none", eviction="keep", clamp=False),
        SARSettings(frequency="discounted", normalisation="class"),
        SARSettings(similarity="class_gradient", class_gradient="published", normalisation="class"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_loaded_retrieval_draws_what_the_saved_one_would_have(how: SARSettings, way: Effort) -> None:
    """Through folds, rebuilt bands and evictions, bit for bit; the generator goes through JSON."""
    memory, sar = made(how, capacity=120, effort=way)
    generator = np.random.default_rng(5)
    run(memory, sar, generator, 230)
    if way.pass_below == 0:
        assert_bands_hold(memory, sar)
    saved = [safetensors.torch.save(memory.state()), safetensors.torch.save(sar.state())]
    text = json.dumps(generator.bit_generator.state)
    never_stopped = run(memory, sar, generator, 60)

    again, resumed = made(how, capacity=120, effort=way)
    again.load_state(safetensors.torch.load(saved[0]))
    resumed.load_state(safetensors.torch.load(saved[1]))
    other = np.random.Generator(np.random.PCG64(0))
    other.bit_generator.state = json.loads(text)
    assert run(again, resumed, other, 60) == never_stopped
    for name, tensor in sar.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert resumed.price() == sar.price()


def test_proposals_and_pass_lead_to_the_same_use_of_the_memory() -> None:
    """In the long run both ways of drawing use samples alike: same mean and spread of frequencies."""
    spread = []
    for way in WAYS:
        memory, sar = made(SARSettings(normalisation="class"), capacity=200, effort=way)
        run(memory, sar, np.random.default_rng(6), 600)
        c = sar.frequencies.of_samples(memory)
        spread.append((c.mean(), np.quantile(c, 0.1), np.quantile(c, 0.9)))
    assert np.allclose(spread, spread[-1], rtol=0.1, atol=0.05)


def test_mean_frequency_settles_at_k() -> None:
    """B uses a draw against the share B / (k |M|) forgotten: the mean of c tends to k."""
    memory, sar = made(SARSettings(frequency="discounted", k=4.0), capacity=50)
    generator = np.random.default_rng(7)
    for slot in range(50):
        memory.put(slot, GREY, slot % CLASSES)
    for _ in range(150):
        sar.draw(memory, 16, generator)
    assert sar.frequencies.of_samples(memory).mean() == pytest.approx(4.0, rel=1e-3)


def test_a_memory_filled_before_is_adopted_with_its_frequencies() -> None:
    sar = SimilarityAware(SARSettings(new_class="mean"))
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(CLASSES), *sar.columns), 6)
    c = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    memory.extend(torch.zeros((5, 1), dtype=torch.uint8), np.array([0, 2, 2, 3, 0]), frequency=c)
    memory.watch(sar)
    assert sar.frequencies.of_class.tolist() == [17.0, 0.0, 6.0, 8.0]
    memory.extend(torch.zeros((1, 1), dtype=torch.uint8), np.array([1]), frequency=torch.tensor([0.5]))
    assert sar.frequencies.of_class.tolist() == [17.0, 0.5, 6.0, 8.0]


def test_a_class_without_samples_has_no_frequency_left() -> None:
    memory, sar = made(SARSettings(), capacity=30)
    generator = np.random.default_rng(12)
    for slot in range(30):
        memory.put(slot, GREY, slot % CLASSES)
    for _ in range(20):
        sar.draw(memory, 7, generator)
    assert sar.frequencies.of_class[2] > 0
    while memory.counts[2]:
        memory.put(int(memory.membership.members(2)[0]), GREY, 1)
    assert abs(sar.frequencies.of_class[2]) < 1e-9


def test_warm_up_draws_are_class_balanced_and_counted() -> None:
    memory, sar = made(SARSettings(warmup=400), capacity=40)
    for slot in range(40):
        memory.put(slot, GREY, 1 if slot == 0 else 0)
    generator = np.random.default_rng(8)
    first = [int(sar.draw(memory, 2, generator)[0]) for _ in range(400)]
    assert 150 < first.count(0) < 250
    assert sar.frequencies.of_class[1] > 0


def test_bytes_are_those_of_what_is_kept() -> None:
    for how, extra in (
        (SARSettings(), 0),
        (SARSettings(similarity="own_class"), 0),
        (SARSettings(similarity="class_gradient"), 4 * 10 * (DIMENSION + 3)),
    ):
        sar = SimilarityAware(how, classes=10, coordinates=DIMENSION)
        numbers = 4 * 8  # the scale, and three counters
        assert sar.similarity is not None
        assert sar.similarity.matrix.nbytes == 400
        assert sar.nbytes() == 400 + 10 * (8 + 8 + 1) + extra + numbers
        kept = [t for name, t in sar.state().items() if not name.endswith("plain")]
        assert sar.nbytes() == sum(tensor.nbytes for tensor in kept) + numbers
    assert SimilarityAware(SARSettings(frequency="use"), classes=10).similarity is None


def test_price_is_small_and_does_not_grow_with_the_memory() -> None:
    prices = []
    for capacity in (10_000, 50_000):
        memory, sar = made(SARSettings(), capacity=capacity)
        memory.extend(torch.zeros((capacity, 1), dtype=torch.uint8), np.arange(capacity) % CLASSES)
        generator = np.random.default_rng(9)
        run(memory, sar, generator, 20)
        prices.append(sar.price())
    assert 0 < prices[1] < 1.5 * prices[0] < 50_000


@pytest.mark.parametrize(("frequency", "wants"), [("use", False), ("discounted", False), ("effective", True)])
def test_gradients_are_wanted_only_for_similarity(frequency: Any, wants: bool) -> None:
    memory, sar = made(SARSettings(frequency=frequency))
    assert sar.wants_gradients is wants
    memory.put(0, GREY, 1)
    sar.draw(memory, 4, np.random.default_rng(0))
    sar.observe(torch.ones(1, 6), torch.ones(6, dtype=torch.bool), torch.tensor([1]))
    assert ("similarity.matrix" in sar.state()) is wants


def test_the_own_class_alone_needs_no_gradients_and_learns_nothing() -> None:
    memory, sar = made(SARSettings(similarity="own_class"))
    assert sar.wants_gradients is False
    for slot, label in enumerate([0, 0, 2]):
        memory.put(slot, GREY, label)
    sar.observe(torch.ones(3, DIMENSION), torch.ones(DIMENSION, dtype=torch.bool), torch.tensor([0, 0, 2]))
    assert sar.similarity is not None
    assert np.array_equal(sar.similarity.matrix, np.eye(len(sar.similarity.matrix)))
    generator = np.random.default_rng(0)
    for _ in range(3):
        sar.draw(memory, 2, generator)
    of_class = sar.frequencies.of_class * sar.frequencies.scale
    odds = np.exp((of_class[2] - of_class[0]) / (3 * sar.settings.temperature))
    found = sar.probabilities(memory)
    assert found[0] / found[2] == pytest.approx(odds)  # both samples of a class are alike, whatever their own use
    assert found[1] == pytest.approx(found[0])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"similarity": "own_class", "new_class": "mean"}, BudgetedError),
        ({"normalisation": "al"}, UnknownName),
        ({"frequency": "effektive"}, UnknownName),
        ({"temperature": 0.0}, BudgetedError),
        ({"k": 0.5}, BudgetedError),
        ({"ema": 0.0}, BudgetedError),
        ({"warmup": -1}, BudgetedError),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        SARSettings(**fields)


def test_nothing_is_drawn_from_an_empty_memory() -> None:
    memory, sar = made(SARSettings())
    assert sar.draw(memory, 4, np.random.default_rng(0)).size == 0
    memory.put(0, GREY, 2)
    assert sar.draw(memory, 4, np.random.default_rng(0)).tolist() == [0]


def test_mistakes_in_use_are_refused() -> None:
    with pytest.raises(BudgetedError, match="coordinates"):
        SimilarityAware(SARSettings(similarity="class_gradient"))
    sar = SimilarityAware()
    memory = Memory((Column("pixels", (1,), torch.uint8), label_column(CLASSES), *sar.columns), 3)
    memory.put(0, GREY, 0)
    with pytest.raises(BudgetedError, match=r"memory\.watch"):
        sar.draw(memory, 1, np.random.default_rng(0))
    with pytest.raises(BudgetedError, match=r"memory\.watch"):
        sar.load_state(sar.state())


def test_every_reading_is_drawn_from_by_both_ways_without_a_repeat() -> None:
    generator = np.random.default_rng(10)
    choices = itertools.product(
        ["use", "discounted", "effective"], ["all", "class", "none"], ["removed", "double"], WAYS
    )
    for frequency, normalisation, self_term, way in choices:
        how = SARSettings(frequency=frequency, normalisation=normalisation, self_term=self_term)  # type: ignore[arg-type]
        memory, sar = made(how, capacity=60, effort=way)
        for slots in run(memory, sar, generator, 90)[16:]:
            assert len(set(slots)) == 16
