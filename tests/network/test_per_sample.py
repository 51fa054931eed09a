"""Whole per-sample gradients against one ordinary backward for every sample by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from budgeted.audit import ExecutedOps
from budgeted.network import per_sample
from budgeted.network.per_sample import PerSampleGradients, flat
from tests.nets import NETS
from tests.network.layers import CASES, built, channels_last, random

# What torch says of even kernels with padding "same", and of attention under vmap.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same' with even"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
CLASSES = 3


def classifier(layer: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The layer, overwritten in place by what follows it, before a head."""
    with torch.no_grad():
        size = layer(torch.zeros(shape)).flatten(1).shape[1]
    return nn.Sequential(layer, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(size, CLASSES))


def labels_of(images: Tensor) -> Tensor:
    return torch.arange(len(images)) % CLASSES


def one_by_one(model: nn.Module, images: Tensor, labels: Tensor, together: int) -> dict[str, Tensor]:
    """A backward for each sample, and one for the mean loss of those that go together."""
    model.eval()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    alone = len(images) - together
    parts = [slice(i, i + 1) for i in range(alone)] + ([slice(alone, None)] if together else [])
    found = []
    for part in parts:
        loss = F.cross_entropy(model(images[part]), labels[part])
        gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True, materialize_grads=True)
        found.append(gradients)
    return {name: torch.stack([rows[number] for rows in found]) for number, name in enumerate(named)}


def assert_right(model: nn.Module, images: Tensor, together: int, by_layer: bool) -> None:
    model, images, labels = model.double(), images.double(), labels_of(images)
    gradients = PerSampleGradients(model)
    for _ in range(2):  # the first pass looks at the model, the second knows it
        rows = dict(gradients(images, labels, together))
        assert gradients.by_layer is by_layer
        expected = one_by_one(model, images, labels, together)
        assert rows.keys() == expected.keys()
        for name, right in expected.items():
            torch.testing.assert_close(rows[name], right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("together", [0, 2])
@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer(name: str, together: int) -> None:
    build, shape = CASES[name]
    model = built(lambda: classifier(build().eval(), shape))
    assert_right(model, random(*shape), together, by_layer=True)


@pytest.mark.parametrize("laid_out", [1, 400])
@pytest.mark.parametrize("name", ["conv2d uneven", "conv2d grouped", "conv3d", "linear over tokens"])
def test_a_few_samples_at_a_time(name: str, laid_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_sample, "_LAID_OUT", laid_out)
    build, (_, *sample) = CASES[name]
    shape = (7, *sample)
    assert_right(built(lambda: classifier(build(), shape)), random(*shape), 3, by_layer=True)


@pytest.mark.parametrize("name", ["resnet", "plain cnn", "separable", "dense"])
def test_whole_networks(name: str) -> None:
    model = channels_last(built(NETS[name].build))
    assert_right(model, random(5, 3, 8, 8).contiguous(memory_format=torch.channels_last), 2, by_layer=True)


class Twice(nn.Module):
    """A layer used twice, a weight that two layers have, a layer that is not used at all and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.other = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.first.weight
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.other(self.first(self.first(images).tanh()).tanh()).tanh()
        logits: Tensor = self.head(self.frozen(self.again(self.other(input=hidden)).tanh()))
        return logits


def test_uses_add_up() -> None:
    assert_right(built(Twice), random(5, 6), 2, by_layer=True)


class BehindTheBack(nn.Module):
    """Reads the weight of a layer that is also called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(F.linear(self.layer(images).tanh(), self.layer.weight.T).tanh())
        return logits


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head((self.scale * images).tanh())
        return logits


class PositionsAsBatch(nn.Module):
    """The positions of a sample are rows of the layer's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(2, 4), nn.Linear(12, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(images.reshape(-1, 2)).tanh().reshape(len(images), -1))
        return logits


class Without(nn.Module):
    """Normalised by what each batch is, also in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 12), nn.Linear(12, CLASSES)
        self.norm = nn.BatchNorm1d(4, affine=False, track_running_stats=False)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.layer(images).reshape(-1, 4, 3)).flatten(1))
        return logits


@pytest.mark.parametrize(
    "build",
    [
        BehindTheBack,
        OwnParameter,
        PositionsAsBatch,
        Without,
        lambda: nn.Sequential(weight_norm(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, CLASSES)),
    ],
)
def test_other_models_are_right_too(build: Callable[[], nn.Module]) -> None:
    # what goes together is normalised together: compared where nothing is
    together = 0 if build is Without else 2
    assert_right(built(build), random(5, 6), together, by_layer=False)


def test_attention_is_right_too() -> None:
    assert_right(built(NETS["vit"].build), random(3, 3, 32, 32), 1, by_layer=False)


def test_the_model_is_left_as_it_was() -> None:
    model = built(NETS["plain cnn"].build).train()
    model.get_submodule("head" if hasattr(model, "head") else [n for n, _ in model.named_children()][-1]).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = [module.training for module in model.modules()]
    images = random(4, 3, 8, 8)
    with torch.no_grad():  # whoever asks may record no gradients
        rows = dict(PerSampleGradients(model)(images, labels_of(images)))
    assert not any(each.requires_grad for each in rows.values())
    assert [module.training for module in model.modules()] == training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_it_runs_no_more_than_a_whole_backward() -> None:
    model = built(NETS["resnet"].build)
    images = random(4, 3, 16, 16)
    gradients = PerSampleGradients(model)
    for _ in gradients(images, labels_of(images)):
        pass
    with ExecutedOps() as executed:
        for _ in gradients(images, labels_of(images)):
            pass
    model.eval()
    with ExecutedOps() as plain:
        F.cross_entropy(model(images), labels_of(images)).backward()
    assert executed.total == pytest.approx(plain.total, rel=0.005)


def test_flat_rows_are_no_copy() -> None:
    rows = random(3, 4, 2, 5, 6).permute(0, 1, 4, 2, 3)
    matrix = flat(rows)
    assert matrix.shape == (3, 240)
    assert matrix.data_ptr() == rows.data_ptr()
    torch.testing.assert_close(matrix @ matrix.T, rows.flatten(1) @ rows.flatten(1).T)
