"""Batches that go through a model together come out as they would one after the other, and leave the same behind."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted import models
from budgeted.network.views import NormsApart


class ByName(nn.Module):
    """Batch norm called as a function, its arguments by name."""

    mean: Tensor
    variance: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, images: Tensor) -> Tensor:
        normal = F.batch_norm(input=images, running_mean=self.mean, running_var=self.variance, training=self.training)
        return normal.mean((2, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "resnet20": lambda: models.build("resnet20", classes=4, input_shape=(3, 8, 8), seed=1),
    "by name": ByName,
    "over features": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.BatchNorm1d(5)),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_one_after_the_other(name: str) -> None:
    apart = MODELS[name]().double()
    together = copy.deepcopy(apart)
    images = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    images[:4] += 2  # a batch norm over all of them would see it
    expected = torch.cat([apart(part) for part in images.chunk(3)])
    with NormsApart(3):
        found = together(images)
    torch.testing.assert_close(found, expected)
    for outputs, model in ((expected, apart), (found, together)):
        if any(True for _ in model.parameters()):
            outputs.square().sum().backward()
    for mine, other in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)
    statistics = [{k: v for k, v in m.named_buffers() if "tracked" not in k} for m in (together, apart)]
    torch.testing.assert_close(*statistics)
    assert not torch.allclose(together(images), expected)  # outside, and so over all


def test_in_evaluation_nothing_is_apart() -> None:
    model = MODELS["resnet20"]().eval()
    images = torch.randn(5, 3, 8, 8)  # no equal parts
    expected = model(images)
    with NormsApart(4):
        assert torch.equal(model(images), expected)
