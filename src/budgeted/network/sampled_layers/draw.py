"""Which entries of a model are sampled: every one that can be is equally likely, and a seed alone decides."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from budgeted.errors import BudgetedError, UnknownName
from budgeted.network.sampled_layers.kinds import layer_kind
from budgeted.network.sampled_layers.layer import SampledLayer


@dataclass(frozen=True, eq=False)
class Share:
    """The drawn entries of one parameter: flat indices, and the first of the columns that they fill."""

    number: int
    parameter: str
    first: int
    indices: Tensor

    @property
    def count(self) -> int:
        return len(self.indices)

    @property
    def columns(self) -> slice:
        return slice(self.first, self.first + self.count)


class DrawnLayer(NamedTuple):
    """A layer with sampled entries; None where its weight or its bias has none."""

    layer: SampledLayer[Any]
    weight: Share | None
    bias: Share | None


def draw(
    model: nn.Module, fraction: float, group: int, seed: int, exclude: Collection[str]
) -> tuple[list[Share], list[DrawnLayer]]:
    """The parameters with drawn entries in the order of the model, and the layers that own them."""
    if not 0 < fraction <= 1:
        raise BudgetedError(f"the sampled fraction of the parameters must lie in (0, 1], not {fraction}")
    if group < 1:
        raise BudgetedError(f"entries are drawn in groups of at least 1, not {group}")
    eligible = _eligible_parameters(model, exclude)
    sizes = [parameter.numel() for _, parameter in eligible]
    # In numpy: the draw depends on the seed and the sizes of the parameters, not on their device or dtype.
    rng = np.random.default_rng(seed)
    shares: list[Share] = []
    owned: dict[int, Share] = {}
    first = 0
    for (name, parameter), count in zip(eligible, _counts(sizes, fraction, group, rng), strict=True):
        if count:
            entries = rng.choice(parameter.numel(), count, replace=False, shuffle=False)
            entries.sort()
            share = Share(len(shares), name, first, torch.from_numpy(entries))
            shares.append(share)
            owned[id(parameter)] = share
            first += count
    return shares, _drawn_layers(model, owned)


def _counts(sizes: list[int], fraction: float, group: int, rng: np.random.Generator) -> list[int]:
    """How many entries each parameter gives.

    The parameters lie on a circle, one after the other, each as long as it has entries. The circle is turned by
    chance and cut into groups; groups are drawn without repetition until the fraction is reached. No place on the
    circle is then likelier than another.
    """
    total = sum(sizes)
    wanted = max(1, round(fraction * total))
    cuts = -(-total // group)
    # One group more than the fraction needs, because the last on the circle may be short.
    drawn = rng.choice(cuts, min(cuts, -(-wanted // group) + 1), replace=False)
    places = (drawn[:, None] * group + np.arange(group)).reshape(-1)
    places = (places[places < total][:wanted] + rng.integers(total)) % total
    owners = np.searchsorted(np.cumsum(sizes), places, side="right")
    counts: list[int] = np.bincount(owners, minlength=len(sizes)).tolist()
    return counts


def _eligible_parameters(model: nn.Module, exclude: Collection[str]) -> list[tuple[str, nn.Parameter]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    for name in exclude:
        if not name or name not in modules:
            raise UnknownName("module", name, (known for known in modules if known))
    eligible: dict[int, tuple[str, nn.Parameter]] = {}
    barred: set[int] = set()
    for module_name, module in modules.items():
        excluded = any(module_name == name or module_name.startswith(f"{name}.") for name in exclude)
        supported = not excluded and layer_kind(module) is not None
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, UninitializedParameter):
                raise BudgetedError(f"module {module_name!r} has no weights yet: run one batch through the model first")
            full_name = f"{module_name}.{parameter_name}" if module_name else parameter_name
            if supported and parameter_name in ("weight", "bias"):
                eligible.setdefault(id(parameter), (full_name, parameter))
            else:
                # A share of this parameter's gradient comes from where nothing is collected.
                barred.add(id(parameter))
    found = [
        (name, parameter)
        for key, (name, parameter) in eligible.items()
        if key not in barred and parameter.requires_grad and parameter.is_floating_point()
    ]
    if not found:
        raise BudgetedError(
            "no parameter to sample: the model needs a trainable convolution, linear layer or normalisation "
            "outside the excluded modules"
        )
    return found


def _drawn_layers(model: nn.Module, owned: dict[int, Share]) -> list[DrawnLayer]:
    nothing = torch.zeros(0, dtype=torch.int64)
    layers = []
    for name, module in model.named_modules():
        kind = layer_kind(module)
        weight, bias = (owned.get(id(module._parameters.get(which))) for which in ("weight", "bias"))
        if kind is not None and (weight or bias):
            layer = kind(name, module, weight.indices if weight else nothing, bias.indices if bias else nothing)
            layers.append(DrawnLayer(layer, weight, bias))
    return layers
