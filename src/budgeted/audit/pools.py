"""Pools by the elements in their windows.

Max pool: window elements per result; average pool: one more; average-pool backward: window elements per
result. Windows of adaptive pools have their real sizes. Max-pool backward is an accumulating scatter.
"""

from __future__ import annotations

import math

from torch import Tensor

from budgeted.audit.call import Call, Counting


def _dims(call: Call) -> int:
    return next(d for d in (2, 3) if f"pool{d}d" in call.base)


def _window(call: Call) -> int:
    dims, kernel = _dims(call), call.arg("kernel_size")
    return int(math.prod(kernel if len(kernel) == dims else kernel * dims))


def _pool(call: Call) -> int:
    return call.result * (_window(call) + ("avg" in call.base))


def _pool_backward(call: Call) -> int:
    return int(call.arg("grad_output").numel()) * _window(call)


def _adaptive_pairs(call: Call, pooled: Tensor) -> int:
    """Pairs of a result and an element of its window; windows are the real ones, which may overlap."""
    image, dims = call.arg("self"), _dims(call)
    pairs = math.prod(image.shape[:-dims])
    for size, count in zip(image.shape[-dims:], pooled.shape[-dims:], strict=True):
        pairs *= sum(-(-(i + 1) * size // count) - i * size // count for i in range(count))
    return int(pairs)


def _adaptive_pool(call: Call) -> int:
    pooled = call.out[0] if isinstance(call.out, (list, tuple)) else call.out
    return _adaptive_pairs(call, pooled) + ("avg" in call.base) * int(pooled.numel())


def _adaptive_pool_backward(call: Call) -> int:
    return _adaptive_pairs(call, call.arg("grad_output"))


_BY_PATTERN: dict[str, Counting] = {
    "max_pool{}_with_indices": _pool,
    "avg_pool{}": _pool,
    "avg_pool{}_backward": _pool_backward,
    "adaptive_max_pool{}": _adaptive_pool,
    "_adaptive_avg_pool{}": _adaptive_pool,
    "_adaptive_avg_pool{}_backward": _adaptive_pool_backward,
}

RULES: dict[str, Counting] = {name.format(d): rule for name, rule in _BY_PATTERN.items() for d in ("2d", "3d")}
