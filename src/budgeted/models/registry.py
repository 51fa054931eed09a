"""What each name of a network stands for, and how it is built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from budgeted.errors import BudgetedError
from budgeted.models.initialise import Draw, draw, initialised
from budgeted.models.llava import SHAPES
from budgeted.models.llava_base import adapted_llava
from budgeted.models.mlp import HIDDEN, MultilayerPerceptron
from budgeted.models.parts import ImageShape
from budgeted.models.plain import NARROW, WIDE, PlainStyle, plain_cnn
from budgeted.models.resnet import BASIC, PUBLISHED, STANDARD, ResNetShape, ResNetVariant, resnet, slim
from budgeted.models.vit import BASE, BASE_SMALL_IMAGES, LARGE, TINY, ViTShape, draw_vit, vision_transformer
from budgeted.models.vit_weights import pretrained
from budgeted.registry import Registry


@dataclass(frozen=True)
class Entry:
    """One named network: a line for people, and its wiring with weights still to be drawn."""

    description: str
    wire: Callable[[int, ImageShape], nn.Module]
    fill: Draw = draw
    load: Callable[[int, ImageShape, int, Path], nn.Module] | None = None  # with weights from a folder, if it can


@dataclass(frozen=True)
class Adapted:
    """A named network whose adapters are drawn from a seed, over a base that brings its weights."""

    description: str
    make: Callable[[int, Path | None, str], nn.Module]
    """from the seed, the folder of another base if one was given, and what the name says of the adapters"""


def resnet_entry(shape: ResNetShape, variant: ResNetVariant, title: str) -> Entry:
    widths = "/".join(map(str, shape.widths))
    return Entry(
        description=f"{title}: {sum(shape.depths)} basic blocks of widths {widths}, {variant.summary}",
        wire=lambda classes, image: resnet(shape, variant, classes, image),
    )


def plain_entry(depth: int, style: PlainStyle) -> Entry:
    widths = "/".join(map(str, style.widths))
    return Entry(
        description=f"plain CNN, {style.summary.format(depth=depth)}, widths {widths}, no shortcuts",
        wire=lambda classes, image: plain_cnn(depth, style, classes, image),
    )


def vit_entry(shape: ViTShape, title: str) -> Entry:
    return Entry(
        description=f"{title}: {shape.summary} (needs transformers)",
        wire=lambda classes, image: vision_transformer(shape, classes, image),
        fill=draw_vit,
        load=lambda classes, image, seed, folder: pretrained(shape, classes, image, seed, folder),
    )


def llava_entry(name: str) -> Adapted:
    shape = SHAPES[name]
    size = f"{shape.vision.layers} vision and {shape.text.layers} decoder layers of width {shape.text.width}"
    return Adapted(
        f"LLaVA with LoRA: {size} (needs transformers and peft)",
        lambda seed, at, said: adapted_llava(name, seed, at, said),
    )


RESNETS = {
    "resnet18": BASIC,
    "resnet20": slim(3),
    "resnet32": slim(5),
    "resnet56": slim(9),
}
PLAIN_DEPTHS = (8, 16, 32)

MODELS: Registry[Entry | Adapted | Callable[..., nn.Module]] = Registry("model", "models")
"""a user's own is a function, or a module class, that takes any of `classes`, `input_shape` and `seed` by name"""
for _name, _entry in {
    **{name: resnet_entry(s, PUBLISHED, f"ResNet-{name[6:]}") for name, s in RESNETS.items()},
    **{f"{name}-standard": resnet_entry(s, STANDARD, f"ResNet-{name[6:]}") for name, s in RESNETS.items()},
    **{f"cnn{depth}": plain_entry(depth, NARROW) for depth in PLAIN_DEPTHS},
    **{f"cnn{depth}-wide": plain_entry(depth, WIDE) for depth in PLAIN_DEPTHS},
    "mlp": Entry(f"multilayer perceptron, one hidden layer of {HIDDEN}", MultilayerPerceptron),
    "vit-tiny": vit_entry(TINY, "small vision transformer"),
    "vit-b": vit_entry(BASE, "ViT-B/16"),
    "vit-b-32px": vit_entry(BASE_SMALL_IMAGES, "ViT-B for small images"),
    "vit-l": vit_entry(LARGE, "ViT-L/16"),
}.items():
    MODELS.register(_name)(_entry)
for _name in SHAPES:
    MODELS.register(_name)(llava_entry(_name))


MOST_CLASSES = 10**6


def names() -> list[str]:
    """Every name that `build` knows."""
    return list(MODELS)


def describe(name: str) -> str:
    """One line on the named network."""
    found = MODELS[name]
    return found.description if isinstance(found, Entry | Adapted) else (inspect.getdoc(found) or name).splitlines()[0]


def build(
    name: str,
    *,
    classes: int = 1,
    input_shape: tuple[int, ...] = (3, 32, 32),
    seed: int = 0,
    weights: str | Path | None = None,
) -> nn.Module:
    """The named network for images of `input_shape` (channels, height, width), its weights drawn from `seed`.

    The same arguments give bit-equal weights, and the global random state is neither read nor moved.

    A vision transformer may start from pretrained `weights`: a folder in the Hugging Face format. The name may carry
    the folder, as in `vit-b@FOLDER`; the head is drawn either way, and of a LLaVA its adapters, of which the name may
    say more: `llava-tiny?rank=4&projector=false`. A network of your own goes by `package.module:NAME` or
    `file.py:NAME`.

    >>> model = build("resnet32", classes=10)
    >>> sum(p.numel() for p in model.parameters())
    466906
    """
    if ":" in name and "@" not in name:
        return _own(name, MODELS[name], {"classes": classes, "input_shape": input_shape, "seed": seed})
    name, at, folder = name.partition("@")
    if at and (weights is not None or not folder):
        raise BudgetedError(f"give the folder of the weights once: {name}@FOLDER, or weights=FOLDER")
    weights = folder if at else weights
    name, _, said = name.partition("?")
    asked = MODELS[name]
    if isinstance(asked, Adapted):
        return asked.make(seed, None if weights is None else Path(weights).expanduser(), said)
    if said:
        raise BudgetedError(f"{name} has no adapters of which ?{said} could say more: leave it out")
    if not isinstance(asked, Entry):
        return _own(name, asked, {"classes": classes, "input_shape": input_shape, "seed": seed})
    if not 1 <= classes <= MOST_CLASSES:
        raise BudgetedError(
            f"a model cannot have {str(classes)[:20]} classes: ask for 1 or more, at most {MOST_CLASSES:,} "
            "(the head can grow later)"
        )
    if len(input_shape) != 3 and name == "mlp":  # it takes anything in one row
        input_shape = (1, 1, math.prod(input_shape))
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise BudgetedError(
            f"input_shape {tuple(input_shape)} is no image: give (channels, height, width), each at least 1"
        )
    image = (input_shape[0], input_shape[1], input_shape[2])
    if weights is None:
        return initialised(lambda: asked.wire(classes, image), seed, asked.fill)
    if asked.load is None:
        loading = ", ".join(known for known, one in MODELS.items() if isinstance(one, Entry) and one.load is not None)
        raise BudgetedError(f"{name} starts from a seed, not from weights; those that load weights: {loading}")
    return asked.load(classes, image, seed, Path(weights))


def _own(name: str, make: Entry | Adapted | Callable[..., nn.Module], facts: dict[str, Any]) -> nn.Module:
    """What a user's function makes of the facts that it asks for; what torch draws meanwhile follows from the seed."""
    if not callable(make):
        raise BudgetedError(f"{name} is no function that makes a model: give one, or a module class")
    asked = inspect.signature(make).parameters
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in asked.values())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(facts["seed"])
        try:
            built = make(**{key: value for key, value in facts.items() if anything or key in asked})
        except TypeError as error:
            raise BudgetedError(f"cannot build {name}: {error}; it may take classes, input_shape and seed") from error
    if not isinstance(built, nn.Module):
        raise BudgetedError(f"{name} gave a {type(built).__name__}, not a torch module: let it return one")
    return built
