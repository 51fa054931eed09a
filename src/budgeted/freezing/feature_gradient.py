"""The gradient of the loss at the last feature, known before any backward pass.

For a linear head with cross-entropy it is (softmax - one-hot) times the head's weight, row by row. For any other loss
it is asked of autograd, for the last feature alone: that runs the loss and the head backwards, and nothing below.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.budget import Cost
from budgeted.errors import BudgetedError


class NotPlainCrossEntropy(BudgetedError):
    """The closed form was asked for a loss that it does not hold for."""


@torch.no_grad()
def closed_form(logits: Tensor, targets: Tensor, weight: Tensor, ignore_index: int = -100) -> Tensor:
    """One row per sample (or token): the gradient of that row's own cross-entropy; ignored rows are left out."""
    logits = logits.detach().float().reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    kept = targets != ignore_index
    if not bool(kept.all()):
        logits, targets = logits[kept], targets[kept]
    difference = F.softmax(logits, dim=1)
    difference[torch.arange(len(targets), device=targets.device), targets] -= 1
    return difference @ weight.detach().float()


def by_autograd(loss: Tensor, feature: Tensor) -> Tensor:
    """The rows of the gradient of a mean loss, each scaled to its own sample's loss; the graph is kept."""
    (gradient,) = torch.autograd.grad(loss, feature, retain_graph=True)
    return (gradient.float() * gradient.shape[0]).reshape(gradient.shape[0], -1)


def mean_square(rows: Tensor) -> float:
    """The mean over rows of the squared norm (not the square of the mean)."""
    return float(rows.square().sum() / max(1, len(rows)))


def check_closed_form(rows: Tensor, loss: Tensor, feature: Tensor) -> None:
    """Compare once with autograd: label smoothing, class weights or another loss must not pass for cross-entropy."""
    (gradient,) = torch.autograd.grad(loss, feature, retain_graph=True)
    true = gradient.float().reshape(-1, feature.shape[-1])
    if len(true) != len(rows):  # ignored rows have no gradient
        true = true[true.abs().sum(1) > 0]
    if true.shape == rows.shape:
        for expected in (rows / len(rows), rows):  # the mean over the rows, or their sum
            if float((true - expected).norm()) <= 1e-2 * float(expected.norm()):
                return
    raise NotPlainCrossEntropy(
        "the loss is not the plain cross-entropy of these logits and targets: leave them out of backward() "
        "and the feature gradient is taken from autograd"
    )


def closed_form_cost(rows: int, classes: int, features: int) -> Cost:
    """Softmax, one subtraction a row, the product with the weight, and the squared norm."""
    return Cost(0, rows * (5 * classes + 1 + 2 * classes * features + 2 * features) + 1)
