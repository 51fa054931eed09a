"""Pooling: one operation per window element and a division where it averages (`real`), the input elements (`paper`).

A pooling that the paper's counter never saw (`outside_paper_count` on the module) is 0 under rule `paper`.
"""

from __future__ import annotations

import math

from budgeted.budget.prices import OpPrice, price_of
from budgeted.budget.trace import Op


def paper_pool(op: Op) -> dict[str, int]:
    if any(getattr(module, "outside_paper_count", False) for module in op.modules):
        return {}
    return {"paper_forward": op.inputs[0].numel, "paper_input": op.inputs[0].numel}


@price_of("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool1d_with_indices")
def max_pool(op: Op) -> OpPrice:
    kernel = _window(op.arguments["kernel_size"], op)
    return OpPrice(forward=op.out.numel * kernel, gradients=(op.out.numel,), **paper_pool(op))


@price_of("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(op: Op) -> OpPrice:
    kernel = _window(op.arguments["kernel_size"], op)
    return OpPrice(forward=op.out.numel * (kernel + 1), gradients=(op.out.numel * kernel,), **paper_pool(op))


@price_of("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_average_pool(op: Op) -> OpPrice:
    visited = _adaptive_elements(op)
    return OpPrice(forward=visited + op.out.numel, gradients=(visited,), **paper_pool(op))


@price_of("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(op: Op) -> OpPrice:
    return OpPrice(forward=_adaptive_elements(op), gradients=(op.out.numel,), **paper_pool(op))


@price_of("upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d", "upsample_linear1d")
def interpolation(op: Op) -> OpPrice:
    """A weighted sum over the neighbours of every output: 2 a neighbour, and the same to give the gradient back."""
    neighbours = {"upsample_linear1d": 2, "upsample_bicubic2d": 16}.get(op.name, 4)
    work = 2 * neighbours * op.out.numel
    return OpPrice(forward=work, gradients=(work,))


def _window(kernel: int | list[int], op: Op) -> int:
    sizes = [kernel] if isinstance(kernel, int) else list(kernel)
    dimensions = int(op.name[op.name.index("pool") + 4])
    return math.prod(sizes * dimensions if len(sizes) == 1 else sizes)


def _adaptive_elements(op: Op) -> int:
    """Window sizes differ by one where the input is no multiple of the output: sum them as they are."""
    data, dimensions = op.inputs[0], int(op.name[op.name.index("pool") + 4])
    outer = math.prod(data.shape[:-dimensions])
    visited = 1
    for size, steps in zip(data.shape[-dimensions:], op.out.shape[-dimensions:], strict=True):
        visited *= sum(-(-(i + 1) * size // steps) - i * size // steps for i in range(steps))
    return outer * visited
