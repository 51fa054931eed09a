"""Running statistics of frozen batch norms: the forward has moved them before the decision; `hold` moves them back."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from budgeted.budget.trace import tracing

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class HeldStatistics:
    """Remembers the statistics from before each training forward, to restore those of blocks that turn out frozen."""

    def __init__(self, model: nn.Module) -> None:
        self._before: dict[str, tuple[Tensor, ...]] = {}
        self._norms = {name: module for name, module in model.named_modules() if isinstance(module, _NORMS)}
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(self._remember(name)) for name, module in self._norms.items()
        ]

    def _remember(self, name: str) -> Callable[[nn.Module, object], None]:
        def hook(module: nn.Module, args: object) -> None:
            if module.training and torch.is_grad_enabled() and not tracing():
                self._before[name] = tuple(buffer.clone() for buffer in module.buffers())

        return hook

    @torch.no_grad()
    def restore(self, frozen_parameters: Collection[str]) -> None:
        """Put back the statistics of the norms whose own parameters rest."""
        for name, module in self._norms.items():
            own = [f"{name}.{parameter}" for parameter, _ in module.named_parameters()]
            if name in self._before and own and all(parameter in frozen_parameters for parameter in own):
                for buffer, before in zip(module.buffers(), self._before[name], strict=True):
                    buffer.copy_(before)
        self._before.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
