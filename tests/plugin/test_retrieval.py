"""Similarity-aware retrieval in a plain loop: the draws and similarities of the replay room, with five lines."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import budgeted
from budgeted import models
from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger
from budgeted.errors import BudgetedError, UnknownName
from budgeted.network.sampled_gradients import SampledGradients
from budgeted.plugin import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval
from budgeted.replay import Column, GreedyBalanced, Memory, SARSettings, label_column
from budgeted.replay import SimilarityAware as Retrieval
from tests.nets import seeded


def cnn() -> nn.Module:
    return seeded(lambda: models.build("cnn8", classes=5))


def stream(count: int) -> list[tuple[Tensor, int]]:
    generator = torch.Generator().manual_seed(8)
    return [(torch.randn(3, 16, 16, generator=generator), int(i % 5)) for i in range(count)]


Parts = tuple[nn.Module, torch.optim.Optimizer, ReplayMemory, SimilarityAwareRetrieval, AdaptiveFreezing | None]


def make(freezing: bool, **settings: Any) -> Parts:
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    plug = AdaptiveFreezing(model, optimizer, ema=0.5, ema_start="first") if freezing else None
    memory = ReplayMemory(slots=12, classes=5)
    retrieval = SimilarityAwareRetrieval(model, memory, freezing=plug, fraction=0.02, ema=0.2, **settings)
    return model, optimizer, memory, retrieval, plug


def train(parts: Parts, samples: list[tuple[Tensor, int]]) -> list[list[float]]:
    model, optimizer, memory, retrieval, freezing = parts
    drawn = []
    for sample, label in samples:
        memory.add(sample, label)
        images, labels = retrieval.draw(6)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        if freezing is None:
            loss.backward()
        else:
            freezing.backward(loss)
        retrieval.update()
        optimizer.step()
        drawn.append([float(image.sum()) for image in images])
    return drawn


def test_it_is_exported() -> None:
    assert budgeted.SimilarityAwareRetrieval is SimilarityAwareRetrieval
    assert budgeted.ReplayMemory is ReplayMemory


def test_it_is_the_replay_rooms_retrieval() -> None:
    """The same loop written with the parts themselves gives the same draws, weights and similarities."""
    mine = make(freezing=False)
    drawn = train(mine, stream(20))
    model = cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sar = Retrieval(SARSettings(ema=0.2))
    memory = Memory((Column("sample", (3, 16, 16)), label_column(5), *sar.columns), 12)
    memory.watch(sar)
    sampled = SampledGradients(model, fraction=0.02, exclude=["head"])
    storing, drawing = (np.random.Generator(np.random.PCG64(seed)) for seed in (0, [0, 1]))
    sampled.start()
    expected = []
    for sample, label in stream(20):
        slot = GreedyBalanced().select(memory, label, storing)
        assert slot is not None
        memory.put(slot, sample, label)
        batch = memory.gather(sar.draw(memory, 6, drawing))
        optimizer.zero_grad()
        F.cross_entropy(model(batch.samples), batch.labels).backward()
        step = sampled.take()
        sar.observe(step.values, step.present, batch.labels)
        optimizer.step()
        expected.append([float(image.sum()) for image in batch.samples])
    assert drawn == expected
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), mine[0].parameters(), strict=True))
    assert sar.similarity is not None
    assert mine[3].retrieval.similarity is not None
    assert np.array_equal(sar.similarity.matrix, mine[3].retrieval.similarity.matrix)
    assert np.abs(sar.similarity.matrix).max() > 0


def test_frozen_weights_are_left_out() -> None:
    parts = make(freezing=True)
    seen: list[tuple[frozenset[int], Tensor]] = []
    observe = parts[3].retrieval.observe

    def watch(values: Tensor, present: Tensor, labels: Tensor) -> None:
        assert parts[4] is not None
        seen.append((parts[4].frozen, present))
        assert not values[:, ~present].any()
        observe(values, present, labels)

    parts[3].retrieval.observe = watch  # type: ignore[method-assign]
    train(parts, stream(20))
    assert parts[4] is not None
    assert parts[3].sampled is not None
    owners = [coordinate.parameter for coordinate in parts[3].sampled.coordinates]
    assert any(frozen for frozen, _ in seen)
    for frozen, present in seen:
        resting = parts[4].chain.frozen_parameters(frozen)
        assert [bool(flag) for flag in present] == [owner not in resting for owner in owners]
    assert not any(owner.startswith("head") for owner in owners)


@pytest.mark.parametrize("freezing", [False, True])
def test_resumed_it_goes_on_bit_for_bit(freezing: bool) -> None:
    samples = stream(26)
    whole = make(freezing)
    expected = train(whole, samples)
    first = make(freezing)
    drawn = train(first, samples[:13])
    file = io.BytesIO()
    torch.save([None if part is None else part.state_dict() for part in first], file)
    file.seek(0)
    second = make(freezing)
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        if part is not None:
            part.load_state_dict(state)
    assert drawn + train(second, samples[13:]) == expected
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), second[0].parameters(), strict=True))


def test_new_samples_beside_the_drawn() -> None:
    model, _, memory, retrieval, _ = make(freezing=False)
    batch = torch.stack([sample for sample, _ in stream(10)])
    memory.add(batch, torch.arange(10) % 5)
    assert len(memory) == 10
    images, labels = retrieval.draw(4)
    both = torch.cat([batch[:3], images])
    F.cross_entropy(model(both), torch.cat([torch.arange(3), labels])).backward()
    with pytest.raises(BudgetedError, match=r"rows=slice"):
        retrieval.update()
    images, labels = retrieval.draw(4)
    F.cross_entropy(model(torch.cat([batch[:3], images])), torch.cat([torch.arange(3), labels])).backward()
    retrieval.update(slice(3, None))
    assert retrieval.retrieval.similarity is not None
    assert np.abs(retrieval.retrieval.similarity.matrix).max() > 0


def test_draws_and_similarity_are_charged() -> None:
    ledger = Ledger()
    model, memory = cnn(), ReplayMemory(slots=12)
    retrieval = SimilarityAwareRetrieval(model, memory, ledger=ledger)
    for sample, label in stream(12):
        memory.add(sample, label)
    images, labels = retrieval.draw(6)
    F.cross_entropy(model(images), labels).backward()
    retrieval.update()
    assert ledger.spent_on["retrieval"].real > 0
    assert ledger.spent_on["similarity"].real > 0
    assert ledger.steps == 0


def test_with_freezing_a_step_charges_what_it_executes() -> None:
    model, optimizer, memory, retrieval, freezing = make(freezing=True)
    assert freezing is not None
    optimizer.param_groups[0]["foreach"] = False
    for sample, label in stream(12):
        memory.add(sample, label)
    for number in range(6):
        images, labels = retrieval.draw(6)
        before = freezing.spent
        optimizer.zero_grad()
        with ExecutedOps() as executed:
            loss = F.cross_entropy(model(images), labels)
            freezing.backward(loss)
            optimizer.step()
        retrieval.update()
        # what numpy does for draws and cosines is charged too, but passes no dispatcher
        unseen = retrieval.retrieval.price()
        if number:  # the first forward also traces
            assert (freezing.spent - before).real - unseen == pytest.approx(executed.total, rel=0.02)
    assert freezing.ledger.steps == 6


def test_scaled_gradients_are_unscaled() -> None:
    matrices = []
    for scale in (None, 1024.0):
        model, optimizer, memory, retrieval, _ = make(freezing=False, similarity="pairwise")
        scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
        for sample, label in stream(12):
            memory.add(sample, label)
        images, labels = retrieval.draw(6)
        loss = F.cross_entropy(model(images), labels)
        (loss if scaler is None else scaler.scale(loss)).backward()
        retrieval.update(scaler=scaler)
        assert retrieval.retrieval.similarity is not None
        matrices.append(retrieval.retrieval.similarity.matrix.copy())
        optimizer.zero_grad()
    np.testing.assert_allclose(matrices[0], matrices[1], rtol=1e-4, atol=1e-7)


def test_memory_by_bytes_and_its_limits() -> None:
    memory = ReplayMemory(nbytes="20KiB", classes=5, selection="reservoir")
    for _ in range(40):
        memory.add(torch.zeros(3, 16, 16, dtype=torch.uint8), 1)
    assert len(memory) == 20480 // (768 + 1)
    assert memory.nbytes() <= 20480
    everything = ReplayMemory()
    everything.add(torch.zeros(50, 4), torch.zeros(50, dtype=torch.long))
    assert len(everything) == 50


def test_mistakes_are_said_in_one_line() -> None:
    model, memory = cnn(), ReplayMemory(slots=4)
    with pytest.raises(UnknownName, match="greedy-balanced"):
        ReplayMemory(4, selection="greedy-balance")
    with pytest.raises(BudgetedError, match="not both"):
        ReplayMemory(4, nbytes=100)
    with pytest.raises(BudgetedError, match="unexpected keyword"):
        SimilarityAwareRetrieval(model, memory, temprature=1)
    with pytest.raises(BudgetedError, match="exclude"):
        SimilarityAwareRetrieval(model, memory, similarity="class_gradient")
    retrieval = SimilarityAwareRetrieval(model, memory, similarity="class_gradient", exclude=["head"])
    with pytest.raises(BudgetedError, match="nothing to draw"):
        retrieval.draw(3)
    with pytest.raises(BudgetedError, match="without a draw"):
        retrieval.update()
    with pytest.raises(BudgetedError, match="one whole number"):
        memory.add(torch.zeros(3, 3, 16, 16), torch.zeros(3))
    memory.add(torch.zeros(3, 16, 16), 1)
    with pytest.raises(BudgetedError, match="before the first add"):
        SimilarityAwareRetrieval(model, memory)
    lazy_memory = ReplayMemory(slots=4)
    lazy = SimilarityAwareRetrieval(model, lazy_memory)
    lazy_memory.add(torch.zeros(3, 16, 16), 1)
    lazy.draw(1)
    with pytest.raises(BudgetedError, match="without a training forward"):
        lazy.update()
    lazy.remove()
    assert not any(module._forward_hooks for module in model.modules())
