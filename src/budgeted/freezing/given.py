"""What one call of backward() is given: the loss, checked, and what belongs to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted.budget import Cost
from budgeted.errors import BudgetedError
from budgeted.freezing.ranks import Ranks
from budgeted.freezing.step_prices import Forward


class BadLoss(BudgetedError):
    """A loss that cannot be trained on: not finite, not a scalar, or not the model's."""


@dataclass(frozen=True, slots=True)
class Given:
    """One call of backward()."""

    loss: Tensor
    logits: Tensor | None
    targets: Tensor | None
    forwards: list[Forward]
    loss_costs: tuple[Cost, Cost]  # forward and backward, where the graph tells
    beside: tuple[nn.Parameter, ...]  # parameters of the loss itself
    scaler: torch.amp.GradScaler | None
    more: bool
    look: bool
    others: frozenset[int] = frozenset()
    """numbers of the forwards beside the last, which is the one that is looked at"""
    looked: list[Cost] = field(default_factory=list)

    @property
    def scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())


def check_loss(loss: Tensor, step: int, forwards: Mapping[int, Forward], ranks: Ranks | None) -> float:
    """The value of a loss that can be trained on; on every rank, or none goes on."""
    if not isinstance(loss, Tensor):
        raise BadLoss(f"the loss is a {type(loss).__name__}: give the tensor that the model's output leads to")
    if loss.numel() != 1:
        raise BadLoss(f"the loss has shape {tuple(loss.shape)}: reduce it to one number, as with .mean()")
    if not loss.requires_grad:
        raise BadLoss(
            "the loss does not depend on the model: compute it from the model's output, with gradients enabled"
        )
    value = float(loss.item())
    bad = not math.isfinite(value)
    if bad if ranks is None else ranks.any(bad):
        raise BadLoss(
            f"the loss is {value if bad else 'not finite on another rank'} in step {step}: nothing was "
            "changed; lower the learning rate or check the inputs"
        )
    if not forwards:
        raise BadLoss("backward() came without a training forward: call the model, then backward(loss)")
    return value


def refuse_trained_inputs(args: Any, kwargs: Any) -> None:
    """What was computed from parameters outside of the model would get no gradient, in silence."""
    for value in pytree.tree_leaves((args, kwargs)):
        if isinstance(value, Tensor) and value.requires_grad:
            raise BudgetedError(
                "an input of the model has a gradient, and the backward would not reach what lies below it: "
                "put everything that is trained into one module, or detach the input"
            )
