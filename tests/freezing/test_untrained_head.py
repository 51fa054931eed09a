"""Where the head is not trained (adapters on a fixed base) the last block that is trained never rests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.budget import Ledger, total
from budgeted.errors import BudgetedError
from budgeted.freezing import POLICIES, LayerFreezing, policy
from budgeted.plugin import AdaptiveFreezing
from tests.nets import seeded

FREEZES_ALL_IT_CAN: dict[str, dict[str, Any]] = {
    "none": {},
    "constant": {"n": 9},
    "linear": {"n_max": 9, "steps": 4},
    "random": {"n_max": 9, "seed": 1},
    "adaptive": {"ema": 0.3, "ema_start": "first"},
    "egeria": {"period": 1, "window": 2, "tolerance": 0.99, "thaw": 1e9},
    "block-cyclic": {"every": 2},
    "ptlf": {"n_max": 9, "stretch": 4, "probe": 1, "tasks": 2},
}


def network(trained: int = 3) -> nn.Sequential:
    """Five blocks; those from `trained` on are fixed."""
    model = seeded(
        lambda: nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(4)), nn.Linear(6, 4))
    )
    for block in list(model)[trained:]:
        block.requires_grad_(False)
    return model


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)


def test_every_policy_is_here() -> None:
    assert set(FREEZES_ALL_IT_CAN) == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_the_last_trained_block_gets_its_gradient_in_every_step(name: str) -> None:
    model, ledger = network(), Ledger()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    chosen = policy(name, **FREEZES_ALL_IT_CAN[name])
    freezing = LayerFreezing(model, chosen, batch(0)[:1], optimizer=optimizer, ledger=ledger)
    assert len(freezing.chain) == 5
    assert freezing.chain.last_trained() == 2
    sizes = set()
    for number in range(24):
        inputs, labels = batch(number)
        share = 1.0 if number < 12 else 1e-3  # batches that tell little
        optimizer.zero_grad()
        with freezing.paused():
            loss = cross_entropy(model(inputs), labels) * share
            expected = torch.autograd.grad(loss, list(model[2].parameters()))
        step = freezing.backward(cross_entropy(model(inputs), labels) * share)
        assert step.frozen <= {0, 1}
        assert step.costs["backward"] == total(freezing.price(inputs, sorted(step.frozen)).backward)
        for parameter, gradient in zip(model[2].parameters(), expected, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)
        optimizer.step()
        sizes.add(len(step.frozen))
    assert max(sizes) == (0 if name == "none" else 2)


def test_a_set_with_the_last_trained_block_has_no_price() -> None:
    model = network()
    freezing = LayerFreezing(model, "none", batch(0)[:1])
    inputs = batch(0)[0]
    assert total(freezing.price(inputs, [0, 1]).backward).real > 0
    for refused in ([2], [3], [0, 1, 2]):
        with pytest.raises(
            BudgetedError, match=r"choose from 0 to 1 \(block 2 is the last one that is trained, '2.0'\)"
        ):
            freezing.price(inputs, refused)
    model[2].requires_grad_(False)  # which ones are trained is seen anew, also where as many are
    model[3].requires_grad_(True)
    assert total(freezing.price(inputs, [0, 1, 2]).backward).real > 0
    with pytest.raises(BudgetedError, match="block 3 is the last one that is trained"):
        freezing.price(inputs, [3])
    with pytest.raises(BudgetedError, match="block 0 cannot be frozen: nothing can be"):
        LayerFreezing(network(1), "none", batch(0)[:1]).price(inputs, [0])


def test_adapters_under_a_fixed_head_go_on_in_a_loop() -> None:
    """What the plug-in does with a model of adapters: it died as soon as the criterion chose all below the head."""
    model = network()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5, ema_start="first")
    sizes = []
    for number in range(40):
        inputs, labels = batch(number % 3)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels) * (1e-3 if number % 4 == 3 else 1.0)
        sizes.append(len(freezing.backward(loss).frozen))
        optimizer.step()
    assert max(sizes) == 2
