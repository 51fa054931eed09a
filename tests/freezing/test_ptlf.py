"""PTLF: the blocks with the highest task-correlation ratio rest; in the middle they save the weights' half, no more."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.errors import BudgetedError
from budgeted.freezing import LayerFreezing, StepView, TaskCorrelated, ptlf
from budgeted.freezing.policies import NeverFreeze
from budgeted.freezing.ptlf import columns_of, decomposition_price, highest
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.state import tensors_of
from budgeted.methods import METHODS
from tests.bright_rows import FACTS
from tests.methods.small import assert_resumes_exactly, feed, network
from tests.nets import NETS, loss_of, seeded


class Chain(nn.Module):
    """Equal linear layers."""

    def __init__(self, width: int = 12, depth: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layers(x))
        return logits


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 4, bias=False),
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.Conv2d(3, 4, (3, 2), stride=2, padding=(2, 1), bias=False),
        nn.Conv2d(3, 4, 3, padding="same", dilation=2, bias=False),
    ],
)
def test_columns_are_what_the_weight_is_multiplied_with(layer: nn.Linear | nn.Conv2d) -> None:
    generator = torch.Generator().manual_seed(0)
    read = torch.randn(2, 6, generator=generator)
    if isinstance(layer, nn.Conv2d):
        read = torch.randn(2, 3, 6, 6, generator=generator)
    made = layer(read)
    columns = columns_of(layer, read, 10**9)
    found = layer.weight.reshape(4, -1) @ columns
    expected = made.T if isinstance(layer, nn.Linear) else made.transpose(0, 1).flatten(1)
    torch.testing.assert_close(found, expected)
    few = columns_of(layer, read, 5)
    assert 0 < few.shape[1] <= 5


def run(policy: TaskCorrelated, steps: int, shift: int, model: nn.Module | None = None) -> list[frozenset[int]]:
    """Train on inputs that change after `shift` steps; answers with what was frozen in each step."""
    model = seeded(Chain) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    freezing = LayerFreezing(model, policy, torch.empty(16, 12))
    generator = torch.Generator().manual_seed(0)
    frozen = []
    for step in range(steps):
        inputs = torch.randn(16, 12, generator=generator)
        inputs[:, :6] *= 0.1 if step < shift else 3.0
        optimizer.zero_grad()
        done = freezing.backward(F.cross_entropy(model(inputs), torch.arange(16) % 3))
        optimizer.step()
        frozen.append(done.frozen)
    freezing.remove()
    return frozen


def test_the_ratio_is_the_share_of_the_gradient_in_the_old_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against bases and projections worked out by hand, from what the layers read and the gradients they got."""
    model = seeded(Chain)
    policy = TaskCorrelated(stretch=6, probe=2, rank=4, columns=10**6)
    read: dict[int, Tensor] = {}
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)][:-1]
    for number, layer in enumerate(layers):
        layer.register_forward_pre_hook(lambda _, args, n=number: read.__setitem__(n, args[0].detach().clone()))
    step, bases = -1, {}
    parts, wholes = np.zeros(5), np.zeros(5)
    backward = LayerFreezing.backward

    def noting(self: LayerFreezing, *args: Any, **kwargs: Any) -> Any:
        nonlocal step
        step += 1
        done = backward(self, *args, **kwargs)
        for number, layer in enumerate(layers):
            if step == 5:
                bases[number] = np.linalg.svd(read[number].double().numpy().T)[0][:, :4]
            if step in (6, 7):
                assert layer.weight.grad is not None
                gradient = layer.weight.grad.double().numpy()
                parts[number] += np.linalg.norm(gradient @ bases[number] @ bases[number].T) ** 2
                wholes[number] += np.linalg.norm(gradient) ** 2
        return done

    monkeypatch.setattr(LayerFreezing, "backward", noting)
    frozen = run(policy, 12, 6, model)
    ratios = np.sqrt(parts / wholes)
    np.testing.assert_allclose(policy.ratios(), ratios, rtol=1e-4)
    assert np.ptp(ratios) > 0.01
    assert frozen[:8] == [frozenset()] * 8
    best = frozenset(np.argsort(-ratios)[:2].tolist())  # 8 * 1 // 4 of them
    assert frozen[8:] == [best] * 4


def test_more_rest_with_every_stretch() -> None:
    policy = TaskCorrelated(n_max=4, tasks=3, stretch=5, probe=1)
    frozen = run(policy, 24, 10)
    assert [len(found) for found in frozen] == [0] * 5 + [0] + [2] * 4 + [0] + [4] * 4 + [0] + [4] * 4 + [0] + [4] * 3


def test_the_highest_are_picked() -> None:
    assert highest([0.1, 0.9, 0.5, 0.9], 2) == {1, 3}
    assert highest([0.1, 0.9, 0.9], 1) == {1}
    assert highest([0.0, 0.2, 0.0], 3) == {1}  # where nothing was measured nothing is known
    assert highest([0.3], 0) == frozenset()


def test_a_basis_holds_the_strongest_directions_of_all_stretches() -> None:
    """The incremental decomposition of two stretches against one of both, where the rank is no limit."""
    model = seeded(Chain)
    policy = TaskCorrelated(stretch=2, probe=1, rank=12, columns=10**6)
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    read: list[Tensor] = []
    first.register_forward_pre_hook(lambda _, args: read.append(args[0].detach().clone()))
    run(policy, 4, 2, model)
    both = torch.cat([read[-3], read[-1]]).double().numpy().T  # of the second step and of the fourth
    strengths = np.linalg.svd(both)[1]
    name = next(name for name, module in model.named_modules() if module is first)
    np.testing.assert_allclose(policy.strengths[name], strengths, rtol=1e-4)
    gram = (policy.bases[name] * policy.strengths[name] ** 2) @ policy.bases[name].T
    np.testing.assert_allclose(gram, both @ both.T, rtol=1e-3, atol=1e-3)


SETS = {"none": frozenset[int](), "middle": frozenset({1, 2}), "front": frozenset({0, 1})}


class InTurn(NeverFreeze):
    """Freeze the sets in turn."""

    def decide(self, view: StepView) -> frozenset[int]:
        return [*SETS.values()][view.step % len(SETS)]


def test_middle_layers_save_the_weights_half_in_the_ledger_and_in_time() -> None:
    width, batch = 512, 512
    model = seeded(lambda: Chain(width, 4))
    inputs, labels = torch.randn(batch, width, generator=torch.Generator().manual_seed(0)), torch.arange(batch) % 3
    costs: dict[str, int] = {}
    seconds: dict[str, float] = {}
    freezing = LayerFreezing(model, InTurn(), inputs)
    for _ in range(6):
        for name, blocks in SETS.items():
            loss = F.cross_entropy(model(inputs), labels)
            start = time.process_time()  # of this process alone: others share the machine
            done = freezing.backward(loss)
            assert done.frozen == blocks
            seconds[name] = min(seconds.get(name, 1e9), time.process_time() - start)
            costs[name] = done.costs["backward"].real
            model.zero_grad()
    product = 2 * batch * width * width
    bias = batch * width
    assert costs["none"] - costs["middle"] == 2 * (product + bias)  # the gradients of two weights and two biases
    assert costs["none"] - costs["front"] > 1.4 * (costs["none"] - costs["middle"])
    # 7 products of this size in all: 5 are left with two in the middle frozen, 4 with two in front
    assert 0.55 < seconds["middle"] / seconds["none"] < 0.9
    freezing.remove()


@pytest.mark.parametrize("net", ["plain cnn", "separable", "decoder"])
def test_every_step_charges_what_it_executes(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decomposition runs in numpy, where the count does not see it: it is compared by its formula."""
    model = seeded(NETS[net].build)
    inputs, targets = NETS[net].batch(torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    policy = TaskCorrelated(n_max=3, tasks=2, stretch=3, probe=1, columns=16)
    freezing = LayerFreezing(model, policy, (inputs,), optimizer=optimizer)
    sizes, decomposed = set(), [0]

    def noting(rows: int, columns: int) -> int:
        assert columns <= 16 + min(rows, 16)
        decomposed[0] += (price := decomposition_price(rows, columns))
        return price

    for _ in range(9):
        optimizer.zero_grad()
        decomposed[0] = 0
        most = freezing.most((inputs,)).real
        with ExecutedOps() as executed, monkeypatch.context() as patch:
            patch.setattr(ptlf, "decomposition_price", noting)
            done = freezing.backward(loss_of(model(inputs), targets))
            optimizer.step()
        charged = sum(cost.real for cost in done.costs.values())
        assert charged <= most
        assert charged - decomposed[0] == pytest.approx(executed.total, rel=0.01)
        sizes.add(len(done.frozen))
    assert sizes == {0, 3}
    freezing.remove()


def learner_with(**freezing: Any) -> Learner:
    method = METHODS["vanilla"]().with_parts(freezing="ptlf")
    settings = Settings(LearnerSettings(batch_size=8, learning_rate=1e-3), freezing=freezing)
    return Learner(network("cnn8"), method, FACTS, slots=12, settings=settings, seed=0)


def test_bytes_are_the_bases() -> None:
    learner = learner_with(stretch=8, probe=1, columns=16, rank=4)
    before = learner.nbytes_by_item()
    feed(learner, 0, 20)
    assert learner.nbytes_by_item() == before
    kept = [t for name, t in tensors_of(learner).items() if name.startswith(("freezing.bases.", "freezing.strengths."))]
    numbers = 24 * len(learner.freezing.chain) + 8 * 6
    assert before["freezing"] == sum(t.numel() * t.element_size() for t in kept) + numbers
    assert len(kept) == 2 * 7


def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.methods import small

    monkeypatch.setattr(small, "network", lambda name="mlp", seed=0: network("cnn8", seed))
    learner = learner_with(stretch=8, probe=2, columns=16, rank=4, tasks=2)
    assert_resumes_exactly(learner, tmp_path / "saved", 17, 30)
    assert learner.mean_frozen_share > 0


@pytest.mark.parametrize(
    "settings",
    [{"n_max": -1}, {"tasks": 1}, {"probe": 0}, {"stretch": 10}, {"rank": 0}, {"columns": 0}],
)
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=f"{next(iter(settings))} must be"):
        TaskCorrelated(**settings)


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(BudgetedError, match="no saved state of TaskCorrelated: it lacks task"):
        TaskCorrelated().load_written({"fisher": []}, {})
