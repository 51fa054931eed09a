"""Vision transformers compute what the paper of ViT says, have its size and come from their seed alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted import cli, models
from budgeted.errors import BudgetedError
from budgeted.models.vit import BASE, LARGE, TINY, ViTShape, vision_transformer

VITS = ("vit-tiny", "vit-b", "vit-b-32px", "vit-l")


def images_of(shape: tuple[int, int, int], count: int = 2) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(2))


def by_hand(model: nn.Module, images: Tensor, heads: int, layers: int) -> Tensor:
    """The logits by the formulas, from the weights alone: patches as rows, softmax(QK^T / sqrt d) V, pre-norm."""
    weight: dict[str, Tensor] = {
        name.replace("vit.", "").replace("layers.", ""): tensor.double() for name, tensor in model.state_dict().items()
    }

    def linear(x: Tensor, name: str) -> Tensor:
        out: Tensor = x @ weight[f"{name}.weight"].T + weight[f"{name}.bias"]
        return out

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
        out: Tensor = centred / scale * weight[f"{name}.weight"] + weight[f"{name}.bias"]
        return out

    kernel = weight["embeddings.patch_embeddings.projection.weight"]
    side, batch = kernel.shape[-1], len(images)
    rows = F.unfold(images.double(), side, stride=side).transpose(1, 2)
    tokens = rows @ kernel.flatten(1).T + weight["embeddings.patch_embeddings.projection.bias"]
    tokens = torch.cat((weight["embeddings.cls_token"].expand(batch, -1, -1), tokens), 1)
    tokens = tokens + weight["embeddings.position_embeddings"]
    for i in range(layers):
        x = norm(tokens, f"{i}.layernorm_before")
        query, key, value = (
            linear(x, f"{i}.attention.{part}_proj").unflatten(-1, (heads, -1)).transpose(1, 2) for part in "qkv"
        )
        mixed = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1) @ value
        tokens = tokens + linear(mixed.transpose(1, 2).flatten(2), f"{i}.attention.o_proj")
        x = linear(norm(tokens, f"{i}.layernorm_after"), f"{i}.mlp.fc1")
        tokens = tokens + linear(x * 0.5 * (1 + torch.erf(x / 2**0.5)), f"{i}.mlp.fc2")
    return linear(norm(tokens, "layernorm")[:, 0], "head")


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (2, 16, 24)])
def test_logits_follow_the_formulas(shape: tuple[int, int, int], attention: str) -> None:
    model: Any = models.build("vit-tiny", classes=5, input_shape=shape, seed=3)
    model.vit.set_attn_implementation(attention)
    images = images_of(shape)
    expected = by_hand(model, images, TINY.heads, TINY.layers)
    torch.testing.assert_close(model(images).double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "parameters"),  # what timm and the ViT paper say (86 M, 307 M), less their heads of 1000 classes
    [(BASE, 86_567_656 - 769_000), (LARGE, 304_326_632 - 1_025_000)],
)
def test_backbone_has_the_published_number_of_parameters(shape: ViTShape, parameters: int) -> None:
    with torch.device("meta"):
        model = vision_transformer(shape, 10, (3, 224, 224))
    assert sum(p.numel() for p in model.vit.parameters()) == parameters


def test_tokens_are_patches_and_the_class() -> None:
    for image, tokens in {(3, 32, 32): 65, (1, 8, 8): 17, (1, 28, 28): 50, (3, 16, 24): 25}.items():
        model: Any = models.build("vit-tiny", input_shape=image)
        assert model.vit.embeddings.position_embeddings.shape == (1, tokens, 192)
    with torch.device("meta"):
        large = vision_transformer(BASE, 10, (3, 32, 32))
    assert large.vit.get_parameter("embeddings.position_embeddings").shape == (1, 197, 768)


def test_images_that_do_not_divide_are_refused() -> None:
    with pytest.raises(BudgetedError, match=r"30x32 pixels do not divide into patches of 4x4"):
        models.build("vit-tiny", input_shape=(3, 30, 32))
    with pytest.raises(BudgetedError, match=r"9x9 pixels do not divide into patches of 2x2"):
        models.build("vit-b-32px", input_shape=(1, 9, 9))


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (12, 64), (64, 96)])
def test_images_are_brought_to_one_size(size: tuple[int, int]) -> None:
    shape = ViTShape(width=16, layers=1, heads=2, patch=8, pixels=32)
    model = vision_transformer(shape, 3, (3, *size)).eval()
    images = images_of((3, *size))
    down = (max(1, size[0] // 32), max(1, size[1] // 32))
    # whole windows are averaged where a side shrinks; where it grows, the four neighbours are weighted
    smaller = images.unflatten(3, (-1, down[1])).mean(4).unflatten(2, (-1, down[0])).mean(3)
    resized = F.interpolate(smaller, (32, 32), mode="bilinear")
    torch.testing.assert_close(model(images), model(resized))


def test_weights_come_from_the_seed_alone() -> None:
    before = torch.get_rng_state()
    one = models.build("vit-tiny", classes=2, seed=4).state_dict()
    two = models.build("vit-tiny", classes=2, seed=4).state_dict()
    other = models.build("vit-tiny", classes=2, seed=5).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)
    drawn = [name for name, value in one.items() if value.dim() > 1 or name == "head.bias"]
    assert all(not torch.equal(one[name], other[name]) for name in drawn)


def test_initial_weights_follow_their_laws() -> None:
    state = models.build("vit-tiny", classes=50, seed=7).state_dict()
    for name, value in state.items():
        if name.startswith("head"):
            assert value.abs().max() <= 192**-0.5
            assert value.std().item() == pytest.approx((192 * 3) ** -0.5, rel=0.2)
        elif "norm" in name:
            assert (value == float(name.endswith("weight"))).all()
        elif name.endswith("bias"):
            assert (value == 0).all()
        else:
            assert value.std().item() == pytest.approx(0.02, rel=0.15), name


def test_every_parameter_trains() -> None:
    model = models.build("vit-tiny", classes=3, input_shape=(1, 8, 8), seed=5)
    loss = F.cross_entropy(model(images_of((1, 8, 8), 4)), torch.tensor([0, 1, 2, 0]))
    torch.autograd.backward(loss)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # a constant added to all scores of a row changes no softmax: the bias of the keys has gradient zero
        assert name.endswith("k_proj.bias") or parameter.grad.abs().max() > 0, name


def test_head_reads_what_features_gives() -> None:
    model: Any = models.build("vit-tiny", classes=4, input_shape=(1, 8, 8))
    images = images_of((1, 8, 8))
    features = model.features(images)
    assert features.shape == (2, 192)
    torch.testing.assert_close(model(images), features @ model.head.weight.T + model.head.bias)


def test_without_transformers_they_are_listed_and_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # an import of it fails now
    assert cli.main(["list", "models"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in VITS)
    for name in VITS:
        with pytest.raises(BudgetedError, match=r"pip install 'budgeted\[transformers\]'"):
            models.build(name)
    assert cli.main(["blocks", "vit-tiny"]) != 0
    assert capsys.readouterr().err.strip().count("\n") == 0
