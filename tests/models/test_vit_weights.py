"""Pretrained weights from a folder: the encoder computes what transformers' own does; what cannot fit is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, ViTConfig, ViTForImageClassification, ViTModel

from budgeted import models
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.models.vit import TINY, ViTShape
from budgeted.models.vit_weights import pretrained

SMALL = ViTShape(width=16, layers=2, heads=2, patch=4)
IMAGE = (3, 32, 32)


def config(shape: ViTShape = SMALL, **more: Any) -> ViTConfig:
    given: dict[str, Any] = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": 4 * shape.width,
        "image_size": 32,
        "patch_size": shape.patch,
        "num_labels": 7,
    }
    return ViTConfig(**{**given, **more})


def drawn(kind: Callable[[ViTConfig], Any], of: ViTConfig) -> Any:
    """A model of transformers' own with every parameter random, biases and norms too."""
    model = kind(of).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    return model


def saved(folder: Path, of: ViTConfig | None = None, **how: Any) -> Any:
    model = drawn(ViTForImageClassification, of or config())
    model.save_pretrained(folder, **how)
    return model


def some_images(pixels: int = 32) -> Tensor:
    return torch.randn(2, 3, pixels, pixels, generator=torch.Generator().manual_seed(0))


def same_features(folder: Path, original: ViTModel, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    model = pretrained(SMALL, 5, IMAGE, seed=3, folder=folder)
    with torch.no_grad():
        expected = original(some_images()).last_hidden_state[:, 0]
    torch.testing.assert_close(model.eval().features(some_images()), expected, rtol=rtol, atol=atol)


def test_a_classifier_s_encoder_is_taken_and_its_head_is_not(tmp_path: Path) -> None:
    original = saved(tmp_path)
    same_features(tmp_path, original.vit)
    before = torch.get_rng_state()
    one, two, other = (pretrained(SMALL, 5, IMAGE, seed, tmp_path) for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert one.training
    assert one(some_images()).shape == (2, 5)
    assert torch.equal(one.head.weight, two.head.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert all(p.requires_grad and p.device.type == "cpu" for p in one.parameters())


def test_a_bare_encoder_with_a_pooler(tmp_path: Path) -> None:
    original = drawn(ViTModel, config())
    original.save_pretrained(tmp_path)
    same_features(tmp_path, original)


def test_several_files(tmp_path: Path) -> None:
    original = saved(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    same_features(tmp_path, original.vit)


def test_half_precision_is_trained_in_single(tmp_path: Path) -> None:
    original = drawn(ViTForImageClassification, config())
    original.half().save_pretrained(tmp_path)
    model = pretrained(SMALL, 5, IMAGE, seed=3, folder=tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    same_features(tmp_path, original.float().vit, rtol=1e-4, atol=1e-4)


def test_names_of_files_and_of_modules(tmp_path: Path) -> None:
    """Files, on the hub too, have the names of older modules; a state dict written as it is has those of now."""
    original = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    assert "vit.encoder.layer.1.attention.attention.query.weight" in load_file(file)
    same_features(tmp_path, original.vit)
    save_file(original.state_dict(), file, {"format": "pt"})
    assert "vit.layers.1.attention.q_proj.weight" in load_file(file)
    same_features(tmp_path, original.vit)


@pytest.mark.parametrize("trained_on", [16, 48])
def test_positions_are_interpolated_to_another_image_size(trained_on: int, tmp_path: Path) -> None:
    original = saved(tmp_path, config(image_size=trained_on))
    model = pretrained(SMALL, 5, IMAGE, seed=3, folder=tmp_path)
    with torch.no_grad():
        expected = original.vit(some_images(), interpolate_pos_encoding=True).last_hidden_state[:, 0]
    torch.testing.assert_close(model.eval().features(some_images()), expected)


def test_dropout_is_left_out(tmp_path: Path) -> None:
    saved(tmp_path, config(hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5))
    model = pretrained(SMALL, 5, IMAGE, seed=3, folder=tmp_path).train()
    torch.testing.assert_close(model(some_images()), model(some_images()), rtol=0, atol=0)


def test_weights_stay_when_the_file_changes(tmp_path: Path) -> None:
    saved(tmp_path)
    model = pretrained(SMALL, 5, IMAGE, seed=3, folder=tmp_path).eval()
    before = model(some_images())
    file = tmp_path / "model.safetensors"
    with open(file, "r+b") as overwritten:
        overwritten.seek(4096)
        overwritten.write(b"\xff" * (file.stat().st_size - 4096))
    torch.testing.assert_close(model(some_images()), before)


# -- by name, and from the command line --------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Weights that fit vit-tiny on digits."""
    folder = tmp_path / "weights"
    saved(folder, config(TINY, num_channels=1, image_size=8, patch_size=2))
    return folder


def test_the_folder_is_an_argument_or_part_of_the_name(tiny: Path) -> None:
    shape = (1, 8, 8)
    first = models.build("vit-tiny", classes=3, input_shape=shape, weights=tiny)
    second = models.build(f"vit-tiny@{tiny}", classes=3, input_shape=shape)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    for name, weights in ((f"vit-tiny@{tiny}", tiny), ("vit-tiny@", None)):
        with pytest.raises(BudgetedError, match=r"once: vit-tiny@FOLDER, or weights=FOLDER"):
            models.build(name, input_shape=shape, weights=weights)
    with pytest.raises(BudgetedError, match=r"resnet32 starts from a seed.*vit-tiny, vit-b, vit-b-32px, vit-l"):
        models.build("resnet32", weights=tiny)


def test_a_run_starts_from_weights(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--method", "al-sar", "--limit", "20", "--eval-every", "20", "--eval-samples", "20", "--json"]
    run = ["run", *flags, "--iterations", "0", "--model", f"vit-tiny@{tiny}", "--out", str(tmp_path / "run")]
    assert main(run) == 0, capsys.readouterr().err
    json.loads(capsys.readouterr().out)
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("*/tensors.safetensors"))
    learned, given = load_file(checkpoint), load_file(tiny / "model.safetensors")
    expected = given["vit.encoder.layer.3.intermediate.dense.weight"]
    assert torch.equal(learned["model.vit.layers.3.mlp.fc1.weight"], expected)
    assert main([*run[:-1], str(tmp_path / "other"), "--dataset", "cifar10"]) != 0
    assert capsys.readouterr().err.strip().count("\n") == 0


# -- refusals ----------------------------------------------------------------------------------------------------------


def refused(folder: Path, reason: str) -> None:
    with pytest.raises(BudgetedError, match=reason) as raised:
        pretrained(SMALL, 5, IMAGE, seed=3, folder=folder)
    assert "\n" not in str(raised.value)
    assert str(folder) in str(raised.value)


def test_a_wrong_folder_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "is no folder")
    refused(tmp_path, "has no config.json")
    config().save_pretrained(tmp_path)
    refused(tmp_path, "has no model.safetensors")
    saved(tmp_path)
    BertConfig().save_pretrained(tmp_path)
    refused(tmp_path, "model of type 'bert', not 'vit'")
    for text in ("{", "[]", '{"model_type": "vit", "hidden_size": "wide"}'):
        (tmp_path / "config.json").write_text(text)
        refused(tmp_path, "cannot read")


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path(tmp_path / "sprung").write_text, ("",))

    config().save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    refused(tmp_path, "as a pickle, which may run any code")
    assert not (tmp_path / "sprung").exists()
    original = saved(tmp_path)  # beside it, safetensors: these are read
    same_features(tmp_path, original.vit)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"hidden_size": 32}, "hidden_size 32 instead of 16"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 3 instead of 2"),
        ({"num_attention_heads": 4}, "num_attention_heads 4 instead of 2"),
        ({"patch_size": 8}, "patch_size 8 instead of 4"),
        ({"num_channels": 1}, "num_channels 1 instead of 3"),
    ],
)
def test_weights_of_another_shape_are_refused(other: dict[str, Any], reason: str, tmp_path: Path) -> None:
    saved(tmp_path, config(**other))
    refused(tmp_path, reason)


def test_a_file_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "model.safetensors"
    whole, tensors = file.read_bytes(), load_file(file)
    lacking = {name: tensor for name, tensor in tensors.items() if "layer.1.output" not in name}
    save_file(lacking, file, {"format": "pt"})
    refused(tmp_path, r"lack layers\.1\.mlp\.fc2\.bias and 1 more")
    shorter = {**tensors, "vit.encoder.layer.1.output.dense.weight": torch.zeros(3, 3)}
    save_file(shorter, file, {"format": "pt"})
    refused(tmp_path, "cannot load the weights")
    file.write_bytes(whole[:1000])
    refused(tmp_path, "cannot load the weights")
