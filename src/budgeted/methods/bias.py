"""BiC's correction: two numbers that take the bias out of the logits of new classes, fitted on balanced samples.

Corrected logits are linear in both numbers, so the cross-entropy is convex in them, and Newton's method with step
halving finds its minimum in a few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_ROUNDS = 30


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
    target = torch.stack([logits.gather(1, labels[:, None])[:, 0] * is_new, is_new], 1)

    def loss_at(alpha: float, beta: float) -> float:
        losses = F.cross_entropy(Correction(first, alpha, beta)(logits), labels, reduction="none")
        return float(losses @ weights) + decay / 2 * ((alpha - 1) ** 2 + beta**2)

    alpha, beta, loss = 1.0, 0.0, loss_at(1.0, 0.0)
    for _ in range(_ROUNDS):
        chances = F.softmax(Correction(first, alpha, beta)(logits), dim=1)[:, first:]
        scaled = chances * fresh
        mean = torch.stack([scaled.sum(1), chances.sum(1)], 1)
        slope_a, slope_b = (weights @ (mean - target) + decay * torch.tensor([alpha - 1, beta])).tolist()
        aa, ab, bb = (weights @ torch.stack([(scaled * fresh).sum(1), *mean.T], 1)).tolist()
        (of_aa, of_ab), (_, of_bb) = ((mean.T * weights) @ mean).tolist()
        aa, ab, bb = aa - of_aa + decay, ab - of_ab, bb - of_bb + decay
        scale, size = aa * bb - ab**2, 1.0
        step_a, step_b = (bb * slope_a - ab * slope_b) / scale, (aa * slope_b - ab * slope_a) / scale
        while (there := loss_at(alpha - size * step_a, beta - size * step_b)) > loss and size > 1e-6:
            size /= 2
        if loss - there <= 1e-12 * loss:
            break  # at the minimum, as far as numbers of this length can tell
        alpha, beta, loss = alpha - size * step_a, beta - size * step_b, there
    return Correction(first, alpha, beta)
