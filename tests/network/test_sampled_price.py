"""What sampled gradients are charged is what was executed to collect them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from budgeted import models
from budgeted.network.sampled_gradients import SampledGradients, SampledStep
from tests.network.layers import CASES, Recurrent, built, channels_last, collect, mean_loss, random

# What torch says of even kernels with padding "same", and of attention in the oracle.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


class CountedOperations(TorchDispatchMode):
    """Counts arithmetic as it reaches the kernels."""

    ELEMENTWISE = frozenset({"mul", "mul_", "add", "add_", "sub", "sub_", "div", "rsqrt", "rsqrt_"})

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in self.ELEMENTWISE:
            self.operations += out.numel()
        elif name in ("sum", "mean"):
            self.operations += args[0].numel() + (out.numel() if name == "mean" else 0)
        elif name in ("mm", "bmm"):
            self.operations += 2 * out.numel() * args[0].shape[-1]
        return out


def counted(run: Callable[[], object]) -> int:
    counter = CountedOperations()
    with counter:
        run()
    return counter.operations


def executed_by_collecting(sampled: SampledGradients, model: nn.Module, x: Tensor) -> int:
    def plain() -> None:
        model.zero_grad()
        mean_loss(model(x)).backward()

    return counted(lambda: collect(sampled, model, x)) - counted(plain)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_the_price_is_what_is_executed(case: str, training: bool) -> None:
    build, shape = CASES[case]
    model = built(build).train(training)
    x = random(*shape)
    sampled = SampledGradients(model, fraction=0.5)
    step = collect(sampled, model, x)  # the index plans of these shapes are worked out here, once
    assert sampled.price(step.present) == executed_by_collecting(sampled, model, x) > 0


def test_the_price_of_shared_layers_and_tied_weights() -> None:
    model = built(Recurrent)
    x = random(5, 4)
    sampled = SampledGradients(model, fraction=1.0)
    step = collect(sampled, model, x)
    assert sampled.price(step.present) == executed_by_collecting(sampled, model, x) > 0


@pytest.mark.parametrize("prefix", [0, 6, 12])
def test_the_price_of_a_network_with_a_frozen_prefix(prefix: int) -> None:
    model = channels_last(models.build("resnet32", classes=10))
    x = random(4, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.tensor([0, 1, 2, 3])
    sampled = SampledGradients(model, exclude=["head"])
    stages = cast(nn.Sequential, model.stages)
    chain = [cast(nn.Module, model.stem), *(block for stage in stages for block in cast(nn.Sequential, stage))]
    unfrozen = [p for block in chain[prefix:] for p in block.parameters()]

    def plain() -> None:
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward(inputs=unfrozen)

    def collecting() -> SampledStep:
        with sampled:
            plain()
            return sampled.take()

    step = collecting()
    assert 0 < int(step.present.sum()) <= len(sampled)
    executed = counted(collecting) - counted(plain)
    assert sampled.price(step.present) == pytest.approx(executed, rel=0.01)
