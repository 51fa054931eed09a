"""Class similarity S: how alike the gradients of two classes are, learned from the batches trained on.

Both forms see the gradients of each sample of a batch at a few sampled weights. What is decided here:

* Cosines are taken over the weights present in the step only (frozen blocks have none); with none present,
  S stays as it is.
* A sample whose gradient is zero or not finite has no direction: it is left out.
* One batch is one step of the moving average for every pair of classes in it, however many pairs of
  samples the batch has of them: the step goes towards the mean over these pairs. A sample is never paired
  with itself.
* A class not met yet has similarity 0 to all, or, if asked, the mean over the classes known when it is
  first stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch

from budgeted.budget.kept import Keeps
from budgeted.replay.membership import Slots

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Update = tuple[Slots, Floats | None]
"""The classes of which the rows of S have changed, and the change of these rows where it reaches other
columns.
"""


class Similarity(Keeps, ABC):
    """S as it is now, and how it learns."""

    kept: ClassVar[tuple[str, ...]] = ("matrix",)
    matrix: Singles
    operations: int
    """Operations of the latest update."""

    @abstractmethod
    def ensure_classes(self, classes: int) -> None: ...

    @abstractmethod
    def update(self, values: torch.Tensor, present: torch.Tensor, labels: Slots) -> Update | None: ...


def start_at_mean(matrix: Singles, label: int, known: npt.NDArray[np.bool_]) -> None:
    """Give a new class the mean similarity among the known ones, and the mean of their diagonal."""
    others = np.flatnonzero(known)
    if others.size:
        among = matrix[np.ix_(others, others)].astype(np.float64)
        apart = among.sum() - among.trace()
        mean = apart / max(1, others.size * (others.size - 1))
        matrix[label, others] = matrix[others, label] = mean
        matrix[label, label] = among.trace() / others.size


def directions(values: torch.Tensor, present: torch.Tensor, labels: Slots) -> tuple[Singles, Singles, Slots] | None:
    """Gradients at the weights present, their norms and their labels, for the samples that have a
    direction.
    """
    rows: Singles = values.detach().float().cpu().numpy()
    kept = present.cpu().numpy()
    if not kept.all():
        if not kept.any():
            return None
        rows = rows[:, kept]
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    usable = np.isfinite(norms) & (norms > 0)
    if not usable.all():
        rows, norms, labels = rows[usable], norms[usable], labels[usable]
    return rows, norms, labels


def groups(labels: Slots) -> tuple[Slots, Floats]:
    """The classes of a batch, and for each a row that marks its samples."""
    classes, which = np.unique(labels, return_inverse=True)
    marks = np.zeros((classes.size, labels.size))
    marks[which, np.arange(labels.size)] = 1.0
    return classes, marks


def grown(array: npt.NDArray[np.float32], *sizes: int) -> Singles:
    larger = np.zeros(sizes, np.float32)
    larger[tuple(slice(length) for length in array.shape)] = array
    return larger


class PairwiseSimilarity(Similarity):
    """Algorithm 1 of the paper: a moving average of the cosines between samples, n_cls² floats."""

    def __init__(self, classes: int, ema: float) -> None:
        self.matrix: Singles = np.zeros((classes, classes), np.float32)
        self.operations = 0
        self._ema = ema

    def ensure_classes(self, classes: int) -> None:
        if classes > len(self.matrix):
            self.matrix = grown(self.matrix, classes, classes)

    def update(self, values: torch.Tensor, present: torch.Tensor, labels: Slots) -> Update | None:
        self.operations = 0
        found = directions(values, present, labels)
        if found is None or len(found[2]) < 2:
            return None
        rows, norms, labels = found
        unit = rows / norms[:, None]
        cosines = (unit @ unit.T).astype(np.float64)
        np.fill_diagonal(cosines, 0.0)
        classes, marks = groups(labels)
        sums = marks @ cosines @ marks.T
        sizes = marks.sum(axis=1)
        pairs = np.outer(sizes, sizes)
        np.fill_diagonal(pairs, sizes * (sizes - 1))
        mean = 0.5 * (sums + sums.T) / np.maximum(pairs, 1.0)
        block = np.ix_(classes, classes)
        old = self.matrix[block]
        step = np.where(pairs > 0, self._ema * (mean - old), 0.0)
        self.matrix[block] = np.clip(old + step, -1.0, 1.0)
        batch, weights = rows.shape
        met = classes.size
        self.operations = 2 * batch * weights * (1 + batch) + 2 * met * batch * (batch + met) + 8 * met * met
        return classes, None


class OwnClassAlone(Similarity):
    """No similarity but a class's own: S is the identity, nothing is learned and no gradients are wanted."""

    def __init__(self, classes: int) -> None:
        self.matrix: Singles = np.eye(classes, dtype=np.float32)
        self.operations = 0

    def ensure_classes(self, classes: int) -> None:
        if classes > len(self.matrix):
            self.matrix = np.eye(classes, dtype=np.float32)

    def update(self, values: torch.Tensor, present: torch.Tensor, labels: Slots) -> Update | None:
        return None


ClassGradientForm = Literal["cosine", "unit", "published"]


class ClassGradientSimilarity(Similarity):
    """Appendix A.17: a moving average of each class's gradient, n_cls · d floats, and S from these.

    `cosine` is cos(G_i, G_j), so that a class is wholly like itself. `unit` averages gradients of length
    one and takes G_i · G_j, which estimates the expected cosine by which the paper defines S. `published`
    is cos(G_i, G_j) √(s_i s_j) a_i a_j, where s_i averages cos(sample, G_i) before the step and a_i = 1 -
    (1 - ema)^steps. In a step with some weights frozen, only the coordinates present move.
    """

    kept = ("_gradients", "_own")

    def __init__(self, classes: int, ema: float, coordinates: int, form: ClassGradientForm) -> None:
        self.matrix: Singles = np.zeros((classes, classes), np.float32)
        self.operations = 0
        self._gradients: Singles = np.zeros((classes, coordinates), np.float32)
        self._own: Singles = np.zeros((classes, 3), np.float32)  # |G|, s, a
        self._ema = ema
        self._form = form

    def ensure_classes(self, classes: int) -> None:
        if classes > len(self.matrix):
            self.matrix = grown(self.matrix, classes, classes)
            self._gradients = grown(self._gradients, classes, self._gradients.shape[1])
            self._own = grown(self._own, classes, 3)

    def update(self, values: torch.Tensor, present: torch.Tensor, labels: Slots) -> Update | None:
        self.operations = 0
        found = directions(values, present, labels)
        if found is None or not len(found[2]):
            return None
        rows, lengths, labels = found
        if self._form == "unit":
            rows = rows / lengths[:, None]
        classes, marks = groups(labels)
        marks = (marks / marks.sum(axis=1, keepdims=True)).astype(np.float32)
        moving = np.ix_(classes, np.flatnonzero(present.cpu().numpy()))
        before = self._gradients[moving]
        own = self._own[classes]
        if self._form == "published":
            self._meet(own, rows, lengths, before, marks)
        self._gradients[moving] = before + self._ema * (marks @ rows - before)
        gradients = self._gradients[classes]
        own[:, 0] = np.sqrt(np.square(gradients).sum(axis=1))
        self._own[classes] = own
        dots = gradients @ self._gradients.T
        self.operations = (5 + 2 * classes.size) * rows.size + (2 * gradients.shape[1] + 6) * dots.size
        return self._refresh(classes, dots)

    def _meet(self, own: Singles, rows: Singles, lengths: Singles, before: Singles, marks: Singles) -> None:
        """s and a of the classes in the batch; s waits until there is a class gradient to compare with."""
        norms = np.sqrt(np.square(before).sum(axis=1))
        met = norms > 0
        cosines = (before @ rows.T) / (np.where(met, norms, 1.0)[:, None] * lengths)
        own[met, 1] += self._ema * ((marks * cosines).sum(axis=1) - own[:, 1])[met]
        own[:, 2] += self._ema * (1.0 - own[:, 2])

    def _refresh(self, classes: Slots, dots: Singles) -> Update:
        """Rows and columns of `classes` from the dot products with every class; a class without gradient
        keeps its own.
        """
        fresh = dots.astype(np.float64)
        norms = self._own[:, 0].astype(np.float64)
        met = norms > 0
        if self._form != "unit":
            fresh /= np.where(met, norms, 1.0)
            fresh /= np.where(met, norms, 1.0)[classes, None]
        if self._form == "published":
            weight = np.sqrt(np.maximum(self._own[:, 1], 0.0)) * self._own[:, 2]
            fresh *= weight * weight[classes, None]
        old = self.matrix[classes]
        fresh = np.where(met & met[classes, None], np.clip(fresh, -1.0, 1.0), old)
        fresh[:, classes] = 0.5 * (fresh[:, classes] + fresh[:, classes].T)
        self.matrix[classes] = fresh
        self.matrix[:, classes] = self.matrix[classes].T
        return classes, self.matrix[classes].astype(np.float64) - old
