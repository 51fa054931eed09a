"""Other norms: what a layer computes, by hand; priced as executed; resumed; published models are as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from budgeted import models
from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.models.normalisation import ContinualNorm, Normalisation, normalised
from tests.bright_rows import SHAPE, samples
from tests.learner.small import images, make, settings_of

SAMPLES = list(samples(32))


def by_hand(values: Tensor, groups: int, epsilon: float) -> Tensor:
    """Each sample's groups of channels to mean 0 and variance 1."""
    grouped = values.view(len(values), groups, -1)
    mean = grouped.mean(2, keepdim=True)
    variance = (grouped - mean).square().mean(2, keepdim=True)
    return ((grouped - mean) / (variance + epsilon).sqrt()).view_as(values)


def learner_with(name: str, kind: str, model: nn.Module | None = None) -> Learner:
    settings = settings_of(METHODS[name], normalisation=kind, norm_groups=4)
    return make(name, model or models.build("cnn8", input_shape=SHAPE), settings=settings)


def feed(learner: Learner, start: int, end: int) -> None:
    for image, label in SAMPLES[start:end]:
        learner.learn(image, label)


@pytest.mark.parametrize("kind", ["group", "continual"])
def test_a_layer_computes_what_its_name_says(kind: Normalisation) -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12, eps=1e-3))
    norm, weight, bias = model[1], torch.rand(12, generator=generator), torch.rand(12, generator=generator)
    assert isinstance(norm, nn.BatchNorm2d)
    norm.weight.data, norm.bias.data = weight, bias
    values = 3 * torch.randn(5, 12, 6, 6, generator=generator) + 1
    assert normalised(model, kind, 8) is model
    wanted = by_hand(values, 4, 1e-3)  # 8 groups do not divide 12 channels
    if kind == "continual":
        mean, variance = wanted.mean((0, 2, 3)), wanted.var((0, 2, 3), correction=0)
        wanted = (wanted - mean[:, None, None]) / (variance + 1e-3).sqrt()[:, None, None]
    torch.testing.assert_close(model[1](values), weight[:, None, None] * wanted + bias[:, None, None])
    before = [*model.modules()]
    assert [*normalised(model, kind, 8).modules()] == before  # once is enough


def test_every_batch_norm_is_replaced_and_published_models_stay_as_they_are() -> None:
    plain = models.build("resnet20", seed=3)
    assert normalised(plain, "batch", 8) is plain
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    grouped = normalised(models.build("resnet20", seed=3), "group", 8)
    assert sum(isinstance(module, nn.GroupNorm) for module in grouped.modules()) == norms
    assert not any(isinstance(module, nn.BatchNorm2d) for module in grouped.modules())
    continual = normalised(models.build("resnet20", seed=3), "continual", 8)
    assert sum(isinstance(module, ContinualNorm) for module in continual.modules()) == norms
    weights = [dict(each.named_parameters())["stem.0.weight"] for each in (plain, grouped, continual)]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(("name", "kind"), [("vanilla", "group"), ("al-sar", "continual"), ("clib", "group")])
def test_charged_as_run_and_resumed_exactly(name: str, kind: str, tmp_path: Path) -> None:
    learner = learner_with(name, kind)
    feed(learner, 0, 16)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", models.build("cnn8", input_shape=SHAPE))
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        feed(learner, 16, 32)
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.01)
    feed(again, 16, 32)
    assert weights_digest(learner) == weights_digest(again)
    assert torch.equal(learner.logits(images(4)), again.logits(images(4)))


def test_group_norm_has_no_statistics_to_keep() -> None:
    batch, group = (learner_with("vanilla", kind).nbytes_by_item() for kind in ("batch", "group"))
    assert "buffers" not in group
    assert group["parameters"] == batch["parameters"]


def test_a_model_without_batch_norm_is_refused() -> None:
    with pytest.raises(BudgetedError, match="takes the place of batch norms, and MultilayerPerceptron has none"):
        learner_with("vanilla", "group", models.build("mlp", input_shape=SHAPE))
