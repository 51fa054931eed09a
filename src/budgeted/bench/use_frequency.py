"""The paper's three toy experiments on use frequency (Figures 19 to 21): what one sample's use does to its loss.

A small network learns single samples, one a step, by plain gradient descent: a step then moves along the gradient of
its one sample alone, where Adam's averages would mix in those of the steps before. Batch norm takes its statistics from
the sample itself, in training and in measuring alike.

1. `decreases`: how much a step lowers the loss of its own sample, by how often that sample was used before.
2. `forgotten`: a reference sample is used some times, and its loss after each use is noted; then others are learned,
   and its rising loss is read back through that curve as an effective use frequency.
3. `transferred`: the same, after a single step with one other sample, against the cosine of the two gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from budgeted import models, streams

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ToySettings:
    """The size of the three experiments."""

    dataset: str = "cifar10"
    model: str = "resnet20"
    per_class: int = 5
    """samples of each class in the subset"""
    epochs: int = 15
    """of `decreases`"""
    references: int = 12
    """samples that are looked at in `forgotten` and `transferred`"""
    uses: int = 12
    """of a reference before others are learned"""
    others: int = 40
    """steps with other samples; in `transferred` each from the same weights"""
    learning_rate: float = 0.01
    seed: int = 1


class Toy:
    """A network, a few samples, and the loss of one of them."""

    def __init__(self, settings: ToySettings, data: streams.Dataset) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.random = np.random.default_rng(settings.seed)
        labels = np.asarray(data.train_labels)
        chosen = np.concatenate([
            self.random.choice(np.flatnonzero(labels == label), settings.per_class, replace=False)
            for label in np.unique(labels)
        ])  # fmt: skip
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (data.info.mean, data.info.std))
        images = torch.from_numpy(np.stack([np.asarray(data.train_images[place]) for place in chosen]))
        self.images = (images.float() / 255 - mean) / std
        self.labels = torch.from_numpy(labels[chosen].astype(np.int64))
        classes = data.info.classes
        self.model: nn.Module = models.build(
            settings.model, classes=classes, input_shape=data.info.input_shape, seed=settings.seed
        ).train()
        self.parameters = list(self.model.parameters())

    def __len__(self) -> int:
        return len(self.labels)

    def _loss(self, place: int) -> Tensor:
        return F.cross_entropy(self.model(self.images[place : place + 1]), self.labels[place : place + 1])

    def loss(self, place: int) -> float:
        with torch.no_grad():
            return float(self._loss(place))

    def gradients(self, place: int) -> list[Tensor]:
        return list(torch.autograd.grad(self._loss(place), self.parameters))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.sub_(gradient, alpha=self.settings.learning_rate)

    def learn(self, place: int) -> None:
        self.step(self.gradients(place))

    def weights(self) -> dict[str, Tensor]:
        return copy.deepcopy(self.model.state_dict())

    def put_back(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights)

    def order(self, without: int | None = None) -> Iterator[int]:
        """All samples in random order, without end."""
        while True:
            yield from (int(place) for place in self.random.permutation(len(self)) if place != without)


def effective(curve: Sequence[float], loss: float) -> float:
    """The use count at which a sample had this loss; `curve` is its loss after 0, 1, 2 … uses, and falls."""
    falling = np.minimum.accumulate(np.asarray(curve))
    return float(np.interp(-loss, -falling, np.arange(len(falling))))


def decreases(toy: Toy) -> dict[str, Any]:
    """Figure 19."""
    by_use: list[list[float]] = [[] for _ in range(toy.settings.epochs)]
    used = np.zeros(len(toy), dtype=int)
    order = toy.order()
    for _ in range(toy.settings.epochs * len(toy)):
        place = next(order)
        before = toy.loss(place)
        toy.learn(place)
        by_use[used[place]].append(before - toy.loss(place))
        used[place] += 1
    counts = np.repeat(np.arange(len(by_use)), [len(found) for found in by_use])
    rank = stats.spearmanr(counts, np.concatenate([np.asarray(found) for found in by_use]))
    return {
        "decrease_by_use": [_mean_and_error(found) for found in by_use],
        "spearman": _number(rank.statistic),
        "p": _number(rank.pvalue),
    }


@dataclass(frozen=True)
class Reference:
    """A sample after all its uses, its loss after each of them, and the weights after half of them."""

    place: int
    curve: list[float]
    half: dict[str, Tensor]


def _reference(toy: Toy, place: int) -> Reference:
    curve, half = [toy.loss(place)], toy.weights()
    for use in range(1, toy.settings.uses + 1):
        toy.learn(place)
        curve.append(toy.loss(place))
        if use == toy.settings.uses // 2:
            half = toy.weights()
    return Reference(place, curve, half)


def _references(toy: Toy) -> Iterator[Reference]:
    """Each from the same network, which has seen every other sample twice."""
    for place in toy.random.choice(len(toy), min(toy.settings.references, len(toy)), replace=False):
        before = toy.weights()
        order = toy.order(without=int(place))
        for _ in range(2 * (len(toy) - 1)):
            toy.learn(next(order))
        found = _reference(toy, int(place))
        if found.curve[-1] < found.curve[0]:  # one whose use lowers no loss has no curve to read back
            yield found
        toy.put_back(before)


def forgotten(toy: Toy) -> dict[str, Any]:
    """Figure 20: the mean effective frequency after each step with another sample, and its exponential fit."""
    rows = []
    for reference in _references(toy):
        curve, order = reference.curve, toy.order(without=reference.place)
        found = [effective(curve, curve[-1])]
        for _ in range(toy.settings.others):
            toy.learn(next(order))
            found.append(effective(curve, toy.loss(reference.place)))
        rows.append(found)
    mean = np.mean(rows, axis=0)
    there = np.flatnonzero(mean > 0)
    fit = stats.linregress(there, np.log(mean[there])) if len(there) > 2 else None
    return {
        "references": len(rows),
        "effective": [_number(value) for value in mean],
        "rate": None if fit is None else _number(fit.slope),
        "start": None if fit is None else _number(np.exp(fit.intercept)),
        "r_squared": None if fit is None else _number(fit.rvalue**2),
    }


def transferred(toy: Toy) -> dict[str, Any]:
    """Figure 21: cosine of the gradients, and the change of the reference's effective frequency, which may rise: it has
    had half of its uses only."""
    cosines, changes = [], []
    for reference in _references(toy):
        place, curve = reference.place, reference.curve
        toy.put_back(reference.half)
        own = _flat(toy.gradients(place))
        now = effective(curve, toy.loss(place))
        others = [int(other) for other in toy.random.permutation(len(toy)) if other != place][: toy.settings.others]
        for other in others:
            gradients = toy.gradients(other)
            cosines.append(float(F.cosine_similarity(own, _flat(gradients), dim=0)))
            toy.step(gradients)
            changes.append(effective(curve, toy.loss(place)) - now)
            toy.put_back(reference.half)
    fit = stats.linregress(cosines, changes)
    return {
        "cosine": [round(value, 5) for value in cosines],
        "change": [round(value, 5) for value in changes],
        "slope": _number(fit.slope), "intercept": _number(fit.intercept),
        "r": _number(fit.rvalue), "p": _number(fit.pvalue),
    }  # fmt: skip


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients])


def _mean_and_error(values: Sequence[float]) -> list[float | None]:
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return [_number(float(np.mean(values))), error]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def toy_experiments(settings: ToySettings, data_dir: Path | None) -> dict[str, Any]:
    data = streams.load(settings.dataset, data_dir, test=False)
    return {
        "settings": asdict(settings),
        "decreases": decreases(Toy(settings, data)),
        "forgotten": forgotten(Toy(settings, data)),
        "transferred": transferred(Toy(settings, data)),
    }
