"""The direct way to the fused kernel moves parameters and state exactly as torch's own step does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from budgeted.network.fused_step import FusedStep
from tests.nets import seeded


def network() -> nn.Sequential:
    net = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    assert isinstance(net, nn.Sequential)
    return net


def groups(model: nn.Sequential) -> list[dict[str, Any]]:
    return [{"params": model[:3].parameters()}, {"params": model[3:].parameters(), "lr": 0.02, "betas": (0.8, 0.99)}]


def train(model: nn.Sequential, optimizer: Optimizer, direct: bool, steps: int = 12) -> None:
    update = FusedStep(optimizer) if direct else optimizer.step
    generator = torch.Generator().manual_seed(1)
    for number in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).square().mean().backward()
        if number % 3 == 1:  # what a frozen block looks like
            for parameter in model[0].parameters():
                parameter.grad = None
        update()


def assert_same(a: nn.Module, b: nn.Module, first: Optimizer, second: Optimizer) -> None:
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
        assert first.state[p].keys() == second.state[q].keys()
        for key, value in first.state[p].items():
            assert value is None or torch.equal(value, second.state[q][key]), key


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Adam, {"fused": True}),
        (Adam, {"fused": True, "weight_decay": 0.1}),
        (AdamW, {"fused": True, "weight_decay": 0.1}),
        (Adam, {"fused": True, "amsgrad": True}),
        (Adam, {"fused": True, "maximize": True}),
        (Adam, {"foreach": True}),
        (SGD, {"fused": True, "momentum": 0.9}),
    ],
)
def test_bit_for_bit_as_torch(kind: Any, settings: dict[str, Any]) -> None:
    ours, theirs = network(), network()
    first, second = (kind(groups(model), lr=0.01, **settings) for model in (ours, theirs))
    train(ours, first, direct=True)
    train(theirs, second, direct=False)
    assert not torch.equal(next(ours.parameters()), next(network().parameters()))
    assert_same(ours, theirs, first, second)


def test_the_kernel_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the other tests compare torch with itself."""
    model = network()
    optimizer = Adam(model.parameters(), fused=True)
    train(model, optimizer, direct=False, steps=1)
    monkeypatch.setattr(Adam, "step", lambda *_: pytest.fail("torch's step was called"))
    train(model, optimizer, direct=True, steps=1)


def test_goes_on_from_a_loaded_state() -> None:
    ours, theirs = network(), network()
    first, second = (Adam(model.parameters(), lr=0.01, fused=True) for model in (ours, theirs))
    for model, optimizer in ((ours, first), (theirs, second)):
        train(model, optimizer, direct=False, steps=3)
    fresh = Adam(ours.parameters(), lr=0.5, fused=True)
    fresh.load_state_dict(copy.deepcopy(first.state_dict()))
    train(ours, fresh, direct=True)
    train(theirs, second, direct=False)
    assert_same(ours, theirs, fresh, second)


def test_hooks_and_schedules_still_see_every_step() -> None:
    model = network()
    optimizer = Adam(model.parameters(), lr=0.01, fused=True)
    seen: list[int] = []
    handle = optimizer.register_step_post_hook(lambda *_: seen.append(1))
    train(model, optimizer, direct=True, steps=4)
    handle.remove()
    assert len(seen) == 4
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(model, optimizer, direct=True, steps=1)
    schedule.step()  # warns, which is an error here, if it has not seen the optimizer step


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_hooks_on_all_optimizers_see_every_step(register: Any) -> None:
    ours, theirs = network(), network()
    first, second = (Adam(groups(model), lr=0.01, fused=True) for model in (ours, theirs))
    seen: list[Any] = []
    train(ours, first, direct=True, steps=2)
    handle = register(lambda optimizer, *_: seen.append(optimizer))
    try:
        train(ours, first, direct=True, steps=3)
    finally:
        handle.remove()
    assert seen == [first] * 3
    train(theirs, second, direct=False, steps=2)
    train(theirs, second, direct=False, steps=3)
    assert_same(ours, theirs, first, second)
