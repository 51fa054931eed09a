"""The gradient of the loss at the last feature, known before any backward pass.

For a linear head with cross-entropy it is (softmax - one-hot) times the head's weight, row by row. For any other loss
it is asked of autograd, for the last feature alone: that runs the loss and the head backwards, and nothing below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError

_IGNORED = -100  # the label that cross-entropy leaves out


class NotPlainCrossEntropy(BudgetedError):
    """The closed form was asked for a loss that it does not hold for."""


class FeatureGradient:
    """Watches the head for its input, and tells how large the loss gradient there is."""

    def __init__(self, model: nn.Module, head: str) -> None:
        self._model = model
        self._path = head
        self._feature: Tensor | None = None
        self.checked = False
        self._handle: RemovableHandle | None = None
        self.find()

    def find(self) -> None:
        """Hook the head as it is now."""
        self.remove()
        self._head = self._model.get_submodule(self._path)
        self._weight = self._head._parameters.get("weight")
        self._handle = self._head.register_forward_pre_hook(self._note, with_kwargs=True)

    def head_changed(self) -> bool:
        head = self._model.get_submodule(self._path)
        return head is not self._head or head._parameters.get("weight") is not self._weight

    def clear(self) -> None:
        """Let go of the graph."""
        self._feature = None

    def remove(self) -> None:
        if self._handle is not None:
            self._handle.remove()

    def size(
        self, loss: Tensor, logits: Tensor | None, targets: Tensor | None, price_of_autograd: Callable[[], int]
    ) -> tuple[float, int]:
        """Mean over rows of the squared norm, and the operations that finding it took (rule `real`)."""
        if self._path == "" or self._feature is None:
            raise BudgetedError(
                f"the head {self._path or '(functional)'!r} was not called as a module in this forward, so the last "
                "feature is not known: make the last layer a module that every forward calls"
            )
        if not self._feature.requires_grad:
            return 0.0, 0  # nothing below the head is trained
        if logits is None or targets is None:
            rows = by_autograd(loss, self._feature)
            return mean_square(rows), price_of_autograd() + 3 * rows.numel()
        weight = self._weight
        if not isinstance(self._head, nn.Linear) or weight is None:
            raise NotPlainCrossEntropy(
                f"the head {self._path!r} is no plain linear layer: leave logits and targets out of backward()"
            )
        if targets.is_floating_point() or targets.numel() * weight.shape[0] != logits.numel():
            raise NotPlainCrossEntropy(
                f"targets of shape {tuple(targets.shape)} are no class labels for logits of shape "
                f"{tuple(logits.shape)}: leave both out of backward() for another loss"
            )
        rows = closed_form(logits, targets, weight)
        classes, features = weight.shape
        cost = len(rows) * (5 * classes + 1 + 2 * classes * features + 2 * features) + 1
        if not self.checked:  # once, and charged like everything else that is run
            check_closed_form(rows, loss, self._feature)
            self.checked = True
            cost += price_of_autograd() + 6 * rows.numel()  # a mean, a difference and two norms
        return mean_square(rows), cost

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and not tracing():
            self._feature = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)


@torch.no_grad()
def closed_form(logits: Tensor, targets: Tensor, weight: Tensor, ignore_index: int = _IGNORED) -> Tensor:
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
    """The rows of the gradient of a mean loss, each scaled to its own sample's (or token's) loss; the graph is kept."""
    rows = _rows(loss, feature)
    if feature.ndim > 2:  # tokens that the loss ignores have no gradient
        reached = rows.abs().sum(1) > 0
        rows = rows if bool(reached.all()) else rows[reached]
    return rows * len(rows)


def _rows(loss: Tensor, feature: Tensor) -> Tensor:
    try:
        (gradient,) = torch.autograd.grad(loss, feature, retain_graph=True)
    except RuntimeError as error:
        raise BudgetedError(
            f"the loss has no gradient at the last feature ({str(error).splitlines()[0]}): "
            "compute it from this model's newest output"
        ) from error
    return gradient.float().reshape(-1, feature.shape[-1])


def mean_square(rows: Tensor) -> float:
    """The mean over rows of the squared norm (not the square of the mean)."""
    return float(rows.square().sum() / max(1, len(rows)))


def check_closed_form(rows: Tensor, loss: Tensor, feature: Tensor) -> None:
    """Compare once with autograd: label smoothing, class weights or another loss must not pass for cross-entropy."""
    true = _rows(loss, feature)
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
