"""Ten architectures under the plug-in: chain, price, gradients, and what rests stays bit for bit."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.budget import UnpricedOperator, UnpricedOperatorWarning, total
from budgeted.freezing import NeverFreeze, StepView
from budgeted.plugin import AdaptiveFreezing
from tests.nets import seeded
from tests.plugin.architectures import TEN_ARCHITECTURES, Architecture, PreNormVision, RotaryDecoder
from tests.plugin.unseen import UNSEEN, Sound

ARCHITECTURES = {**TEN_ARCHITECTURES, **UNSEEN}


def built(case: Architecture) -> nn.Module:
    """The net with every parameter drawn, so that no gradient is zero by its start."""
    model = seeded(case.build)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model


def loss_of(model: nn.Module, case: Architecture) -> Tensor:
    return case.loss(model(*case.inputs, **case.keywords), case.targets)


@dataclass(frozen=True)
class First(NeverFreeze):
    """Freeze as many of the first blocks as `n` says at the moment."""

    n: list[int]

    def decide(self, view: StepView) -> frozenset[int]:
        return frozenset(range(self.n[0]))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_blocks_prices_and_gradients_of_every_prefix(name: str) -> None:
    case = ARCHITECTURES[name]
    model = built(case)
    dropout = torch.get_rng_state()
    loss_of(model, case).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    count = [0]
    freezing = AdaptiveFreezing(model, policy=First(count), example=case.inputs, keywords=case.keywords)
    chain = freezing.chain
    assert " ".join(block.name for block in chain.blocks) == case.blocks
    owned = [parameter for block in range(len(chain)) for parameter in chain.owned(block)]
    assert sorted([*owned, *chain.unused]) == sorted(chain.trace.parameter_names)  # each once, none lost
    prices = []
    for n in range(len(chain)):
        count[0] = n
        model.zero_grad()
        torch.set_rng_state(dropout)
        with ExecutedOps() as forward:
            loss = loss_of(model, case)
        with ExecutedOps() as backward:
            done = freezing.backward(loss)
        assert done.frozen == frozenset(range(n))
        assert done.costs["forward"].real == pytest.approx(forward.total, rel=0.01)
        assert done.costs["backward"].real == pytest.approx(backward.total, rel=0.01), n
        prices.append(done.costs["backward"].real)
        resting = chain.frozen_parameters(range(n))
        for parameter_name, parameter in model.named_parameters():
            if parameter_name in resting:
                assert parameter.grad is None, parameter_name
            elif full[parameter_name] is not None:
                torch.testing.assert_close(parameter.grad, full[parameter_name], rtol=1e-4, atol=1e-6)
    assert prices == sorted(prices, reverse=True)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_adaptive_training_charges_what_it_executes_and_leaves_the_frozen_alone(name: str) -> None:
    case = ARCHITECTURES[name]
    model = built(case)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, ema=1.0, ema_start="first")
    for _ in range(5):
        optimizer.zero_grad()
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        moments = copy.deepcopy(optimizer.state_dict()["state"])
        before = freezing.spent
        with ExecutedOps() as executed:
            done = freezing.backward(loss_of(model, case))
            optimizer.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
        assert total(done.costs.values()).real <= (freezing.spent - before).real
        resting = freezing.chain.frozen_parameters(done.frozen)
        trained = [name for name, p in model.named_parameters() if p.grad is not None]
        assert not resting.intersection(trained)
        for parameter_name, parameter in model.named_parameters():
            if parameter_name in resting:
                assert torch.equal(parameter, weights[parameter_name])
        indices = {id(p): i for i, p in enumerate(optimizer.param_groups[0]["params"])}
        for parameter_name in resting:
            index = indices.get(id(model.get_parameter(parameter_name)))
            for key, value in moments.get(index, {}).items():
                assert torch.equal(value, optimizer.state_dict()["state"][index][key])


def test_where_a_trained_matrix_lies_below_the_price_says_that_freezing_saves_less() -> None:
    """Tied embeddings: the head keeps the words' matrix trained, so gradients still flow down to it."""
    case = TEN_ARCHITECTURES["tied rotary decoder"]
    saved = {}
    for tied in (True, False):
        model = seeded(partial(RotaryDecoder, tied))
        freezing = AdaptiveFreezing(model, policy="constant", n=4)
        loss = loss_of(model, case)
        with ExecutedOps() as executed:
            done = freezing.backward(loss)
        assert done.costs["backward"].real == pytest.approx(executed.total, rel=0.01)
        saved[tied] = done.frozen_share
        assert (model.get_parameter("embed.weight").grad is None) != tied
    assert saved[False] > 0.8
    assert saved[True] < 0.6 * saved[False]


def test_blocks_fixed_by_the_user_save_nothing_when_frozen_again() -> None:
    case = TEN_ARCHITECTURES["parts frozen already"]
    model = built(case)
    shares = []
    for n in (0, 3, 4):
        freezing = AdaptiveFreezing(model, policy="constant", n=n)
        shares.append(freezing.backward(loss_of(model, case)).frozen_share)
        freezing.remove()
        model.zero_grad()
    assert shares[:2] == [0.0, 0.0]
    assert shares[2] > 0.2


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = PreNormVision()

    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Backbone(PreNormVision):
    """Positions and class token are read in its own forward, and the head lies outside."""

    def forward(self, x: Tensor) -> Any:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.norm(self.blocks(x))[:, 0]


def test_a_model_inside_another_module_has_the_same_blocks() -> None:
    plain = TEN_ARCHITECTURES["pre-norm, absolute positions"].blocks.split()
    images = TEN_ARCHITECTURES["pre-norm, absolute positions"].inputs
    wrapped = AdaptiveFreezing(Wrapped(), example=images).chain
    assert [block.name for block in wrapped.blocks] == [f"net.{name}" for name in plain]
    under = AdaptiveFreezing(nn.Sequential(Backbone(), nn.Linear(32, 10)), example=images).chain
    assert [block.name for block in under.blocks] == [*(f"0.{name}" for name in plain[:-1]), "1"]


def test_an_operator_without_a_price_is_named_and_may_be_left_out() -> None:
    """Weight norm is one fused operator that nobody prices: what is left out is little, and gradients are right."""
    case = UNSEEN["sound"]
    model = seeded(partial(Sound, True))
    with pytest.raises(UnpricedOperator, match="_weight_norm_interface"):
        AdaptiveFreezing(model, example=case.inputs)
    loss_of(model, case).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    with pytest.warns(UnpricedOperatorWarning, match="_weight_norm_interface"):
        freezing = AdaptiveFreezing(model, policy="constant", n=2, example=case.inputs, unpriced="warn")
    freezing.backward(loss_of(model, case))
    for name, parameter in model.named_parameters():
        if name in freezing.chain.frozen_parameters(range(2)):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, full[name], rtol=1e-4, atol=1e-6)
