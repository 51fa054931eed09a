"""Steps of a tiny LLaVA with adapters: charged as executed, with the gradients of a full backward; what rests stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.freezing import LayerFreezing, NeverFreeze, StepView
from budgeted.models.llava_lora import PROJECTOR, SMALL
from budgeted.plugin import AdaptiveFreezing
from tests.multimodal.small import adapted, uneven

BLOCKS = [
    "language_model.embed_tokens",
    "vision_tower.embeddings",
    *(f"vision_tower.encoder.layers.{i}" for i in range(3)),
    f"{PROJECTOR}.modules_to_save.default.linear_1",
    f"{PROJECTOR}.modules_to_save.default.linear_2",
    *(f"language_model.layers.{i}" for i in range(6)),
]
MOST = 12  # the last decoder layer is the last block that is trained: the head is not
ORDERS: dict[str, tuple[str, ...]] = {"projector in the prefix": (), "projector always trained": (PROJECTOR,)}


@dataclass(frozen=True)
class Growing(NeverFreeze):
    """One block more in every step."""

    def decide(self, view: StepView) -> frozenset[int]:
        return view.prefix(view.step)


def loss_of(model: nn.Module) -> Tensor:
    # as a Trainer calls it: the answers' tokens of all micro-batches divide the sum
    loss: Tensor = model(**uneven(), num_items_in_batch=torch.tensor(7), use_cache=False).loss
    return loss


def moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[Tensor]:
    return [value.clone() for _, value in sorted(optimizer.state[parameter].items())]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("order", ORDERS)
def test_at_every_prefix(order: str, checkpointing: bool) -> None:
    model, always = adapted(checkpointing=checkpointing), ORDERS[order]
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    full = dict(zip(trained, torch.autograd.grad(loss_of(model), list(trained.values())), strict=True))
    # a rate of 0 leaves the weights, so that the gradients stay the same; the moments move
    optimizer = torch.optim.AdamW(trained.values(), lr=0.0, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, policy=Growing(), always=always)
    backwards = []
    for frozen in range(MOST + 1):
        before, states = freezing.spent, {name: moments(optimizer, one) for name, one in trained.items()}
        optimizer.zero_grad()
        with ExecutedOnData() as executed:
            step = freezing.backward(loss_of(model))
            optimizer.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
        backwards.append(step.costs["backward"].real)
        assert step.frozen == set(range(frozen)) - ({5, 6} if always else set())
        resting = {name for block in range(frozen) for name in freezing.chain.blocks[block].parameters}
        for name, parameter in trained.items():
            same = [torch.equal(a, b) for a, b in zip(states[name], moments(optimizer, parameter), strict=False)]
            if name in resting and not (always and PROJECTOR in name):
                assert parameter.grad is None, name
                assert all(same), name
            else:
                assert parameter.grad is not None, name
                assert torch.equal(parameter.grad, full[name]), name
                assert not frozen or not all(same), name
    assert [block.name.partition("model.model.model.")[2] for block in freezing.chain.blocks[:-1]] == BLOCKS
    assert len(freezing.chain) == MOST + 2
    assert backwards == sorted(backwards, reverse=True)
    saved = 1 - backwards[-1] / backwards[0]
    assert saved < 0.15 if always else saved > 0.6


def test_frozen_adapters_are_bit_identical_after_a_real_step() -> None:
    model = adapted(replace(SMALL, projector=False))
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora" in name for name in trained)
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-2)
    freezing = AdaptiveFreezing(model, optimizer, policy="constant", n=9)
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    for _ in range(2):
        optimizer.zero_grad()
        freezing.backward(loss_of(model))
        optimizer.step()
    resting = {name for block in freezing.frozen for name in freezing.chain.blocks[block].parameters}
    still = {name for name, parameter in trained.items() if torch.equal(parameter, before[name])}
    assert still == resting & set(trained)
    assert {name.split("layers.")[1][0] for name in still} == {"0", "1"}


def test_what_is_always_trained_counts_with_the_head() -> None:
    sums = {}
    for order, always in ORDERS.items():
        model = adapted()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        freezing = AdaptiveFreezing(model, optimizer, always=always, ema=1.0, ema_start="first")
        freezing.backward(loss_of(model))
        sums[order] = list(freezing.policy.fisher.values())  # type: ignore[attr-defined]
    inside, outside = sums.values()
    assert min(inside[5:7]) > 0
    assert outside[5:7] == [0.0, 0.0]
    assert inside[-1] == 0  # the head is not trained
    assert outside[-1] == pytest.approx(sum(inside[5:7]))
    assert outside[7:-1] == inside[7:-1]


def test_a_name_that_no_module_has_is_refused() -> None:
    with pytest.raises(BudgetedError, match="no parameter lies under a module 'projectr'"):
        LayerFreezing(adapted(), "none", (), keywords=uneven(), always=["projectr"])


def test_inputs_that_require_gradients_make_no_backward_longer() -> None:
    """`enable_input_require_grads` drives a plain backward down to the embedding; a backward towards parameters not."""
    counts: dict[tuple[bool, bool], int] = {}
    for plain, asked in ((True, False), (True, True), (False, True)):
        model: Any = adapted(replace(SMALL, projector=False))
        if asked:
            model.enable_input_require_grads()
        freezing = None if plain else AdaptiveFreezing(model, policy="none")
        with ExecutedOnData() as executed:
            loss = loss_of(model)
            if freezing is None:
                loss.backward()
            else:
                freezing.backward(loss)
        counts[plain, asked] = executed.total
        assert freezing is None or freezing.spent.real == pytest.approx(executed.total, rel=0.01)
    assert counts[False, True] == counts[True, False]
    assert counts[True, True] > 1.02 * counts[True, False]
