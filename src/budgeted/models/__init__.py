"""The networks by name: what there is, what each one is, and how to build one from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from budgeted.errors import BudgetedError, UnknownName
from budgeted.models.initialise import initialised
from budgeted.models.mlp import HIDDEN, MultilayerPerceptron
from budgeted.models.parts import ImageShape
from budgeted.models.plain import NARROW, WIDE, PlainStyle, plain_cnn
from budgeted.models.resnet import BASIC, PUBLISHED, STANDARD, ResNetShape, ResNetVariant, resnet, slim

__all__ = ["ImageShape", "build", "describe", "names"]


@dataclass(frozen=True)
class Entry:
    """One named network: a line for people, and its wiring with weights still to be drawn."""

    description: str
    wire: Callable[[int, ImageShape], nn.Module]


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


RESNETS = {
    "resnet18": BASIC,
    "resnet20": slim(3),
    "resnet32": slim(5),
    "resnet56": slim(9),
}
PLAIN_DEPTHS = (8, 16, 32)

REGISTRY: dict[str, Entry] = {
    **{name: resnet_entry(s, PUBLISHED, f"ResNet-{name[6:]}") for name, s in RESNETS.items()},
    **{f"{name}-standard": resnet_entry(s, STANDARD, f"ResNet-{name[6:]}") for name, s in RESNETS.items()},
    **{f"cnn{depth}": plain_entry(depth, NARROW) for depth in PLAIN_DEPTHS},
    **{f"cnn{depth}-wide": plain_entry(depth, WIDE) for depth in PLAIN_DEPTHS},
    "mlp": Entry(f"multilayer perceptron, one hidden layer of {HIDDEN}", MultilayerPerceptron),
}


def names() -> list[str]:
    """Every name that `build` knows."""
    return list(REGISTRY)


def describe(name: str) -> str:
    """One line on the named network."""
    return entry(name).description


def build(name: str, *, classes: int = 1, input_shape: ImageShape = (3, 32, 32), seed: int = 0) -> nn.Module:
    """The named network for images of `input_shape` (channels, height, width), its weights drawn from `seed`.

    The same arguments give bit-equal weights, and the global random state is neither read nor moved.

    >>> model = build("resnet32", classes=10)
    >>> sum(p.numel() for p in model.parameters())
    466906
    """
    wire = entry(name).wire
    if classes < 1:
        raise BudgetedError(f"a model cannot have {classes} classes: ask for 1 or more (the head can grow later)")
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise BudgetedError(
            f"input_shape {tuple(input_shape)} is no image: give (channels, height, width), each at least 1"
        )
    return initialised(lambda: wire(classes, input_shape), seed)


def entry(name: str) -> Entry:
    if name not in REGISTRY:
        raise UnknownName("model", name, REGISTRY)
    return REGISTRY[name]
