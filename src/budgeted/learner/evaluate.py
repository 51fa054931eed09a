"""Evaluation on the test images of the classes seen so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budgeted.learner.learner import Learner
from budgeted.problems import Classification
from budgeted.streams import Images
from budgeted.streams.records import as_sample

_CHUNK = 256
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Score:
    """Per class (by label): how many test images were right, of how many."""

    correct: tuple[float, ...]
    total: tuple[int, ...]
    beside: Mapping[str, float] = field(default_factory=dict)
    """what else the problem measures of its answers, summed: unparsed ones, say"""

    @property
    def accuracy(self) -> float:
        return sum(self.correct) / sum(self.total) if sum(self.total) else 0.0


def evaluate(
    learner: Learner,
    images: Tensor | Images,
    labels: NDArray[np.int64],
    classes: int,
    precision: Precision = "float32",
    *,
    folded: bool = False,
    everything: bool = True,
) -> tuple[Score, NDArray[np.int64] | None]:
    """Score on the samples of seen classes, and the labels predicted (-1 before any class is seen; None where something
    else than classes is learned, and where not `everything` was wanted: then images of classes that were not seen are
    not looked at).

    Images that are not held in memory are decoded a few at a time. `folded`: with batch norm in the convolutions.
    """
    if folded:
        with learner.network.folding():
            return evaluate(learner, images, labels, classes, precision, everything=everything)
    if precision == "bfloat16":
        with torch.autocast(learner.device.type, torch.bfloat16):
            return evaluate(learner, images, labels, classes, everything=everything)
    if not learner.class_labels:
        return Score((0,) * classes, (0,) * classes), np.full(len(labels), -1)
    if not isinstance(learner.problem, Classification):
        return _scored(learner, images, labels, classes), None
    seen = np.isin(labels, learner.class_labels)
    if not everything and not seen.all():
        images, labels, seen = images[np.flatnonzero(seen)], labels[seen], np.ones(int(seen.sum()), bool)
    predicted = learner.predict(images).numpy() if isinstance(images, Tensor) else _predicted(learner, images)
    right = (predicted == labels) & seen
    return (
        Score(
            tuple(int(count) for count in np.bincount(labels[right], minlength=classes)),
            tuple(int(count) for count in np.bincount(labels[seen], minlength=classes)),
        ),
        predicted.astype(np.int64) if everything else None,
    )


def _scored(learner: Learner, samples: Tensor | Images, labels: NDArray[np.int64], classes: int) -> Score:
    """By the problem's own score: how right the answers are, summed by key."""
    right, total, beside = np.zeros(classes), np.zeros(classes, np.int64), dict[str, float]()
    seen = np.flatnonzero(np.isin(labels, learner.class_labels))
    for start in range(0, len(seen), _CHUNK):
        places = seen[start : start + _CHUNK]
        piece = samples[places] if isinstance(samples, Tensor) else as_sample(samples[places])
        scores, more = learner.judged(piece, labels[places].tolist())
        np.add.at(right, labels[places], scores.double().numpy())
        np.add.at(total, labels[places], 1)
        for name, found in more.items():
            beside[name] = beside.get(name, 0.0) + float(found.double().sum())
    return Score(tuple(right.tolist()), tuple(total.tolist()), beside)


def _predicted(learner: Learner, images: Images) -> NDArray[np.int64]:
    pieces = (as_tensor(images[start : start + _CHUNK]) for start in range(0, len(images), _CHUNK))
    return np.concatenate([learner.predict(piece).numpy() for piece in pieces])


def as_tensor(images: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images))
