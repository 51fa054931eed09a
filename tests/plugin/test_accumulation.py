"""Gradient accumulation: one decision per optimizer step, the sum of the gradients looked at, the price added up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.budget import BudgetSpent, Ledger, total
from budgeted.errors import BudgetedError
from budgeted.freezing import LayerFreezing
from budgeted.plugin import AdaptiveFreezing
from tests.nets import seeded


def plain() -> nn.Module:
    """Without batch norm, so that a batch in four parts gives the gradient of the whole."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 16), (16, 16)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))

    return seeded(build)


def data(steps: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(size, 3, 16, 16, generator=generator), torch.randint(0, 10, (size,), generator=generator))
        for _ in range(steps)
    ]


def parts(batch: tuple[Tensor, Tensor], count: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(batch[0].chunk(count), batch[1].chunk(count), strict=True))


SETTINGS: dict[str, Any] = {"ema": 0.5, "ema_start": "first"}


@pytest.mark.parametrize("say_more", [False, True], ids=["silent", "more"])
def test_ledger_is_what_is_executed_and_one_decision_is_taken(say_more: bool) -> None:
    model = plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, **SETTINGS)
    sizes = []
    for batch in data(9):
        before = freezing.spent
        optimizer.zero_grad()
        frozen = set()
        with ExecutedOps() as executed:
            for number, (inputs, targets) in enumerate(parts(batch, 4)):
                loss = F.cross_entropy(model(inputs), targets) / 4
                frozen.add(freezing.backward(loss, more=say_more and number < 3).frozen)
            optimizer.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
        assert len(frozen) == 1
        sizes.append(len(frozen.pop()))
    assert sizes[0] == sizes[4] == sizes[8] == 0  # refreshed
    assert max(sizes) > 0
    assert freezing.steps == freezing.ledger.steps == 9


def test_fisher_traces_are_those_of_the_summed_gradient() -> None:
    batch = data(1)[0]
    whole, split = plain(), plain()
    F.cross_entropy(whole(batch[0]), batch[1]).backward()
    freezing = AdaptiveFreezing(split, torch.optim.SGD(split.parameters(), lr=0.1), ema=1.0)
    for inputs, targets in parts(batch, 4):
        freezing.backward(F.cross_entropy(split(inputs), targets) / 4)
    squares = {name: float(p.grad.square().sum()) for name, p in whole.named_parameters() if p.grad is not None}
    expected = [sum(squares[name] for name in block.parameters) for block in freezing.chain.blocks]
    assert [*freezing.policy.fisher.values()] == pytest.approx(expected, rel=1e-4)  # type: ignore[attr-defined]
    assert freezing.policy.updates == {"fisher": 1, "gradient": 1}  # type: ignore[attr-defined]


def test_frozen_blocks_rest_in_every_part_and_gradients_are_those_of_the_whole_batch() -> None:
    batch = data(1)[0]
    whole, split = plain(), plain()
    F.cross_entropy(whole(batch[0]), batch[1]).backward()
    optimizer = torch.optim.SGD(split.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(split, optimizer, policy="random", n_max=3, seed=5)  # would draw anew in every part
    for inputs, targets in parts(batch, 4):
        done = freezing.backward(F.cross_entropy(split(inputs), targets) / 4)
        assert done.frozen == freezing.frozen
    assert freezing.frozen
    resting = freezing.chain.frozen_parameters(freezing.frozen)
    for (name, mine), full in zip(split.named_parameters(), whole.parameters(), strict=True):
        if name in resting:
            assert mine.grad is None
        else:
            torch.testing.assert_close(mine.grad, full.grad, rtol=1e-4, atol=1e-7)


def test_clipping_between_backward_and_step_does_not_shrink_the_traces() -> None:
    batch, traces = data(1)[0], []
    for clip in (False, True):
        model = plain()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        freezing = AdaptiveFreezing(model, optimizer, ema=1.0)
        for inputs, targets in parts(batch, 2):
            freezing.backward(F.cross_entropy(model(inputs), targets) / 2)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        traces.append([*freezing.policy.fisher.values()])  # type: ignore[attr-defined]
    assert traces[0] == traces[1]


def test_without_an_optimizer_more_says_that_the_step_goes_on() -> None:
    model = plain()
    freezing = AdaptiveFreezing(model, policy="random", n_max=3)
    decisions = []
    for batch in data(6):
        model.zero_grad()
        for number, (inputs, targets) in enumerate(parts(batch, 3)):
            done = freezing.backward(F.cross_entropy(model(inputs), targets) / 3, more=number < 2)
            decisions.append(done.frozen)
    assert all(decisions[i] == decisions[i + 1] == decisions[i + 2] for i in range(0, 18, 3))
    assert len(set(decisions)) > 1
    assert freezing.steps == freezing.ledger.steps == 6


def test_sums_into_gradients_left_from_before_are_charged() -> None:
    model, batch = plain(), data(1)[0]
    freezing = LayerFreezing(model, "none", batch[:1])
    fresh = freezing.backward(F.cross_entropy(model(batch[0]), batch[1]))
    again = freezing.backward(F.cross_entropy(model(batch[0]), batch[1]))
    added = total(again.costs.values()).real - total(fresh.costs.values()).real
    assert added == sum(p.numel() for p in model.parameters())


def test_a_part_that_cannot_be_paid_leaves_the_step_as_it_was() -> None:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (first, second) = parts(data(1)[0], 2)
    price = AdaptiveFreezing(model, example=first[0]).engine.most(first[0])
    freezing = AdaptiveFreezing(model, optimizer, budget=f"{int(1.5 * price.real)}FLOP", ema=0.5)
    freezing.backward(F.cross_entropy(model(first[0]), first[1]) / 2)
    state, spent = freezing.state_dict(), freezing.spent
    with pytest.raises(BudgetSpent):
        freezing.backward(F.cross_entropy(model(second[0]), second[1]) / 2)
    assert freezing.state_dict() == state
    optimizer.step()  # what was gathered may still be used, and is paid for
    assert spent.real < freezing.spent.real <= int(1.5 * price.real)


def test_held_statistics_stay_through_all_parts() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    norm = model.get_submodule("1")
    freezing = AdaptiveFreezing(
        model, torch.optim.SGD(model.parameters(), lr=0.1), policy="constant", n=1, batch_norm="hold"
    )
    generator = torch.Generator().manual_seed(0)
    before = [buffer.clone() for buffer in norm.buffers()]
    for _ in range(3):
        inputs = torch.randn(5, 6, generator=generator)
        freezing.backward(model(inputs).square().mean() / 3)
    assert all(torch.equal(old, new) for old, new in zip(before, norm.buffers(), strict=True))


def test_the_engine_closes_a_step_by_hand_too() -> None:
    model, ledger = plain(), Ledger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = data(1)[0]
    freezing = LayerFreezing(model, "none", batch[:1], optimizer=optimizer, ledger=ledger)
    freezing.backward(F.cross_entropy(model(batch[0]), batch[1]), more=True)
    assert ledger.spent_on["optimizer"].real == 0
    assert freezing.step == 0
    freezing.backward(F.cross_entropy(model(batch[0]), batch[1]))
    assert ledger.spent_on["optimizer"].real > 0
    assert freezing.step == ledger.steps == 1
    freezing.end_step()
    assert freezing.step == 1
    with pytest.raises(BudgetedError, match="both logits and targets"):
        freezing.backward(torch.ones(()), logits=torch.ones(1))
