"""Sums, means, softmax and the losses made of them: one operation per element read, one per element written."""

from __future__ import annotations

from budgeted.budget.prices import OpPrice, per_input, price_of
from budgeted.budget.prices.pooling import paper_pool
from budgeted.budget.trace import Op


@price_of(
    "sum", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "_is_all_true", "prod", "nansum", "bincount"
)  # fmt: skip
def fold(op: Op) -> OpPrice:
    # the gradient of a sum is a copy, as is that of a maximum along a dimension; without one the places are compared
    copied = op.name not in ("amax", "amin", "max", "min", "prod") or len(op.outputs) == 2
    selecting = 0 if copied else 3 * op.inputs[0].numel
    return OpPrice(forward=op.inputs[0].numel, gradients=(selecting,) * len(op.inputs))


@price_of("mean")
def mean(op: Op) -> OpPrice:
    data = op.inputs[0]
    dims = op.arguments.get("dim") or []
    spatial = {d % len(data.shape) for d in dims} if isinstance(dims, list) else set()
    pooled = len(data.shape) >= 4 and spatial == set(range(2, len(data.shape)))
    return OpPrice(
        forward=data.numel + op.out.numel,
        gradients=(data.numel,),
        **(paper_pool(op) if pooled else {}),  # the global pooling of a convolutional net
    )


@price_of("var_mean", "var", "std")
def variance(op: Op) -> OpPrice:
    return OpPrice(forward=4 * op.inputs[0].numel, gradients=(3 * op.inputs[0].numel,))


@price_of("sort", "argsort", "topk", "nonzero")
def ordering(op: Op) -> OpPrice:
    """Comparisons: n log2 n for a sort, n for the k largest; the gradient only puts back."""
    elements = op.inputs[0].numel
    comparisons = elements * max(1, (op.inputs[0].shape[-1] - 1).bit_length()) if "sort" in op.name else elements
    return OpPrice(forward=comparisons, gradients=(0,) * len(op.inputs))


@price_of("cumsum", "logcumsumexp")
def running_sum(op: Op) -> OpPrice:
    return OpPrice(forward=op.inputs[0].numel, gradients=(op.inputs[0].numel,))


@price_of("linalg_vector_norm", "norm")
def vector_norm(op: Op) -> OpPrice:
    return OpPrice(forward=2 * op.inputs[0].numel, gradients=(3 * op.inputs[0].numel,))


@price_of("logsumexp")
def log_sum_exp(op: Op) -> OpPrice:
    return OpPrice(forward=4 * op.inputs[0].numel, gradients=(3 * op.inputs[0].numel,))


@price_of("_softmax", "_safe_softmax")
def softmax(op: Op) -> OpPrice:
    """The safe form also looks for rows that are masked altogether."""
    forward = 8 if op.name == "_safe_softmax" else 5
    return OpPrice(forward=forward * op.out.numel, gradients=(4 * op.out.numel,))


@price_of("_log_softmax")
def log_softmax(op: Op) -> OpPrice:
    return OpPrice(forward=5 * op.out.numel, gradients=(4 * op.out.numel,))


@price_of("nll_loss_forward", "nll_loss2d_forward")
def negative_log_likelihood(op: Op) -> OpPrice:
    rows = op.tensor("target").numel
    return OpPrice(forward=8 * rows, gradients=per_input(op, self=op.tensor("self").numel + 4 * rows))


@price_of("mse_loss")
def squared_error(op: Op) -> OpPrice:
    elements = op.inputs[0].numel
    return OpPrice(forward=3 * elements, gradients=(3 * elements,) * len(op.inputs))


@price_of("smooth_l1_loss", "huber_loss")
def robust_error(op: Op) -> OpPrice:
    elements = op.inputs[0].numel
    return OpPrice(forward=9 * elements, gradients=(8 * elements,) * len(op.inputs))


@price_of("binary_cross_entropy")
def binary_cross_entropy(op: Op) -> OpPrice:
    elements = op.inputs[0].numel
    return OpPrice(forward=10 * elements, gradients=per_input(op, self=6 * elements))


@price_of("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(op: Op) -> OpPrice:
    elements = op.inputs[0].numel
    return OpPrice(forward=10 * elements, gradients=per_input(op, self=4 * elements))
