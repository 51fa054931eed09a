"""Invariant 3: frozen means not computed, and what is not frozen is computed as ever."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import Tensor, nn

from budgeted import models
from budgeted.freezing import (
    AdaptivePrefix,
    ConstantPrefix,
    FreezingPolicy,
    LayerFreezing,
    NeverFreeze,
    RandomPrefix,
)
from tests.nets import NETS, images, loss_of, seeded


@pytest.mark.parametrize("net", NETS)
def test_gradients_of_the_trained_part_equal_a_full_backward(net: str) -> None:
    model = seeded(NETS[net].build)
    inputs, targets = NETS[net].batch(torch.Generator().manual_seed(2))
    loss_of(model(inputs), targets).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    for n in range(NETS[net].blocks):
        model.zero_grad()
        freezing = LayerFreezing(model, ConstantPrefix(n), (inputs,))
        freezing.backward(loss_of(model(inputs), targets))
        resting = freezing.chain.frozen_parameters(range(n))
        for name, parameter in model.named_parameters():
            if name in resting:
                assert parameter.grad is None, name
            else:
                torch.testing.assert_close(parameter.grad, full[name], rtol=1e-5, atol=1e-7)
        freezing.remove()


@pytest.mark.parametrize("net", ["resnet", "separable", "vit", "decoder"])
def test_frozen_parameters_and_moments_stay_bit_identical(net: str) -> None:
    model = seeded(NETS[net].build)
    generator = torch.Generator().manual_seed(3)
    inputs, targets = NETS[net].batch(generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, optimizer, NeverFreeze(), inputs, targets, steps=3)  # moments that would move it
    freezing = LayerFreezing(model, ConstantPrefix(3), (inputs,))
    resting = freezing.chain.frozen_parameters(range(3))
    assert resting
    freezing.remove()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {name: copy.deepcopy(optimizer.state[p]) for name, p in model.named_parameters()}
    train(model, optimizer, ConstantPrefix(3), inputs, targets, steps=100)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in resting), name
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(value, moments[name][key]) == (name in resting), (name, key)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: FreezingPolicy,
    inputs: Tensor,
    targets: Tensor,
    steps: int,
) -> LayerFreezing:
    freezing = LayerFreezing(model, policy, (inputs,))
    for _ in range(steps):
        optimizer.zero_grad()
        freezing.backward(loss_of(model(inputs), targets))
        optimizer.step()
    freezing.remove()
    return freezing


@pytest.mark.parametrize("setting", ["update", "hold"])
def test_batch_norm_statistics(setting: str) -> None:
    model = models.build("cnn8", classes=10)
    inputs, targets = images(torch.Generator().manual_seed(4))
    freezing = LayerFreezing(model, ConstantPrefix(2), (inputs,), batch_norm=setting)  # type: ignore[arg-type]
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    freezing.backward(loss_of(model(inputs), targets))
    frozen = {name for block in freezing.chain.blocks[:2] for name in block.parameters}
    for name, buffer in model.named_buffers():
        norm_is_frozen = name.rsplit(".", 1)[0] + ".weight" in frozen
        assert torch.equal(buffer, before[name]) == (setting == "hold" and norm_is_frozen), name


@pytest.mark.parametrize("policy", [AdaptivePrefix, RandomPrefix])
def test_saved_and_loaded_it_goes_on_the_same(policy: type[FreezingPolicy]) -> None:
    inputs, targets = images(torch.Generator().manual_seed(5))

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, freezing: LayerFreezing, steps: int) -> list[int]:
        sizes = []
        for _ in range(steps):
            optimizer.zero_grad()
            sizes.append(len(freezing.backward(loss_of(model(inputs), targets)).frozen))
            optimizer.step()
        return sizes

    model = models.build("cnn8", classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    make = (lambda: AdaptivePrefix(ema=0.5)) if policy is AdaptivePrefix else (lambda: RandomPrefix(5))
    freezing = LayerFreezing(model, make(), (inputs,))
    run(model, optimizer, freezing, 10)
    saved = json.dumps(freezing.state_dict())
    other = models.build("cnn8", classes=10)
    other.load_state_dict(model.state_dict())
    other_optimizer = torch.optim.Adam(other.parameters(), lr=3e-3)
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    resumed = LayerFreezing(other, make(), (inputs,))
    resumed.load_state_dict(json.loads(saved))
    assert run(model, optimizer, freezing, 12) == run(other, other_optimizer, resumed, 12)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_head_that_grows_is_noticed() -> None:
    model = models.build("cnn8", classes=2)
    inputs, _ = images(torch.Generator().manual_seed(6))
    targets = torch.tensor([0, 1, 0, 1])
    freezing = LayerFreezing(model, ConstantPrefix(2), (inputs,))
    logits = model(inputs)
    small = freezing.backward(loss_of(logits, targets), logits, targets)
    old = model.get_submodule("head")
    assert isinstance(old, nn.Linear)
    model.head = nn.Linear(old.in_features, 50)
    logits = model(inputs)
    large = freezing.backward(loss_of(logits, targets), logits, targets)
    assert model.head.weight.grad is not None
    assert large.costs["forward"].real > small.costs["forward"].real
    assert large.frozen == small.frozen


def test_the_graph_is_not_kept_alive() -> None:
    import gc
    import weakref

    model = models.build("cnn8", classes=10)
    inputs, targets = images(torch.Generator().manual_seed(7))
    freezing = LayerFreezing(model, AdaptivePrefix(), (inputs,))
    loss = loss_of(model(inputs), targets)
    node = weakref.ref(loss)
    freezing.backward(loss)
    del loss
    gc.collect()
    assert node() is None
