"""A network of your own that grows: a new branch when a task ends, the old ones rest. Sums of branches meet the head.

budgeted run --model examples/growing.py:growing --method vanilla --stream disjoint
budgeted check examples/growing.py:growing
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def branch(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())


class Growing(nn.Module):
    """A stem, branches side by side, and a linear head that grows with the classes."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.branches = nn.ModuleList([branch(width)])
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.stem(images)
        logits: Tensor = self.head(torch.stack([each(maps) for each in self.branches]).sum(0).mean((2, 3)))
        return logits

    def end_task(self) -> None:
        """Called by the learner when a task ends; parameters, prices, bytes and checkpoints follow."""
        self.branches.requires_grad_(False)
        self.branches.append(branch(self.head.in_features))


def growing(classes: int, input_shape: tuple[int, int, int]) -> nn.Module:
    """a branch more for every task, 8 channels each"""
    return Growing(input_shape[0], 8, classes)
