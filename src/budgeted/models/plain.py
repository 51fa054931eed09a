"""Plain CNNs: convolution, batch norm and ReLU in a row, no shortcuts, in two widths.

The paper (appendix, "diverse network architectures") says of its 8-, 16- and 32-layer CNNs only that they
consist of "convolution, batch normalization, activation, and fully connected layers". Two readings:

`NARROW` (cnn8, cnn16, cnn32) counts 8, 16 or 32 weight layers in all, the head among them, in three stages of
the slim ResNets' widths. The convolutions, stem included, are shared out evenly, earlier stages taking what
is left over; the first of each later stage has stride 2. cnn32 is thus ResNet-32 less its shortcuts.

`WIDE` (cnn8-wide, ...) is reconstructed from the costs that the paper prints: 506.54, 1236.51 and 2696.46 T
under rule `paper` for one CIFAR-10 run of 799,880 image passes. They are met to the last digit by 8, 16 or 32
convolutions before the head, in four stages of 64/128/256/512, with a bias in every convolution except those
of stride 2 between stages, which stand bare (no bias, batch norm or ReLU). That is evidence, not proof.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from budgeted.models.parts import ImageClassifier, ImageShape, conv_unit, stem


@dataclass(frozen=True)
class PlainStyle:
    """How a depth becomes a row of convolutions."""

    widths: tuple[int, ...]
    head_counts: bool  # whether the head is one of the layers that the depth counts
    conv_bias: bool
    bare_transitions: bool  # stride-2 convolutions without bias, batch norm and ReLU
    summary: str


NARROW = PlainStyle(
    widths=(16, 32, 64),
    head_counts=True,
    conv_bias=False,
    bare_transitions=False,
    summary="{depth} weight layers with the head",
)
WIDE = PlainStyle(
    widths=(64, 128, 256, 512),
    head_counts=False,
    conv_bias=True,
    bare_transitions=True,
    summary="{depth} convolutions before the head (meets the paper's printed cost)",
)


def plain_cnn(depth: int, style: PlainStyle, classes: int, image: ImageShape) -> ImageClassifier:
    """The stem is the first convolution of the first stage; the rest follow stage by stage."""
    convolutions = depth - 1 if style.head_counts else depth
    each, left_over = divmod(convolutions, len(style.widths))
    width = style.widths[0]
    stages = nn.Sequential()
    for number, outputs in enumerate(style.widths):
        units = nn.Sequential()
        if number > 0:
            units.append(transition(width, outputs, style))
        for _ in range(each + (number < left_over) - 1):  # the stem or the transition is the stage's first
            units.append(conv_unit(outputs, outputs, bias=style.conv_bias))
        stages.append(units)
        width = outputs
    first = stem(image, style.widths[0], bias=style.conv_bias)
    return ImageClassifier(first, stages, features=width, classes=classes)


def transition(inputs: int, outputs: int, style: PlainStyle) -> nn.Module:
    """The stride-2 convolution that opens every stage after the first."""
    if style.bare_transitions:
        return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return conv_unit(inputs, outputs, stride=2, bias=style.conv_bias)
