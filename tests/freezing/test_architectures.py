"""Nets of many families: their block chains, prices against what is executed, gradients."""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from budgeted.audit import ExecutedOps
from budgeted.budget import Pricer, UnpricedOperator, total, trace
from budgeted.errors import BudgetedError
from budgeted.freezing import ConstantPrefix, LayerFreezing, NeverFreeze, NoBlockChain, block_chain
from budgeted.freezing.chain import BlockChain, chain_of_trace
from tests.freezing.families import CASES, VECTORS, Case, built, cross_entropy


def chain_and_pricer(model: nn.Module, case: Case) -> tuple[BlockChain, Pricer]:
    traced = trace(model, case.inputs, case.keywords, cross_entropy)
    chain = chain_of_trace(model, traced)
    return chain, Pricer(traced, chain.block_of, len(chain))


def frozen_sets(chain: BlockChain) -> Iterator[tuple[int, ...]]:
    last = len(chain) - 1
    yield from dict.fromkeys(
        [(), (0,), tuple(range(last // 2)), tuple(range(1, last)), (last - 1,), tuple(range(last))]
    )


def trained(model: nn.Module, chain: BlockChain, frozen: tuple[int, ...]) -> list[nn.Parameter]:
    resting = chain.frozen_parameters(frozen)
    return [p for name, p in model.named_parameters() if p.requires_grad and name not in resting]


@pytest.mark.parametrize("name", CASES)
def test_blocks(name: str) -> None:
    case = CASES[name]
    chain = block_chain(built(case), case.inputs, case.keywords)
    assert " ".join(block.name for block in chain.blocks) == case.blocks
    parameters = [name for block in chain.blocks for name in block.parameters]
    assert set(parameters) | set(chain.unused) == set(chain.trace.parameter_names)


@pytest.mark.parametrize("name", CASES)
def test_price_is_what_is_executed(name: str) -> None:
    case = CASES[name]
    model = built(case)
    chain, pricer = chain_and_pricer(model, case)
    for frozen in frozen_sets(chain):
        model.zero_grad()
        with ExecutedOps() as forward:
            loss = cross_entropy(model(*case.inputs, **case.keywords))
        with ExecutedOps() as backward:
            loss.backward(inputs=trained(model, chain, frozen))
        assert total(pricer.forward()).real == pytest.approx(forward.total, rel=0.01)
        assert total(pricer.backward(chain.trained(frozen))).real == pytest.approx(backward.total, rel=0.01), frozen


@pytest.mark.parametrize("mode", ["eval", "channels_last", "one image", "layer granularity"])
def test_price_in_other_modes(mode: str) -> None:
    case = CASES["bottleneck"]
    model, images = built(case).train(mode != "eval"), case.inputs[0]
    if mode == "channels_last":
        images = images.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.cat([images, images], 3)[:1] if mode == "one image" else images
    traced = trace(model, (images,), loss=cross_entropy)
    chain = chain_of_trace(model, traced, "layer" if mode == "layer granularity" else "block")
    for frozen in [(), (0, 1), (1, 3)]:
        model.zero_grad()
        with ExecutedOps() as forward:
            loss = cross_entropy(model(images))
        with ExecutedOps() as backward:
            loss.backward(inputs=trained(model, chain, frozen))
        assert total(Pricer(traced).forward()).real == pytest.approx(forward.total, rel=0.01)
        assert total(Pricer(traced).backward(chain.trained(frozen))).real == pytest.approx(backward.total, rel=0.01)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_a_full_backward(name: str) -> None:
    case = CASES[name]
    model = built(case)
    chain = block_chain(model, case.inputs, case.keywords)
    dropout = torch.get_rng_state()

    def gradients(frozen: tuple[int, ...]) -> dict[str, Tensor | None]:
        torch.set_rng_state(dropout)  # the same masks again
        model.zero_grad()
        loss = cross_entropy(model(*case.inputs, **case.keywords))
        loss.backward(inputs=trained(model, chain, frozen))
        return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}

    full = gradients(())
    for frozen in frozen_sets(chain):
        resting = chain.frozen_parameters(frozen)
        for parameter, gradient in gradients(frozen).items():
            if parameter in resting:
                assert gradient is None
            elif full[parameter] is not None:
                torch.testing.assert_close(gradient, full[parameter], rtol=1e-4, atol=1e-6)


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Reversal(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return self[1](Custom.apply(self[0](x)))  # type: ignore[no-untyped-call]


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return self[2](checkpoint(self[1], self[0](x), use_reentrant=False))


class Reused(nn.Sequential):
    """ALBERT: one layer, several times."""

    def forward(self, x: Tensor) -> Any:
        x = self[0](x)
        for _ in range(3):
            x = F.relu(self[1](x))
        return self[2](x)


class LateReuse(nn.Sequential):
    """The encoder reads two inputs side by side before it reads its own output."""

    def forward(self, x: Tensor) -> Any:
        return self[1](self[0](self[0](x) + self[0](x.flip(0))))


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        state = x.new_zeros(len(x), 8)
        for part in x.view(len(x), 4, 4).unbind(1):
            state = self.cell(part, state)
        return self.head(state)


class DataDependent(nn.Sequential):
    def forward(self, x: Tensor) -> Any:
        return self[1](self[0](x) if x.sum() > 0 else -self[0](x))


class Caching(nn.Sequential):
    """Makes a table on the first call and keeps it, as rotary embeddings and attention masks do."""

    table: Tensor | None = None

    def forward(self, x: Tensor) -> Any:
        if self.table is None:
            self.table = torch.arange(32.0).cos()
        return self[1](self[0](x) * self.table)


def test_recurrence_is_refused_with_the_reason() -> None:
    stack = (nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 5))
    late = LateReuse(nn.Linear(16, 16), nn.Linear(16, 5))
    for model, reason in [(Cells(), "cell"), (Reused(*stack), "3 times"), (late, "its own output")]:
        with pytest.raises(NoBlockChain, match=reason):
            block_chain(model, VECTORS)


def test_custom_functions_are_refused() -> None:
    with pytest.raises(UnpricedOperator, match=r"autograd\.Function"):
        LayerFreezing(Reversal(nn.Linear(16, 32), nn.Linear(32, 5)), NeverFreeze(), VECTORS)


def test_checkpointed_recomputation_is_priced_or_refused() -> None:
    inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    model = Checkpointed(nn.Linear(16, 32), inner, nn.Linear(32, 20))
    try:
        priced = total(Pricer(trace(model, VECTORS, loss=cross_entropy)).backward()).real
    except BudgetedError:
        return
    loss = cross_entropy(model(*VECTORS))
    with ExecutedOps() as executed:
        loss.backward()
    assert priced == pytest.approx(executed.total, rel=0.01)


def test_data_dependent_control_flow_is_not_called_a_wrong_shape() -> None:
    with pytest.raises(BudgetedError) as refused:
        block_chain(DataDependent(nn.Linear(16, 32), nn.Linear(32, 5)), VECTORS)
    assert "right shape" not in str(refused.value)


def test_tracing_leaves_nothing_in_the_model() -> None:
    model = Caching(nn.Linear(16, 32), nn.Linear(32, 5))
    freezing = LayerFreezing(model, ConstantPrefix(1), VECTORS)
    outputs = model(*VECTORS)
    assert type(outputs) is Tensor
    freezing.backward(cross_entropy(outputs))


def test_a_forward_put_on_the_object_runs_on_the_double() -> None:
    """Else the trace would see the parameters of the real model, and leave its tensors without data there."""
    model = Caching(nn.Linear(16, 32), nn.Linear(32, 5))
    chain = block_chain(model, VECTORS)
    model.forward = MethodType(type(model).forward, model)  # type: ignore[method-assign]
    assert block_chain(model, VECTORS).blocks == chain.blocks
    assert type(model(*VECTORS)) is Tensor


def test_tracing_inside_autocast_leaves_nothing_in_its_cache() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 5))
    with torch.autocast("cpu", torch.bfloat16):
        LayerFreezing(model, NeverFreeze(), VECTORS)
        assert type(model(*VECTORS)) is Tensor
