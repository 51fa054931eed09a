"""What the audit's tests share: inputs, counts of one piece of work, a small net and its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from budgeted.audit import ExecutedOps

Function = Callable[..., Any]


def draw(*size: int, grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(size))
    return torch.randn(*size, generator=generator).requires_grad_(grad)


def count(work: Function, *inputs: Any) -> int:
    with ExecutedOps() as meter:
        work(*inputs)
    return int(meter.total)


def passes(function: Function, *inputs: Any) -> tuple[int, int]:
    """Counts of the forward pass, and of the backward pass from a ready-made output gradient."""
    meter = ExecutedOps()
    with meter, meter.phase("forward"):
        result = function(*inputs)
    gradient = torch.ones_like(result)
    with meter, meter.phase("backward"):
        result.backward(gradient)
    assert meter.total == sum(meter.by_phase.values()) == sum(meter.by_operator.values())
    return meter.by_phase["forward"], meter.by_phase["backward"]


def trainable(module: Any, weight: bool, bias: bool) -> Any:
    module.weight.requires_grad_(weight)
    module.bias.requires_grad_(bias)
    return module


def residual_net() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(x + self.inner(x))

    stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    return nn.Sequential(stem, nn.BatchNorm2d(8), Block(), Block(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))  # fmt: skip


def data(batch: int) -> tuple[Tensor, Tensor]:
    return draw(batch, 3, 8, 8), torch.arange(batch) % 5


def loss_of(net: nn.Module, images: Tensor, target: Tensor) -> Any:
    return functional.cross_entropy(net(images), target)


def train_step(net: nn.Module, batch: int, inputs: list[nn.Parameter] | None = None) -> ExecutedOps:
    net.zero_grad()
    images, target = data(batch)
    meter = ExecutedOps()
    with meter:
        with meter.phase("forward"):
            loss = loss_of(net, images, target)
        with meter.phase("backward"):
            loss.backward(inputs=inputs)
    return meter
