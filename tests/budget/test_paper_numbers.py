"""Rule `paper` against the numbers in print."""

from __future__ import annotations

import pytest
import torch

from budgeted import models
from budgeted.budget import Cost, total
from budgeted.freezing import StepPrices
from budgeted.freezing.step_prices import Forward


def prices(name: str, size: int) -> tuple[StepPrices, Forward]:
    step = StepPrices(models.build(name, classes=1, input_shape=(3, size, size)))
    return step, step.forward([torch.empty(2, 3, size, size)])


@pytest.mark.parametrize(
    ("name", "size", "forward", "backward"),
    [
        ("resnet32", 32, 71_651_393, 143_298_690),
        ("resnet32", 224, 248_785_217, 497_557_890),
        ("resnet18", 224, 1_833_456_641, 3_666_888_194),
    ],
)
def test_per_image(name: str, size: int, forward: int, backward: int) -> None:
    step, example = prices(name, size)
    found = step.of(example)
    assert total(found.forward).paper == 2 * forward
    assert total(found.backward).paper == 2 * backward


@pytest.mark.parametrize(
    ("what", "name", "size", "images", "frozen", "terra"),
    [
        ("CIFAR-10, 1 iteration per sample, batch 16", "resnet32", 32, 16 * 50_000, 0, 171.94),
        ("the same, constant n = 8", "resnet32", 32, 16 * 50_000, 4, 147.12),
        ("the same, constant n = 16", "resnet32", 32, 16 * 50_000, 9, 109.48),
        ("CIFAR-100, 3 iterations per sample", "resnet32", 32, 3 * 16 * 50_000, 0, 515.82),
        ("CLEAR-10, 2 iterations per sample", "resnet32", 224, 2 * 16 * 30_000, 0, 716.5),
        ("ImageNet, batch 256, 0.0625 iterations per sample", "resnet18", 224, 16 * 1_281_167, 0, 112_750),
    ],
)
def test_totals_in_print(what: str, name: str, size: int, images: int, frozen: int, terra: float) -> None:
    step, example = prices(name, size)
    per_image = step.of(example, range(frozen)).total.paper / 2
    assert per_image * images / 1e12 == pytest.approx(terra, rel=3e-4), what


def test_middle_blocks_save_the_weight_half_only() -> None:
    step, example = prices("resnet32", 32)
    full, middle = step.of(example), step.of(example, {5})
    assert middle.backward[:5] == full.backward[:5]
    assert middle.backward[6:] == full.backward[6:]
    saved = full.backward[5] - middle.backward[5]
    convolutions = 2 * 16 * 16 * 9 * 32 * 32 * 2  # two 3x3 convolutions 16 -> 16 on 32 x 32, two images
    assert saved == Cost(convolutions, 2 * convolutions)
