"""How torch itself breaks an operator into simpler ones, where it does."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import decomposition_table

from budgeted.audit.call import Operator, base_name


@lru_cache(maxsize=4096)
def decomposition(func: Operator) -> Callable[..., Any] | None:
    """Torch's reference decomposition of the operator, or of the functional variant with its arguments."""
    wanted = [a.name for a in func._schema.arguments if not a.is_out]
    packet = getattr(getattr(torch.ops, func.namespace), base_name(func), None)
    variants = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    functional = [v for v in variants if [a.name for a in v._schema.arguments] == wanted]
    return next((decomposition_table[v] for v in (*functional, func) if v in decomposition_table), None)


def is_composite(func: Operator) -> bool:
    """Whether the operator's only kernel calls other operators, which the dispatcher then shows us."""
    if func.namespace == "prim":  # TorchScript's own, unknown to the dispatcher
        return False
    own_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(str(func._name), "CPU")
    return func._can_decompose() and not own_kernel
