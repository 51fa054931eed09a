"""EGERIA: a front block that has converged is frozen, a shift thaws it, and the reference model is paid for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.errors import BudgetedError
from budgeted.freezing import Egeria, LayerFreezing
from budgeted.freezing.egeria import plasticity, slope
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.state import tensors_of
from budgeted.methods import METHODS
from tests.bright_rows import FACTS
from tests.methods.small import assert_resumes_exactly, feed, network
from tests.nets import NETS, loss_of, seeded


def test_plasticity_is_the_similarity_preserving_distance() -> None:
    """Against loops over pairs of samples."""
    generator = torch.Generator().manual_seed(0)
    mine, old = (torch.randn(5, 3, 2, 2, generator=generator) for _ in range(2))
    grams = []
    for made in (mine, old):
        rows = made.reshape(5, -1).double().numpy()
        gram = np.array([[float(a @ b) for b in rows] for a in rows])
        grams.append(gram / np.sqrt((gram**2).sum(1, keepdims=True)))
    assert plasticity(mine, old) == pytest.approx(((grams[0] - grams[1]) ** 2).sum() / 25, rel=1e-5)
    assert plasticity(mine, mine) == 0
    assert plasticity(mine, 3 * mine) == pytest.approx(0, abs=1e-12)


def test_the_slope_is_the_least_squares_one() -> None:
    values = np.random.default_rng(0).random(9)
    assert slope(values.tolist()) == pytest.approx(np.polyfit(np.arange(9), values, 1)[0])


def test_a_block_that_stops_moving_is_frozen_and_a_jump_thaws_all() -> None:
    policy = Egeria(window=5)
    fronts = []
    for evaluation in range(60):
        policy.notice(0.5**evaluation + 1e-3, most=3)
        fronts.append(policy.front)
    assert fronts[8] == 0  # a window to smooth over, and a quiet one
    assert fronts[-1] == 3  # the head is watched and never frozen
    assert all(later - sooner in (0, 1) for sooner, later in itertools.pairwise(fronts))
    policy.notice(2.9e-3, most=3)
    assert policy.front == 3
    policy.notice(2e-2, most=3)
    assert (policy.front, *policy.values, *policy.smoothed, policy.steepest, policy.quiet) == (0, 0.0, 0)


def test_a_block_that_goes_on_moving_is_not_frozen() -> None:
    policy = Egeria(window=5)
    for evaluation in range(100):
        policy.notice(100.0 - evaluation, most=3)  # a steady slope is the steepest
    assert policy.front == 0
    policy.notice(float("nan"), most=3)
    assert not any(map(np.isnan, policy.values))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.body(torch.relu(self.stem(x)))))
        return logits


def test_training_freezes_a_converged_front_and_a_shift_of_the_data_thaws_it() -> None:
    model = seeded(Chain)
    stem = [*model.get_submodule("stem").parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    policy = Egeria(period=2, window=4)
    freezing = LayerFreezing(model, policy, torch.empty(64, 6))
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 6, generator=generator) * 2
    fronts, thawed = [], None
    for step in range(700):
        shifted = step >= 500
        labels = torch.randint(0, 3, (64,), generator=generator)
        # after the shift other clusters carry the labels, and the model must move
        inputs = centres[labels + 3 * shifted] + 0.1 * torch.randn(64, 6, generator=generator)
        optimizer.zero_grad()
        before = [p.detach().clone() for p in stem]
        done = freezing.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()
        fronts.append(policy.front)
        assert done.frozen == frozenset(range(policy.front))
        rested = all(torch.equal(p, old) for p, old in zip(stem, before, strict=True))
        assert rested == (policy.front > 0)
        if shifted and thawed is None and policy.front == 0:
            thawed = step
    assert fronts[499] >= 1
    assert thawed is not None
    assert thawed < 520
    freezing.remove()


@pytest.mark.parametrize("net", ["plain cnn", "separable", "dense", "decoder"])
def test_every_step_charges_the_reference_too(net: str) -> None:
    model = seeded(NETS[net].build)
    inputs, targets = NETS[net].batch(torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    policy = Egeria(period=2, window=2, tolerance=0.9)
    freezing = LayerFreezing(model, policy, (inputs,), optimizer=optimizer)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert freezing.nbytes() == sum(4 * p.numel() for p in model.parameters()) + 8 * 7
    looked = []
    for step in range(8):
        optimizer.zero_grad()
        state = torch.random.get_rng_state()
        with ExecutedOps() as executed:
            done = freezing.backward(loss_of(model(inputs), targets))
            optimizer.step()
        assert torch.equal(state, torch.random.get_rng_state())
        charged = sum(cost.real for cost in done.costs.values())
        assert charged == pytest.approx(executed.total, rel=0.01)
        assert charged <= freezing.most((inputs,)).real
        looked.append(done.costs["fisher"].real)
        if step == 0:
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert all((cost > 0) == (step > 0 and step % 2 == 0) for step, cost in enumerate(looked))
    tracked = [name for name in buffers if name.endswith("num_batches_tracked")]
    for name in tracked:  # the reference's forwards are not among those that batch norm has seen
        assert int(model.get_buffer(name)) == int(buffers[name]) + 7
    freezing.remove()


def learner_with(**freezing: Any) -> Learner:
    method = METHODS["vanilla"]().with_parts(freezing="egeria")
    settings = Settings(LearnerSettings(batch_size=8, learning_rate=1e-3), freezing=freezing)
    return Learner(network("cnn8"), method, FACTS, slots=12, settings=settings, seed=0)


def test_bytes_are_the_references() -> None:
    learner = learner_with(period=3, window=2)
    before = learner.nbytes_by_item()
    feed(learner, 0, 30)
    assert learner.nbytes_by_item() == before
    saved = tensors_of(learner)
    kept = sum(t.numel() * t.element_size() for name, t in saved.items() if name.startswith("freezing.reference."))
    assert kept > 0
    rows = len(saved["freezing.reference.head.weight"])
    reserved = (4 - rows) * 4 * (learner.head.in_features + 1)
    assert before["freezing"] == kept + reserved + 8 * 7


def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.methods import small

    monkeypatch.setattr(small, "network", lambda name="mlp", seed=0: network("cnn8", seed))
    learner = learner_with(period=2, window=2, tolerance=0.9)
    assert_resumes_exactly(learner, tmp_path / "saved", 17, 40)
    assert learner.mean_frozen_share > 0


@pytest.mark.parametrize("settings", [{"period": 0}, {"window": 1}, {"tolerance": 1.0}, {"thaw": 1.0}])
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=f"{next(iter(settings))} must be"):
        Egeria(**settings)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(BudgetedError, match="no saved state of Egeria: it lacks front"):
        Egeria().load_written({"fisher": []}, {})


def test_a_block_that_is_no_module_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.ones(4, 6))
            self.second = nn.Parameter(torch.ones(4, 4))
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.relu(F.linear(torch.relu(F.linear(x, self.first)), self.second)))
            return logits

    with pytest.raises(BudgetedError, match="is no module, so what it reads and makes cannot be watched"):
        LayerFreezing(Bare(), "egeria", torch.empty(3, 6))
