"""ResNets in two variants that differ in where the ReLU stands: the published code's and He et al.'s."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from budgeted.models.parts import ImageClassifier, ImageShape, conv_unit, stem


@dataclass(frozen=True)
class ResNetVariant:
    """The one setting between the variants: ReLU after the addition, or on both paths before it."""

    relu_after_addition: bool
    epsilon: float  # of every batch norm
    summary: str


# What the paper's results were computed with: body and projection shortcut are each rectified, then added,
# and nothing follows. The two variants also cost differently under either counting rule.
PUBLISHED = ResNetVariant(
    relu_after_addition=False,
    epsilon=1e-6,
    summary="ReLU before the addition (as the paper ran it)",
)
# He et al.'s block, with 1x1 projections where the shape changes (their option B) at every depth.
STANDARD = ResNetVariant(
    relu_after_addition=True, epsilon=1e-5, summary="ReLU after the addition (the standard ResNet)"
)


@dataclass(frozen=True)
class ResNetShape:
    """Width and number of basic blocks of each stage; every stage but the first halves the image."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]


BASIC = ResNetShape(widths=(64, 128, 256, 512), depths=(2, 2, 2, 2))


def slim(blocks: int) -> ResNetShape:
    """He et al.'s family for 32-pixel images: 6n + 2 weight layers."""
    return ResNetShape(widths=(16, 32, 64), depths=(blocks,) * 3)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, variant: ResNetVariant) -> None:
        super().__init__()
        rectify_paths = not variant.relu_after_addition
        self.body = nn.Sequential(
            conv_unit(inputs, outputs, stride=stride, epsilon=variant.epsilon),
            conv_unit(outputs, outputs, epsilon=variant.epsilon, relu=rectify_paths),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = conv_unit(
                inputs, outputs, kernel=1, stride=stride, epsilon=variant.epsilon, relu=rectify_paths
            )
        self.after: nn.Module = nn.ReLU(inplace=True) if variant.relu_after_addition else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.after(self.body(images) + self.shortcut(images))
        return out


def resnet(shape: ResNetShape, variant: ResNetVariant, classes: int, image: ImageShape) -> ImageClassifier:
    """Stem of the first stage's width, one sequence of basic blocks per stage, linear head."""
    width = shape.widths[0]
    first = stem(image, width, epsilon=variant.epsilon)
    stages = nn.Sequential()
    for number, (outputs, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
        blocks = nn.Sequential()
        for position in range(depth):
            halves = number > 0 and position == 0
            blocks.append(BasicBlock(width, outputs, 2 if halves else 1, variant))
            width = outputs
        stages.append(blocks)
    return ImageClassifier(first, stages, features=width, classes=classes)
