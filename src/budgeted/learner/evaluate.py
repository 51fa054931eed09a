"""Evaluation on the test images of the classes seen so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgeted.learner.learner import Learner
from budgeted.streams import Images

_CHUNK = 256


@dataclass(frozen=True)
class Score:
    """Per class (by label): how many test images were right, of how many."""

    correct: tuple[int, ...]
    total: tuple[int, ...]

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / sum(self.total) if sum(self.total) else 0.0


def evaluate(
    learner: Learner, images: Tensor | Images, labels: NDArray[np.int64], classes: int
) -> tuple[Score, NDArray[np.int64]]:
    """Score on the images of seen classes, and the labels predicted for all images (-1 before any class is seen).

    Images that are not held in memory are decoded a few at a time.
    """
    if not learner.class_labels:
        return Score((0,) * classes, (0,) * classes), np.full(len(labels), -1)
    predicted = learner.predict(images).numpy() if isinstance(images, Tensor) else _predicted(learner, images)
    seen = np.isin(labels, learner.class_labels)
    right = (predicted == labels) & seen
    return (
        Score(
            tuple(int(count) for count in np.bincount(labels[right], minlength=classes)),
            tuple(int(count) for count in np.bincount(labels[seen], minlength=classes)),
        ),
        predicted.astype(np.int64),
    )


def _predicted(learner: Learner, images: Images) -> NDArray[np.int64]:
    pieces = (as_tensor(images[start : start + _CHUNK]) for start in range(0, len(images), _CHUNK))
    return np.concatenate([learner.predict(piece).numpy() for piece in pieces])


def fixed_subset(labels: NDArray[np.int64], count: int | None) -> NDArray[np.int64]:
    """The first images of each class in turn, the same for every seed: `count` of them, or all."""
    if count is None or count >= len(labels):
        return np.arange(len(labels))
    rank = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        rank[places] = np.arange(len(places))
    return np.sort(np.lexsort((labels, rank))[:count])


def as_tensor(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images))
