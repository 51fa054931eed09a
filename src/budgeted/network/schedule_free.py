"""Schedule-free AdamW (Defazio et al. 2024): no schedule, and the average of the weights inside the optimizer.

    y  = (1 - beta1) z + beta1 x                        gradients g are taken here: the model's weights in training
    v <- beta2 v + (1 - beta2) g^2
    u  = g / (sqrt(v) + eps) + decay y
    z <- z - gamma u                                    gamma = rate * sqrt(1 - beta2^t)
    x <- (1 - c) x + c z                                c = w / sum of all w so far, w = t^power gamma^2
                                                        the model's weights in predictions

Beside y one point is enough: `away` = z - y, from which x = y - (1 / beta1 - 1) away. It is kept between steps like the
weights, so it counts in bytes as an average does; v is working memory as Adam's. A row of the head that comes later
starts with x = y = z, away 0, a t and a sum of its own: these are kept for every row.

Running statistics of batch norm are those of y. `learner.norms=memory` measures them at x.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from budgeted.budget import NOTHING, Cost
from budgeted.network.average import Averaged
from budgeted.network.norms import lent


class ScheduleFree(Optimizer):
    """Parameters are y; `averaged` gives x."""

    priced_by_shape: ClassVar[bool] = True
    persists: ClassVar[tuple[str, ...]] = ("away",)
    """of its state, what is no working memory"""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        power: float = 0.0,
    ) -> None:
        """power: above 0 late steps weigh more in the average, by their number to this power."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "power": power})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, y: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[y], group["betas"]
        if not state:
            rows = y.new_zeros([*y.shape[:1], *(1 for _ in y.shape[1:])])
            state["steps"], state["sums"] = rows, rows.clone()
            for name in ("away", "exp_avg_sq"):
                state[name] = torch.zeros_like(y, memory_format=torch.preserve_format)
        away, square = state["away"], state["exp_avg_sq"]
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rates = (1 - beta2 ** state["steps"].add_(1)).sqrt_().mul_(group["lr"])
        weights = rates * rates
        if group["power"]:
            weights.mul_(state["steps"] ** group["power"])
        state["sums"].add_(weights)
        left = 1 - weights.div_(state["sums"].clamp(min=torch.finfo(y.dtype).tiny))
        update = gradient / square.sqrt().add_(group["eps"])
        if group["weight_decay"]:
            update.add_(y, alpha=group["weight_decay"])
        update.mul_(rates)
        y.add_(away).sub_(update)  # z
        away.sub_(update, alpha=beta1).mul_(left)  # beta1 (z - x), both moved
        y.sub_(away)

    def averaged(self, parameter: Tensor) -> Tensor:
        """x of a parameter; itself, as long as it was never moved."""
        away = self.state.get(parameter, {}).get("away")
        return parameter.detach() if away is None else parameter.detach() - (1 / self.defaults["betas"][0] - 1) * away


class PointOfAverage(Averaged):
    """What predictions are made with where the optimizer keeps the average."""

    element_bytes = 4

    def __init__(self, model: nn.Module, optimizer: ScheduleFree) -> None:
        self._model, self._optimizer = model, optimizer

    def by_name(self) -> dict[str, Tensor]:
        """Computed when they are asked for."""
        return {n: self._optimizer.averaged(p) for n, p in self._model.named_parameters() if p.requires_grad}

    def lent_to(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        return lent({name: p for name, p in model.named_parameters() if p.requires_grad}, self.by_name())

    def price(self) -> Cost:
        """It is in the optimizer's."""
        return NOTHING

    def nbytes(self) -> int:
        """Of the second point, whether it has moved already or not."""
        trained = (p for p in self._model.parameters() if p.requires_grad)
        return sum(p.numel() * p.element_size() for p in trained)
