"""A multilayer perceptron with one hidden layer: the smallest network, where a loop's own overhead shows."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from budgeted.models.parts import ImageShape

HIDDEN = 256


class MultilayerPerceptron(nn.Module):
    """Pixels in one row, a hidden layer with ReLU, a linear head."""

    def __init__(self, classes: int, image: ImageShape, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(prod(image), hidden), nn.ReLU())
        self.head = nn.Linear(hidden, classes)

    def features(self, images: Tensor) -> Tensor:
        """What the head reads: one vector per image."""
        hidden: Tensor = self.stem(images)
        return hidden

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits
