"""A model of your own, for images of any size: two paths that are added up, and a linear head that grows.

budgeted run --model examples/two_paths.py:two_paths
budgeted check examples/two_paths.py:two_paths
"""

from __future__ import annotations

from torch import Tensor, nn


class TwoPaths(nn.Module):
    """A block with a shortcut, behind a stem."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images)
        logits: Tensor = self.head((maps + self.body(maps)).mean((2, 3)))
        return logits


def two_paths(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """two paths added up, 16 channels"""
    return TwoPaths(input_shape[0], 16, classes)
