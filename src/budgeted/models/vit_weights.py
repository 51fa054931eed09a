"""Pretrained weights of a vision transformer from a folder in the Hugging Face format: config.json and safetensors.

The encoder is taken, the classifier is not: the classes of a stream come in their own order. Weights of another image
size fit after their position embeddings are interpolated; every other difference is refused. A pickle is never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from budgeted.errors import BudgetedError
from budgeted.models.parts import ImageShape
from budgeted.models.vit import VisionTransformer, ViTShape, config_of, draw_vit, needed_transformers

if TYPE_CHECKING:
    from transformers import ViTConfig

CONFIG = "config.json"
TENSORS = ("model.safetensors", "model.safetensors.index.json")  # in one file, or the list of several
POSITIONS = "embeddings.position_embeddings"


def pretrained(shape: ViTShape, classes: int, image: ImageShape, seed: int, folder: Path) -> VisionTransformer:
    """The named shape with the encoder's weights from `folder` and a head drawn from `seed`."""
    config, trained_grid = _checked_config(shape, image, folder)
    tensors = _read(config, folder)
    size, patch = shape.size_for(image), shape.patch_for(image)
    tensors[POSITIONS] = interpolated(tensors[POSITIONS], trained_grid, (size[0] // patch, size[1] // patch))
    config.image_size = size
    with torch.device("meta"):
        model = VisionTransformer(config, size, classes)
    model.vit.load_state_dict(tensors, assign=True)
    model.head.to_empty(device="cpu")
    draw_vit("head", model.head, torch.Generator().manual_seed(seed))
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model.train()


def interpolated(positions: Tensor, trained: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
    """Position embeddings (class token first) brought from one grid of patches to another, bicubic."""
    if trained == wanted:
        return positions
    token, patches = positions[:, :1], positions[:, 1:]
    grid = patches.reshape(1, *trained, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, wanted, mode="bicubic", align_corners=False)
    return torch.cat((token, grid.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)


def _checked_config(shape: ViTShape, image: ImageShape, folder: Path) -> tuple[ViTConfig, tuple[int, int]]:
    """The folder's configuration, if it is that of the shape asked for, and the grid it was trained on."""
    wanted, theirs = config_of(shape, image), _read_config(folder)
    fields = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "patch_size", "num_channels",
    )  # fmt: skip
    pairs = {name: (getattr(theirs, name), getattr(wanted, name)) for name in fields}
    others = [f"{name} {found} instead of {asked}" for name, (found, asked) in pairs.items() if found != asked]
    if others:
        raise BudgetedError(
            f"the weights in {folder} are of another model or other images: {', '.join(others)}; "
            "choose the model that they are of"
        )
    side, patch = theirs.image_size, shape.patch_for(image)
    height, across = (side, side) if isinstance(side, int) else side
    theirs.hidden_dropout_prob = theirs.attention_probs_dropout_prob = 0.0  # a run must repeat: see vit.py
    return theirs, (height // patch, across // patch)


def _read_config(folder: Path) -> ViTConfig:
    """What config.json says, once the folder is seen to hold what will be read."""
    if not folder.is_dir():
        raise BudgetedError(f"{folder} is no folder: give one with {CONFIG} and {TENSORS[0]}")
    if not (folder / CONFIG).is_file():
        raise BudgetedError(f"{folder} has no {CONFIG}: give a folder in the Hugging Face format")
    if not any((folder / name).is_file() for name in TENSORS):
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
            raise BudgetedError(
                f"{folder} has its weights as a pickle, which may run any code when read: "
                "save them as safetensors, with model.save_pretrained(FOLDER)"
            )
        raise BudgetedError(f"{folder} has no {TENSORS[0]}: give a folder in the Hugging Face format")
    try:
        told = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        kind = told.get("model_type")
        if kind != "vit":
            raise BudgetedError(f"{folder} holds a model of type {kind!r}, not 'vit': give the weights of a ViT")
        config: ViTConfig = needed_transformers().ViTConfig.from_dict(told)
    except BudgetedError:
        raise
    except Exception as error:  # not JSON, not a table, values that the library refuses
        raise BudgetedError(f"cannot read {folder / CONFIG}: {_first_line(error)}") from error
    return config


def _read(config: ViTConfig, folder: Path) -> dict[str, Tensor]:
    """The encoder's tensors, under the names of the installed transformers (older files use other ones)."""
    transformers = needed_transformers()
    try:
        with _quiet(transformers), torch.random.fork_rng(devices=[]):
            model, report = transformers.ViTModel.from_pretrained(
                folder,
                config=config,
                add_pooling_layer=False,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # the library and safetensors raise many kinds
        raise BudgetedError(f"cannot load the weights in {folder}: {_first_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BudgetedError(f"the weights in {folder} lack {missing[0]}{more}: the file is not whole, or of no ViT")
    assert isinstance(model, nn.Module)
    # copies: the library may leave tensors in the mapped file, which must not change under a running model
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bar and no report about the classifier that is left out."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
