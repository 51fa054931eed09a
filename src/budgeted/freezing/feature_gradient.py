"""The gradient of the loss at the last feature, known before any backward pass.

For a linear head with cross-entropy it is (softmax - one-hot) times the head's weight, row by row. For any other loss
it is asked of autograd, for the last feature alone: that runs the loss and the head backwards, and nothing below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from budgeted.budget import Cost
from budgeted.budget.compiled import INNER, is_compiled
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.freezing.hooks import only_for
from budgeted.freezing.loss_graph import CrossEntropy, LossGraph

_IGNORED = -100  # the label that cross-entropy leaves out
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NotPlainCrossEntropy(BudgetedError):
    """The closed form was asked for a loss that it does not hold for."""


class GradientSize(NamedTuple):
    """The squared norm of the gradient at the last feature."""

    mean: float
    """over the rows"""
    rows: int
    """samples, or tokens, that the loss reads"""
    operations: int
    """that finding it took, under rule `real`"""


class _Noted(threading.local):
    """For each thread by itself: the last feature, and whether hooks note it."""

    def __init__(self) -> None:
        self.feature: Tensor | None = None
        self.listening = True


class FeatureGradient:
    """Watches the head for its input, and tells how large the loss gradient there is."""

    def __init__(
        self, model: nn.Module, head: str, graph: LossGraph | None = None, feature_of: str | None = None
    ) -> None:
        self._model = model
        self._path = head
        self._source = feature_of  # the head is a product in some forward: this module's output is its input
        self._graph = graph
        self.noted = _Noted()
        self.checked = False
        self._handles: list[RemovableHandle] = []
        self.find()

    def find(self) -> None:
        """Hook the head as it is now."""
        self.remove()
        self._head = self._model.get_submodule(self._path)
        self._weight = self._head._parameters.get("weight")
        if self._source is not None:
            source = self._model.get_submodule(self._source)
            self._handles = [source.register_forward_hook(only_for(source, self._note_output))]
            return
        if self._path == "":
            return  # the model's own input is not the last feature
        # hooks go around compiled code: inside they would become a part of it
        called = self._model.get_submodule(self._path.removesuffix(f".{INNER}"))
        note, mark = only_for(called, self._note), only_for(called, self._mark)
        if is_compiled(called) and called is self._head:
            note, mark = torch.compiler.disable(note), torch.compiler.disable(mark)
        self._handles = [called.register_forward_pre_hook(note, with_kwargs=True)]
        if self._graph is not None:
            self._handles.append(called.register_forward_hook(mark))

    def head_changed(self) -> bool:
        head = self._model.get_submodule(self._path)
        return head is not self._head or head._parameters.get("weight") is not self._weight

    def clear(self) -> None:
        """Let go of the graph."""
        self.noted.feature = None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def size(
        self,
        loss: Tensor,
        logits: Tensor | None,
        targets: Tensor | None,
        price_of_autograd: Callable[[], int],
        scale: float = 1.0,
    ) -> GradientSize:
        """How large the gradient is. Autograd is asked with the loss times `scale`, which is divided out again."""
        if self.noted.feature is None:
            raise BudgetedError(
                f"the head {self._path or '(functional)'!r} was not called as a module in this forward, so the last "
                "feature is not known: make the last layer a module that every forward calls"
            )
        if not self.noted.feature.requires_grad:
            return GradientSize(0.0, 1, 0)  # nothing below the head is trained
        weight = self._weight
        linear = isinstance(self._head, nn.Linear) and weight is not None and self._source is None
        if logits is None or targets is None:
            found = self._graph.cross_entropy(loss) if self._graph is not None and linear else None
            if found is None or weight is None:
                return self._by_autograd(loss, price_of_autograd, scale)
            rows = of_cross_entropy(found, weight)
            cost = len(rows) * _products(weight) + 2 * found.targets.numel() + 1
            return GradientSize(mean_square(rows), len(rows), cost)
        if not linear or weight is None:
            raise NotPlainCrossEntropy(
                f"the head {self._path!r} is no plain linear layer: leave logits and targets out of backward()"
            )
        if targets.is_floating_point() or targets.numel() * weight.shape[0] != logits.numel():
            raise NotPlainCrossEntropy(
                f"targets of shape {tuple(targets.shape)} are no class labels for logits of shape "
                f"{tuple(logits.shape)}: leave both out of backward() for another loss"
            )
        rows = closed_form(logits, targets, weight)
        cost = len(rows) * (4 * weight.shape[0] + _products(weight)) + 1
        if not self.checked:  # once, and charged like everything else that is run
            check_closed_form(rows, loss, self.noted.feature)
            self.checked = True
            cost += price_of_autograd() + 6 * rows.numel()  # a mean, a difference and two norms
        return GradientSize(mean_square(rows), len(rows), cost)

    def price_of_loss(self, loss: Tensor, whole: Cost, others: frozenset[int] = frozenset()) -> Cost:
        """What the loss's own part of a backward to the feature costs; `whole`: of a backward to all that it reads;
        `others`: numbers of forwards that the feature is not of."""
        if self._graph is None or self.noted.feature is None or not (self._graph.marks_features or others):
            return whole
        return self._graph.to_feature(loss, self.noted.feature, others)

    def _by_autograd(self, loss: Tensor, price: Callable[[], int], scale: float) -> GradientSize:
        feature, operations = self.noted.feature, 0
        assert feature is not None
        by_sample = isinstance(self._head, _CONVOLUTIONS)
        for factor in dict.fromkeys((scale, 1.0)):  # a scale may be too high: then it is asked again without
            rows = by_autograd(loss * factor if factor != 1.0 else loss, feature, by_sample)
            size = mean_square(rows) / factor**2
            operations += price() + 3 * rows.numel()
            if size < float("inf"):
                break
        return GradientSize(size, len(rows), operations)

    def _note(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.noted.listening and torch.is_grad_enabled() and not tracing():
            self.noted.feature = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)

    def _note_output(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.noted.listening and torch.is_grad_enabled() and not tracing():
            self.noted.feature = next((t for t in pytree.tree_leaves(output) if isinstance(t, Tensor)), None)

    def _mark(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.noted.listening and self._graph is not None and torch.is_grad_enabled() and not tracing():
            self._graph.mark_head(output)


def _products(weight: Tensor) -> int:
    """Per row: one pass over the classes, the product with the head's weight, the squared norm."""
    classes, features = weight.shape
    return classes + 1 + 2 * classes * features + 2 * features


@torch.no_grad()
def closed_form(logits: Tensor, targets: Tensor, weight: Tensor, ignore_index: int = _IGNORED) -> Tensor:
    """One row per sample (or token): the gradient of that row's own cross-entropy; ignored rows are left out."""
    logits = logits.detach().float().reshape(-1, logits.shape[-1])
    targets = targets.reshape(-1)
    kept = targets != ignore_index
    if not bool(kept.all()):
        logits, targets = logits[kept], targets[kept]
    return _difference(F.softmax(logits, dim=1), targets) @ weight.detach().float()


@torch.no_grad()
def of_cross_entropy(found: CrossEntropy, weight: Tensor) -> Tensor:
    """The same rows from a cross-entropy found in the graph, times the factor that the loss has."""
    logarithms, targets = found.log_probabilities.detach(), found.targets
    kept = targets != found.ignored
    if not bool(kept.all()):
        logarithms, targets = logarithms[kept], targets[kept]
    rows = _difference(logarithms.float().exp(), targets) @ weight.detach().float()
    return rows if found.factor == 1.0 else rows * found.factor


def _difference(probabilities: Tensor, targets: Tensor) -> Tensor:
    probabilities[torch.arange(len(targets), device=targets.device), targets] -= 1
    return probabilities


def by_autograd(loss: Tensor, feature: Tensor, by_sample: bool = False) -> Tensor:
    """The rows of the gradient of a mean loss, each scaled to its own sample's (or token's) loss; the graph is kept.

    `by_sample`: the first dimension alone counts the rows (maps under a convolution), not all but the last.
    """
    rows = _rows(loss, feature, by_sample)
    if feature.ndim > 2 and not by_sample:  # tokens that the loss ignores have no gradient
        reached = rows.abs().sum(1) > 0
        rows = rows if bool(reached.all()) else rows[reached]
    return rows * len(rows)


def _rows(loss: Tensor, feature: Tensor, by_sample: bool = False) -> Tensor:
    try:
        (gradient,) = torch.autograd.grad(loss, feature, retain_graph=True)
    except RuntimeError as error:
        raise BudgetedError(
            f"the loss has no gradient at the last feature ({str(error).splitlines()[0]}): "
            "compute it from this model's newest output"
        ) from error
    return gradient.float().flatten(1) if by_sample else gradient.float().reshape(-1, feature.shape[-1])


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
