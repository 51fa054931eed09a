"""Running statistics of frozen norms: the forward has moved them before the decision; `hold` moves them back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # batch and instance norms of every dimension
from torch.utils.hooks import RemovableHandle

from budgeted.budget.trace import tracing
from budgeted.freezing.hooks import only_for


class _Noted(threading.local):
    def __init__(self) -> None:
        self.before: dict[str, tuple[Tensor, ...]] = {}


class HeldStatistics:
    """Remembers the statistics from before each training forward, to restore those of blocks that turn out frozen.

    Each thread has its own: what another one runs meanwhile is no forward of this step.
    """

    def __init__(self, model: nn.Module) -> None:
        self._noted = _Noted()
        self._norms = {name: module for name, module in model.named_modules() if isinstance(module, _NormBase)}
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(only_for(module, self._remember(name)))
            for name, module in self._norms.items()
        ]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._norms)

    def _remember(self, name: str) -> Callable[[nn.Module, object], None]:
        def hook(module: nn.Module, args: object) -> None:
            # the first forward of a step counts: a second one starts from what the first has moved
            if module.training and not tracing() and name not in self._noted.before:
                self._noted.before[name] = tuple(buffer.clone() for buffer in module.buffers())

        return hook

    @torch.no_grad()
    def restore(self, frozen_modules: Collection[str]) -> None:
        """Put back the statistics of the norms in frozen blocks."""
        for name, before in self._noted.before.items():
            if name in frozen_modules:
                for buffer, value in zip(self._norms[name].buffers(), before, strict=True):
                    buffer.copy_(value)
        self._noted.before.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
