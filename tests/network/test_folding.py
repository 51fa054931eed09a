"""Folded, a model answers as it does unfolded, and is afterwards what it was before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from budgeted import models
from budgeted.network.folding import foldable, folded
from budgeted.runs.config import RunConfig
from budgeted.runs.run import start


def drawn(model: nn.Module) -> nn.Module:
    """With statistics, scales and shifts that are not those of the first day."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.3, 3, generator=generator)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2, generator=generator)
                nn.init.normal_(module.bias, generator=generator)
    return model.eval()


def norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "cnn8"])
def test_the_same_answers_and_afterwards_the_same_model(name: str) -> None:
    model = drawn(models.build(name, classes=10, input_shape=(3, 32, 32)))
    images = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    own = list(model.parameters())
    assert len(foldable(model)) == norms(model) > 0
    with torch.no_grad():
        plain = model(images)
        with folded(model):
            ours = model(images)
            assert not torch.equal(ours, plain)  # it did happen
        again = model(images)
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3 * plain.abs().max().item())
    assert torch.equal(again, plain)
    assert all(one is other for one, other in zip(own, model.parameters(), strict=True))
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key


def test_an_error_inside_leaves_the_model_as_it_was() -> None:
    convolution = nn.Conv2d(3, 4, 3, bias=False)
    model = drawn(nn.Sequential(convolution, nn.BatchNorm2d(4, affine=False)))
    weight, images = convolution.weight, torch.randn(2, 3, 8, 8)
    plain = model(images)
    with pytest.raises(RuntimeError, match="channels"), folded(model):
        model(torch.randn(2, 5, 8, 8))
    assert convolution.weight is weight
    assert convolution.bias is None
    assert torch.equal(model(images), plain)


class Twice(nn.Module):
    """A convolution that somebody else reads, too, and a norm that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.norm, self.shared = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.first(images)
        found: Tensor = self.shared(self.second(self.norm(maps) + maps)) + self.shared(self.third(images))
        return found


class Unfollowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3))

    def forward(self, images: Tensor) -> Tensor:
        if images.sum() > 0:
            images = self.layers(images)
        return images


@pytest.mark.parametrize("kind", [Twice, Unfollowed])
def test_what_cannot_be_folded_stays_as_it_is(kind: type[nn.Module]) -> None:
    model, images = drawn(kind()), torch.rand(2, 3, 4, 4)
    assert not foldable(model)
    with folded(model):
        ours = model(images)
    assert torch.equal(ours, model(images))


@pytest.mark.parametrize("settings", [{}, {"learner.norms": "memory"}])
def test_a_run_that_folds_is_the_same_run_with_nearly_its_answers(settings: dict[str, str], tmp_path: Path) -> None:
    """Averages, and statistics measured from the memory, are what is folded."""
    config = RunConfig(method="cram", model="cnn8", limit=60, eval_every=30, slots=30, settings=settings)
    plain = start(config, tmp_path / "plain")
    ours = start(replace(config, eval_folded=True), tmp_path / "ours")
    beside = start(replace(config, eval_folded=True, eval_beside=True), tmp_path / "beside")
    assert ours["weights_sha256"] == plain["weights_sha256"]
    assert ours["a_auc"] == pytest.approx(plain["a_auc"], abs=0.003)  # one of 360 images
    assert ours["a_auc"] == beside["a_auc"]
    assert ours["eval_compute"] == plain["eval_compute"]
