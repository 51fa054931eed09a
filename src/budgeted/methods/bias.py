"""BiC's correction: two numbers that take the bias out of the logits of new classes, fitted on balanced samples.

The cross-entropy is convex in both, so Newton's method with step halving finds its minimum in a few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ROUNDS = 30
_HALVINGS = 20


@dataclass(frozen=True)
class Correction:
    """Logits from class `first` on become alpha * logit + beta."""

    first: int
    alpha: float = 1.0
    beta: float = 0.0

    def __call__(self, logits: Tensor) -> Tensor:
        if self.alpha == 1 and self.beta == 0:
            return logits
        return torch.cat([logits[:, : self.first], self.alpha * logits[:, self.first :] + self.beta], 1)


IDENTITY = Correction(0)


def fit(logits: Tensor, labels: Tensor, first: int, decay: float) -> Correction:
    """The correction with the smallest loss, every class weighing the same.

    The loss is the cross-entropy plus decay / 2 * ((alpha - 1)^2 + beta^2).
    """
    logits = logits.double()
    weights = 1.0 / torch.bincount(labels, minlength=logits.shape[1])[labels].double()
    weights = weights / weights.sum()
    fresh, is_new = logits[:, first:], (labels >= first).double()
    own = logits.gather(1, labels[:, None])[:, 0] * is_new
    alpha, beta = 1.0, 0.0
    loss = _loss(logits, labels, weights, Correction(first, alpha, beta), decay)
    for _ in range(_ROUNDS):
        chances = F.softmax(Correction(first, alpha, beta)(logits), dim=1)[:, first:]
        scaled = chances * fresh
        by_alpha, by_beta, square = scaled.sum(1), chances.sum(1), (scaled * fresh).sum(1)
        slope_a = float(weights @ (by_alpha - own)) + decay * (alpha - 1)
        slope_b = float(weights @ (by_beta - is_new)) + decay * beta
        bend_aa = float(weights @ (square - by_alpha**2)) + decay
        bend_ab = float(weights @ (by_alpha - by_alpha * by_beta))
        bend_bb = float(weights @ (by_beta - by_beta**2)) + decay
        scale = bend_aa * bend_bb - bend_ab**2
        step_a, step_b = (
            (bend_bb * slope_a - bend_ab * slope_b) / scale,
            (bend_aa * slope_b - bend_ab * slope_a) / scale,
        )
        size = 1.0
        for _ in range(_HALVINGS):
            there = Correction(first, alpha - size * step_a, beta - size * step_b)
            trial = _loss(logits, labels, weights, there, decay)
            if trial <= loss:
                break
            size /= 2
        else:
            break  # at the minimum, as far as numbers of this length can tell
        alpha, beta = there.alpha, there.beta
        if loss - trial <= 1e-12 * loss:
            break
        loss = trial
    return Correction(first, alpha, beta)


def _loss(logits: Tensor, labels: Tensor, weights: Tensor, correction: Correction, decay: float) -> float:
    losses = F.cross_entropy(correction(logits), labels, reduction="none")
    return float(losses @ weights) + decay / 2 * ((correction.alpha - 1) ** 2 + correction.beta**2)
