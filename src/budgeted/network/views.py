"""Several batches through a model at once, each with batch norm of its own: as if they had come one after the other.

Small batches take most of their time to be called. Together they are one call of every layer; only batch norm in
training looks at more than one sample, and looks at each batch by itself here, its running statistics in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NORMS = (torch.batch_norm, torch.nn.functional.batch_norm)  # in both, `training` is sixth


class NormsApart(TorchFunctionMode):
    """Inside, batch norm in training is of each of so many equal parts of a batch."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], given: Sequence[Any] = (), more: Any = None
    ) -> Any:
        named = more or {}
        if function not in _NORMS or not (given[5] if len(given) > 5 else named.get("training", False)):
            return function(*given, **named)
        batch: Tensor = given[0] if given else named.pop("input")
        return torch.cat([function(part, *given[1:], **named) for part in batch.chunk(self.parts)])
