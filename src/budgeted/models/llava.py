"""LLaVA: pictures through CLIP and a projector into the places that a text keeps for them, and on through a Llama.

Three ways to one: `llava-1.5-7b` by name, for those who have it in the cache of the Hugging Face hub; any folder that
`LlavaForConditionalGeneration.save_pretrained` wrote; and `llava-tiny`, of the same structure, drawn from a seed.
`on_meta` builds a named one without its weights, to price it: seven billion parameters take no memory there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from budgeted.errors import BudgetedError, UnknownName
from budgeted.models.vit import needed_transformers

PAD, IMAGE = 0, 3
"""token numbers of the tiny one's own tokenizer"""


@dataclass(frozen=True, slots=True)
class TowerShape:
    """Size of a transformer."""

    width: int
    layers: int
    heads: int
    inner: int


@dataclass(frozen=True, slots=True)
class LlavaShape:
    """Sizes of both towers, of pictures and of the vocabulary."""

    vision: TowerShape
    text: TowerShape
    pixels: int
    patch: int
    words: int
    places: int
    """tokens that a text may have"""
    image_token: int
    spread: float = 0.02
    """standard deviation of the first weights"""
    hub: str = ""
    """its name on the Hugging Face hub"""

    @property
    def tokens_of_a_picture(self) -> int:
        return (self.pixels // self.patch) ** 2


SHAPES = {
    "llava-tiny": LlavaShape(
        vision=TowerShape(width=48, layers=3, heads=4, inner=96),
        text=TowerShape(width=64, layers=6, heads=4, inner=128),
        pixels=16,
        patch=8,
        words=400,
        places=256,
        image_token=IMAGE,
        spread=0.08,
    ),
    "llava-1.5-7b": LlavaShape(
        vision=TowerShape(width=1024, layers=24, heads=16, inner=4096),
        text=TowerShape(width=4096, layers=32, heads=32, inner=11008),
        pixels=336,
        patch=14,
        words=32064,
        places=4096,
        image_token=32000,
        hub="llava-hf/llava-1.5-7b-hf",
    ),
}


def llava(name: str | Path = "llava-tiny", *, seed: int = 0) -> nn.Module:
    """The named model, or the one in a folder; the tiny one is drawn from `seed`, and no global generator moves."""
    transformers = needed_transformers()
    if str(name) in SHAPES and not SHAPES[str(name)].hub:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            built: nn.Module = transformers.LlavaForConditionalGeneration(config_of(SHAPES[str(name)]))
        return built
    return _loaded(transformers, name)


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Inside, the transformers library draws no bars while it loads and saves."""
    bars = needed_transformers().utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bar()


def on_meta(name: str) -> nn.Module:
    """The named model without weights, on torch's device `meta`."""
    if name not in SHAPES:
        raise UnknownName("LLaVA", name, SHAPES)
    with torch.device("meta"):
        built: nn.Module = needed_transformers().LlavaForConditionalGeneration(config_of(SHAPES[name]))
    return built


def config_of(shape: LlavaShape) -> Any:
    """The configuration of the transformers library; a picture's features are those of the last layer but one."""
    transformers = needed_transformers()
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=shape.vision.width,
            num_hidden_layers=shape.vision.layers,
            num_attention_heads=shape.vision.heads,
            intermediate_size=shape.vision.inner,
            image_size=shape.pixels,
            patch_size=shape.patch,
            projection_dim=shape.vision.width,
        ),
        text_config=transformers.LlamaConfig(
            hidden_size=shape.text.width,
            num_hidden_layers=shape.text.layers,
            num_attention_heads=shape.text.heads,
            num_key_value_heads=shape.text.heads,
            intermediate_size=shape.text.inner,
            vocab_size=shape.words,
            max_position_embeddings=shape.places,
            initializer_range=shape.spread,
            pad_token_id=PAD,
            bos_token_id=1,
            eos_token_id=2,
        ),
        image_token_index=shape.image_token,
        image_seq_length=shape.tokens_of_a_picture,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        tie_word_embeddings=False,
    )


def _loaded(transformers: Any, name: str | Path) -> nn.Module:
    known = SHAPES.get(str(name))
    where = known.hub if known is not None else str(name)
    if known is None and not Path(where).is_dir():
        raise BudgetedError(
            f"there is no LLaVA {where!r}: give one of {', '.join(SHAPES)}, or a folder with a model's config.json"
        )
    try:
        with without_bars():
            # of another type the library would only warn, and build a LLaVA of its default size
            kind = transformers.AutoConfig.from_pretrained(where, local_files_only=True).model_type
            if kind != "llava":
                raise ValueError(f"it is a model of type {kind}")
            model, told = transformers.LlavaForConditionalGeneration.from_pretrained(
                where, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
            if absent := sorted(told["missing_keys"]):  # those would be drawn at random
                raise ValueError(f"{len(absent)} of its weights are not there, such as {absent[0]}")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        how = f"fetch it first (hf download {where}), or give its folder" if known is not None else "is it a LLaVA?"
        raise BudgetedError(f"cannot load {where}: {reason}; {how}") from error
    return model  # type: ignore[no-any-return]
