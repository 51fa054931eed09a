"""A small learner, its data and its settings, for the tests of what holds whatever the method."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from budgeted import models
from budgeted.learner import DataFacts, Learner, LearnerSettings, Settings
from budgeted.methods import METHODS, Method
from tests.bright_rows import FACTS, SHAPE, samples
from tests.nets import seeded

# averages that follow soon, so that a short run freezes
EAGER = {"ema": 0.3, "ema_start": "first"}


def cnn8(seed: int = 0) -> nn.Module:
    return models.build("cnn8", classes=1, input_shape=SHAPE, seed=seed)


class Tiny(nn.Module):
    """Two convolutions and a head: hundreds of bytes, so that a slot or a class is not lost among the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(images)).mean((2, 3)))
        return logits


def tiny() -> nn.Module:
    return seeded(Tiny)


def settings_of(method: Method | type[Method], batch_size: int = 4, **learner: Any) -> Settings:
    # a stream of unknown length has no fifths, so ptlf is told how long a stretch is
    freezing: dict[str, dict[str, Any]] = {"adaptive": EAGER, "ptlf": {"stretch": 12}}
    return Settings(
        LearnerSettings(batch_size=batch_size, learning_rate=1e-2, **learner),
        freezing=freezing.get(str(method.freezing), {}),
    )


def make(
    method: str | Method | type[Method], model: nn.Module | None = None, facts: DataFacts = FACTS, **more: Any
) -> Learner:
    chosen = METHODS[method] if isinstance(method, str) else method
    given = {"slots": 20, "seed": 0, "settings": settings_of(chosen), **more}
    return Learner(model or cnn8(), chosen, facts, **given)


def images(count: int) -> Tensor:
    return torch.stack([image for image, _ in samples(count, seed=9)])
