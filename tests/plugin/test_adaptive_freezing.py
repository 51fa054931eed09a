"""The plug-in in a plain loop: found blocks, physical freezing, the ledger, and a resume that is exact."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import budgeted
from budgeted import models
from budgeted.audit import ExecutedOps
from budgeted.budget import BudgetSpent, Compute, Ledger, total
from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing import AdaptivePrefix, LayerFreezing
from budgeted.plugin import AdaptiveFreezing
from tests.nets import NETS, images, loss_of, seeded

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, foreach=False),
}


def cnn() -> nn.Module:
    return seeded(lambda: models.build("cnn8", classes=10))


def batches(count: int, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [images(generator) for _ in range(count)]


def test_it_is_exported_and_cheap_to_import() -> None:
    assert budgeted.AdaptiveFreezing is AdaptiveFreezing
    with pytest.raises(AttributeError, match="Freezer"):
        budgeted.Freezer  # noqa: B018


@pytest.mark.parametrize("net", ["plain cnn", "dense", "vit", "tied decoder"])
def test_the_first_training_forward_shows_the_chain(net: str) -> None:
    inputs, targets = NETS[net].batch(torch.Generator().manual_seed(0))
    model = seeded(NETS[net].build)
    given = LayerFreezing(model, "none", (inputs,)).chain
    freezing = AdaptiveFreezing(model)
    with pytest.raises(BudgetedError, match="run a training forward"):
        _ = freezing.chain
    with torch.no_grad():
        model(inputs)  # no training forward
    with pytest.raises(BudgetedError, match="training forward"):
        freezing.backward(torch.ones((), requires_grad=True))
    freezing.backward(loss_of(model(inputs), targets))
    assert freezing.chain.blocks == given.blocks


@pytest.mark.parametrize(("policy", "optimizer"), [("constant", "sgd"), ("adaptive", "adamw"), ("adaptive", "rmsprop")])
def test_every_step_charges_what_it_executes(policy: str, optimizer: str) -> None:
    model = cnn()
    chosen = OPTIMIZERS[optimizer](model.parameters())
    settings: dict[str, Any] = {"ema": 1.0, "ema_start": "first"} if policy == "adaptive" else {"n": 3}
    freezing = AdaptiveFreezing(model, chosen, policy=policy, **settings)
    sizes = []
    for inputs, targets in batches(6):
        before = freezing.spent
        chosen.zero_grad()
        with ExecutedOps() as executed:
            loss = F.cross_entropy(model(inputs), targets)
            done = freezing.backward(loss)
            chosen.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
        sizes.append(len(done.frozen))
        assert freezing.frozen == done.frozen
    assert max(sizes) > 0
    assert freezing.steps == freezing.ledger.steps == 6
    assert 0 < freezing.frozen_share < 1
    assert str(freezing.spent) in repr(freezing)


def test_frozen_blocks_rest_and_the_others_get_a_full_backwards_gradient() -> None:
    model, (inputs, targets) = cnn(), batches(1)[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):  # moments that would move a parameter with a gradient of zero
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.zero_grad()
    F.cross_entropy(model(inputs), targets).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    optimizer.zero_grad()
    freezing = AdaptiveFreezing(model, optimizer, policy="constant", n=4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    freezing.backward(F.cross_entropy(model(inputs), targets))
    resting = freezing.chain.frozen_parameters(range(4))
    assert freezing.frozen_names == tuple(block.name for block in freezing.chain.blocks[:4])
    for name, parameter in model.named_parameters():
        if name in resting:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, full[name], rtol=1e-5, atol=1e-7)
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in resting)


def run(model: nn.Module, optimizer: Any, freezing: AdaptiveFreezing, data: Any) -> list[frozenset[int]]:
    decisions = []
    for inputs, targets in data:
        optimizer.zero_grad()
        decisions.append(freezing.backward(F.cross_entropy(model(inputs), targets)).frozen)
        optimizer.step()
    return decisions


@pytest.mark.parametrize(("policy", "given"), [("adaptive", False), ("adaptive", True), ("random", False)])
def test_resumed_from_the_users_checkpoint_it_ends_bit_for_bit_the_same(policy: str, given: bool) -> None:
    settings: dict[str, Any] = {"ema": 0.3, "ema_start": "corrected"} if policy == "adaptive" else {"n_max": 6}

    def make() -> tuple[nn.Module, torch.optim.Optimizer, AdaptiveFreezing]:
        model = cnn()
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        example = images(torch.Generator().manual_seed(3))[0] if given else None
        return model, optimizer, AdaptiveFreezing(model, optimizer, policy=policy, example=example, **settings)

    data = batches(24)
    whole = make()
    expected = run(*whole, data)
    first = make()
    decisions = run(*first, data[:11])
    file = io.BytesIO()
    torch.save([part.state_dict() for part in first], file)
    file.seek(0)
    second = make()
    for part, state in zip(second, torch.load(file, weights_only=True), strict=True):
        part.load_state_dict(state)  # type: ignore[attr-defined]
    assert second[2].steps == 11
    decisions += run(*second, data[11:])
    assert decisions == expected
    assert any(decisions[:11])  # blocks were frozen before and after the interruption
    assert any(decisions[11:])
    for mine, other in zip(whole[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(mine, other)
    assert whole[2].spent == second[2].spent
    assert json.dumps(whole[2].state_dict()["freezing"]) == json.dumps(second[2].state_dict()["freezing"])
    assert whole[2].frozen_share == second[2].frozen_share


def test_a_state_before_the_first_forward_is_passed_on() -> None:
    model, data = cnn(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5)
    assert freezing.state_dict()["freezing"] is None
    run(model, optimizer, freezing, data)
    other = AdaptiveFreezing(cnn(), ema=0.5)
    other.load_state_dict(freezing.state_dict())
    assert other.state_dict() == freezing.state_dict()
    with pytest.raises(BudgetedError, match="no saved state"):
        other.load_state_dict({"step": 3})


def test_a_budget_ends_training_before_a_step_it_cannot_pay() -> None:
    model, (inputs, targets) = cnn(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer, budget="2GFLOP")
    assert freezing.ledger.compute == Compute(2_000_000_000, "real")
    with pytest.raises(BudgetSpent, match="raise the compute budget"):
        run(model, optimizer, freezing, [(inputs, targets)] * 1000)
    assert 0 < freezing.spent.real <= 2_000_000_000
    assert freezing.steps == freezing.ledger.steps > 0
    ledger = Ledger()
    assert AdaptiveFreezing(cnn(), budget=ledger).ledger is ledger


def test_remove_leaves_model_and_optimizer_as_they_were() -> None:
    model, data = cnn(), batches(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer)
    run(model, optimizer, freezing, data)
    freezing.remove()
    for module in model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_losses_may_read_some_of_the_outputs_or_be_one() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body = nn.Linear(12, 64), nn.Linear(64, 64)
            self.head, self.side = nn.Linear(64, 5), nn.Linear(64, 7)

        def forward(self, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
            stem = F.relu(self.stem(x))
            side = self.side(stem)
            logits = self.head(F.relu(self.body(stem)))
            return {"loss": F.cross_entropy(logits, targets), "logits": logits, "side": side}

    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(9, 12, generator=generator), torch.randint(0, 5, (9,), generator=generator)
    for chosen in ("loss", "logits", "all"):
        model = seeded(Two)
        freezing = AdaptiveFreezing(model, policy="constant", n=1)
        for _ in range(2):
            model.zero_grad()
            before = freezing.spent
            with ExecutedOps() as executed:
                outputs = model(inputs, targets)
                if chosen == "loss":
                    loss = outputs["loss"]
                elif chosen == "logits":
                    loss = F.cross_entropy(outputs["logits"], targets) / 2
                else:
                    loss = outputs["loss"] + 0.1 * outputs["side"].square().mean()
                done = freezing.backward(loss)
            assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01), chosen
            assert total(done.costs.values()) == freezing.spent - before
        assert (model.get_parameter("side.weight").grad is None) == (chosen != "all")


def test_mistakes_are_said_in_one_line() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adaptive'"):
        AdaptiveFreezing(cnn(), policy="adaptve")
    with pytest.raises(BudgetedError, match="unknown setting"):
        AdaptiveFreezing(cnn(), policy="constant", m=3)
    with pytest.raises(BudgetedError, match="built already"):
        AdaptiveFreezing(cnn(), policy=AdaptivePrefix(), ema=0.1)
    with pytest.raises(BudgetedError, match="no torch module"):
        AdaptiveFreezing(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(BudgetedError, match="one process per device"):
        AdaptiveFreezing(nn.DataParallel(cnn()))
    with pytest.raises(BudgetedError, match="init_process_group"):
        AdaptiveFreezing(cnn(), distributed=True)


def test_evaluation_with_gradients_on_does_not_keep_graphs_alive() -> None:
    import gc
    import weakref

    model, data = cnn(), batches(2)
    freezing = AdaptiveFreezing(model)
    freezing.backward(F.cross_entropy(model(data[0][0]), data[0][1]))
    output = model(data[1][0])
    node = weakref.ref(output)
    del output
    gc.collect()
    assert node() is None


@pytest.mark.parametrize("when", ["before the first forward", "after it"])
def test_a_copy_of_the_model_is_nobodys_business(when: str) -> None:
    """Averaged weights are kept in a copy: it takes no hooks' owner along, and its forwards are not ours."""
    model, data = cnn(), batches(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer, batch_norm="hold")
    if when == "after it":
        run(model, optimizer, freezing, data[:1])
    twin = copy.deepcopy(model)
    spent = freezing.spent
    twin(data[1][0])
    loss = F.cross_entropy(model(data[2][0]), data[2][1])
    F.cross_entropy(twin(data[1][0]), data[1][1]).backward()
    freezing.backward(loss)
    optimizer.step()
    alone = AdaptiveFreezing(cnn(), torch.optim.SGD(cnn().parameters(), lr=0.1))
    alone.backward(F.cross_entropy(alone.model(data[2][0]), data[2][1]))
    assert (freezing.spent - spent).real == pytest.approx(alone.spent.real, rel=0.02)  # one forward, not three
    assert freezing.steps == (2 if when == "after it" else 1)
