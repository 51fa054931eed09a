"""Vision transformers: the encoder of the transformers library, read at its class token by a linear head that can grow.

ViT-B and ViT-L bring every image to 224 pixels, as the published code does, and cut it into patches of 16. The small
ones take images as they are, in patches of 4; images of fewer than 16 pixels in patches of 2, or too little is left
to attend to. There is no dropout: it would draw from torch's global generator, and a run would not repeat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from budgeted.errors import BudgetedError, needed
from budgeted.models.parts import ImageShape

if TYPE_CHECKING:
    from transformers import ViTConfig

SMALL_IMAGE = 16  # pixels on the shorter side below which patches are halved
SPREAD = 0.02  # standard deviation of the first weights, as in the transformer papers


@dataclass(frozen=True)
class ViTShape:
    """Size of the encoder and how an image becomes tokens."""

    width: int
    layers: int
    heads: int
    patch: int
    pixels: int | None = None  # the side that every image is brought to; None takes images as they are

    @property
    def summary(self) -> str:
        images = f"images brought to {self.pixels} px" if self.pixels else "images as they are"
        return f"{self.layers} layers of width {self.width}, {self.heads} heads, patches of {self.patch}, {images}"

    def patch_for(self, image: ImageShape) -> int:
        small = self.pixels is None and min(image[1:]) < SMALL_IMAGE
        return self.patch // 2 if small else self.patch

    def size_for(self, image: ImageShape) -> tuple[int, int]:
        """Height and width of what is cut into patches; an image that does not divide is refused."""
        height, across = (self.pixels, self.pixels) if self.pixels else image[1:]
        patch = self.patch_for(image)
        if height % patch or across % patch:
            raise BudgetedError(
                f"images of {height}x{across} pixels do not divide into patches of {patch}x{patch}: "
                f"pad or resize them to multiples of {patch}, or use vit-b, which resizes by itself"
            )
        return height, across


TINY = ViTShape(width=192, layers=6, heads=3, patch=4)
BASE = ViTShape(width=768, layers=12, heads=12, patch=16, pixels=224)
LARGE = ViTShape(width=1024, layers=24, heads=16, patch=16, pixels=224)
BASE_SMALL_IMAGES = ViTShape(width=768, layers=12, heads=12, patch=4)


class VisionTransformer(nn.Module):
    """Patch embedding, encoder layers, final norm, and a linear head on the class token."""

    def __init__(self, config: ViTConfig, size: tuple[int, int], classes: int) -> None:
        super().__init__()
        self.size = size
        self.vit: nn.Module = needed_transformers().ViTModel(config, add_pooling_layer=False)
        self.head = nn.Linear(config.hidden_size, classes)

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: the class token after the final norm."""
        images = brought_to(self.size, images)
        tokens: Tensor = self.vit(images).last_hidden_state
        return tokens[:, 0]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


def brought_to(size: tuple[int, int], images: Tensor) -> Tensor:
    """Larger sides are averaged down, so that no pixel is dropped; smaller ones grow, bilinear."""
    height, across = images.shape[-2:]
    if height > size[0] or across > size[1]:
        images = F.adaptive_avg_pool2d(images, (min(height, size[0]), min(across, size[1])))
    if images.shape[-2:] != size:
        images = F.interpolate(images, size, mode="bilinear")
    return images


def vision_transformer(shape: ViTShape, classes: int, image: ImageShape) -> VisionTransformer:
    """The named shape for images like `image`, its weights still to be drawn."""
    return VisionTransformer(config_of(shape, image), shape.size_for(image), classes)


def config_of(shape: ViTShape, image: ImageShape) -> ViTConfig:
    config: ViTConfig = needed_transformers().ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        image_size=shape.size_for(image),
        patch_size=shape.patch_for(image),
        num_channels=image[0],
    )
    return config


def draw_vit(name: str, module: nn.Module, generator: torch.Generator) -> None:
    """Fill one module's own parameters: small normal weights, zero biases, norms of one; the head as every head."""
    own = dict(module.named_parameters(recurse=False))
    if [*module.buffers(recurse=False)]:  # left alone it would keep whatever bytes its memory held
        raise BudgetedError(
            f"this version of transformers keeps buffers in {type(module).__name__} at {name!r}, which no seed fills: "
            "install one that the extra `transformers` allows"
        )
    if name == "head":
        bound = 1 / math.sqrt(own["weight"].shape[1])
        for parameter in own.values():
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
    elif isinstance(module, nn.LayerNorm):
        module.reset_parameters()  # ones and zeros: draws nothing
    else:
        for kind, parameter in own.items():
            if kind == "bias":
                nn.init.zeros_(parameter)
            else:  # weights of products, class token, positions
                nn.init.trunc_normal_(parameter, std=SPREAD, generator=generator)


def needed_transformers() -> Any:
    """The optional package, imported when the first vision transformer is built: that takes seconds."""
    return needed(
        "transformers", "vision transformers need the package transformers: pip install 'budgeted[transformers]'"
    )
