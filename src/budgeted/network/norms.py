"""Batch norm's statistics for predictions, measured on stored samples as they are.

Running statistics are those of the latest training batches: of varied images, in the proportions of the replay, and of
weights that have moved since. Measured ones are of the weights that predictions are made with, on unvaried samples, as
many of each class. They hold until the next training step; after it the running ones serve again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from budgeted.budget.kept import Keeps

_STATISTICS = ("running_mean", "running_var")


class MeasuredNorms(Keeps):
    """Statistics of every batch norm of one model, by name."""

    kept = ("statistics", "fresh")

    def __init__(self, model: nn.Module) -> None:
        self.statistics: dict[str, Tensor] = {}
        self.fresh = False  # no step since they were measured
        self.follow(model)

    def follow(self, model: nn.Module) -> None:
        """The model has changed: nothing that was measured is of it."""
        self.fresh = False
        self.statistics = {
            f"{path}.{name}": tensor.clone() for path, norm in _norms(model) for name, tensor in _of(norm).items()
        }

    @torch.no_grad()
    def measure(self, model: nn.Module, run: Callable[[dict[str, Tensor]], object]) -> None:
        """`run` calls the model, in evaluation mode, with these buffers in the place of its own."""
        norms = _norms(model)
        before = [(norm.training, norm.momentum) for _, norm in norms]
        counts = {f"{path}.num_batches_tracked": torch.zeros((), dtype=torch.long) for path, _ in norms}
        try:
            for _, norm in norms:
                norm.training, norm.momentum = True, 1.0  # what they hold before counts for nothing
            run({**self.statistics, **counts})
        finally:
            for (_, norm), (training, momentum) in zip(norms, before, strict=True):
                norm.training, norm.momentum = training, momentum
        self.fresh = True

    def __bool__(self) -> bool:
        return bool(self.statistics)


@contextlib.contextmanager
def lent(own: dict[str, Tensor], others: dict[str, Tensor]) -> Iterator[None]:
    """Inside, these tensors of a model have the values of others; no copy is made where they are of one type."""
    before = {name: tensor.data for name, tensor in own.items()}
    try:
        for name, tensor in own.items():
            tensor.data = others[name].to(tensor.dtype)
        yield
    finally:
        for name, tensor in own.items():
            tensor.data = before[name]


def _norms(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    ]


def _of(norm: _BatchNorm) -> dict[str, Tensor]:
    return {name: tensor for name in _STATISTICS if (tensor := getattr(norm, name)) is not None}
