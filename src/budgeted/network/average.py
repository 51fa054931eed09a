"""An average of the weights along the training, to predict with: the noise of single steps is not in it.

After every step, average <- d * average + (1 - d) * weights, for all trained parameters and floating buffers (running
statistics of batch norm follow the same weights, so they are averaged by the same share). The decay d rises with the
steps t: d = min(decay, (1 + t) / (warm-up + t)), so that the average reaches over a share of a short past, and over
1 / (1 - decay) steps of a long one. A row of the head or a layer that is new starts with its own value.

In bfloat16 it takes half the bytes. A small share of a difference would mostly be rounded away there, so it is rounded
up or down by chance, right in the mean; chance follows from the seed and the number of the step.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from budgeted.budget import Cost
from budgeted.budget.kept import Keeps
from budgeted.budget.watched import watched
from budgeted.network.head import carried_over
from budgeted.network.norms import lent

Precision = Literal["float32", "bfloat16"]
_TINY = 512  # elements of the update that is watched for its price
_LOW_BITS = 16  # of a float32, that bfloat16 has not


class Averaged(Keeps, ABC):
    """Weights that predictions are made with in the place of a model's own."""

    element_bytes: int
    """of one number, beside the model's own"""

    @abstractmethod
    def by_name(self) -> dict[str, Tensor]:
        """Of every parameter, and of buffers that are averaged, too."""

    def update(self, model: nn.Module) -> None:
        """A step has moved the weights."""

    def restart(self, model: nn.Module) -> None:
        """Begin anew with the weights as they are."""

    def follow(self, model: nn.Module) -> None:
        """The model has grown or changed."""

    @abstractmethod
    def lent_to(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the averaged weights."""

    @abstractmethod
    def price(self) -> Cost:
        """Of one update."""


class Average(Averaged):
    """Averaged weights of one model, by name."""

    kept = ("weights", "steps")

    def __init__(
        self, model: nn.Module, *, decay: float, warm_up: float = 10.0, precision: Precision = "float32", seed: int = 0
    ) -> None:
        """
        decay: share of the old average that stays, after the warm-up.
        warm_up: above 1; the average reaches over about 1 / (warm_up - 1) of the steps so far until `decay` is less.
        """
        self.decay, self.warm_up, self.precision, self.seed = decay, warm_up, precision, seed
        self.element_bytes = 4 if precision == "float32" else 2
        self.weights: dict[str, Tensor] = {}
        self.steps = 0
        self._per_element: int | None = None
        self.restart(model)

    def by_name(self) -> dict[str, Tensor]:
        return self.weights

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """A step has moved the weights."""
        self.steps += 1
        share = 1 - min(self.decay, (1 + self.steps) / (self.warm_up + self.steps))
        own = _averaged(model)
        averaged, moved = [self.weights[name] for name in own], [*own.values()]
        if self.precision == "float32":
            torch._foreach_lerp_(averaged, moved, share)
            return
        chance = torch.Generator(averaged[0].device).manual_seed(self.seed * 1_000_003 + self.steps)
        for old, new in zip(averaged, moved, strict=True):
            old.copy_(_rounded_by_chance(old.float().lerp_(new, share), chance))

    def restart(self, model: nn.Module) -> None:
        """Begin anew with the weights as they are."""
        self.weights.clear()
        self.steps = 0
        self.follow(model)

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """The model has grown or changed: what is new starts with its own value, what is gone is let go."""
        kind = getattr(torch, self.precision)
        fresh = {name: tensor.detach().to(kind, copy=True) for name, tensor in _averaged(model).items()}
        self.weights = carried_over(self.weights, fresh)

    def lent_to(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Inside, the model has the averaged weights."""
        return lent(_averaged(model), self.weights)

    def price(self) -> Cost:
        """Of one update."""
        if self._per_element is None:
            tiny = nn.Module()
            tiny.register_buffer("weights", torch.zeros(_TINY))
            average = Average(tiny, decay=self.decay, warm_up=self.warm_up, precision=self.precision)
            self._per_element = watched(lambda: average.update(tiny))[1].real // _TINY
        return Cost(0, self._per_element * sum(tensor.numel() for tensor in self.weights.values()))


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """What moves in training: trained parameters, and buffers of real numbers."""
    found: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return found | {name: b for name, b in model.named_buffers() if b.is_floating_point()}


def _rounded_by_chance(exact: Tensor, chance: torch.Generator) -> Tensor:
    """Float32 with no more bits than bfloat16 has: the next above or below, each as likely as it is near."""
    drawn = torch.empty_like(exact, dtype=torch.int32).random_(0, 2**_LOW_BITS, generator=chance)
    bits = exact.view(torch.int32).add_(drawn).bitwise_and_(-(2**_LOW_BITS))
    return bits.view(torch.float32)
