"""Other norms in the place of a model's batch norms, whose statistics follow whatever classes are replayed.

`group`      Group norm: statistics of each sample by itself, the same in training and in predictions.
`continual`  Continual normalisation (Pham, Liu and Hoi, ICLR 2022): group norm without weights, then the batch norm.
             The batch's statistics are then of maps that each sample has normalised by itself.

Weights, shifts and running statistics of the batch norms are taken over. The channels of a layer are divided into the
largest number of groups that divides them and what was asked for.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from budgeted.errors import BudgetedError

Normalisation = Literal["batch", "group", "continual"]


class ContinualNorm(nn.Sequential):
    """Each sample by itself, then the batch."""


def normalised(model: nn.Module, kind: Normalisation, groups: int) -> nn.Module:
    """The model with norms of this kind; one that has them is left as it is."""
    if kind == "batch":
        return model
    other = {"group": nn.GroupNorm, "continual": ContinualNorm}[kind]
    norms = [(path, module) for path, module in model.named_modules() if isinstance(module, _BatchNorm)]
    if not norms and not any(isinstance(module, other) for module in model.modules()):
        raise BudgetedError(
            f"learner.normalisation={kind} takes the place of batch norms, and {type(model).__name__} has none: "
            "leave it out"
        )
    for path, norm in norms:
        parent = model.get_submodule(path.rpartition(".")[0])
        if not isinstance(parent, ContinualNorm):
            setattr(parent, path.rpartition(".")[2], _instead(norm, kind, math.gcd(groups, norm.num_features)))
    return model


@torch.no_grad()
def _instead(norm: _BatchNorm, kind: Normalisation, groups: int) -> nn.Module:
    if kind == "continual":
        return ContinualNorm(nn.GroupNorm(groups, norm.num_features, norm.eps, affine=False), norm)
    found = nn.GroupNorm(groups, norm.num_features, norm.eps, affine=norm.affine)
    if norm.affine:
        found.weight.copy_(norm.weight)
        found.bias.copy_(norm.bias)
    return found.to(norm.weight.device if norm.affine else "cpu")
