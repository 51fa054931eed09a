"""Moving data costs nothing under either rule, and is listed here so that nothing is free by oversight.

Only the gradients that add up what was read several times are arithmetic: 1 per element added (rule `real`).
"""

from __future__ import annotations

from budgeted.budget.prices import OpPrice, price_of, reduced
from budgeted.budget.trace import Op

FREE = (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "unsqueeze", "squeeze",
    "select", "slice", "split", "split_with_sizes", "chunk", "unbind", "narrow", "diagonal", "movedim",
    "cat", "stack", "clone", "copy", "contiguous", "detach", "alias", "lift_fresh", "_to_copy", "to",
    "as_strided", "flip", "roll", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle",
    "native_channel_shuffle", "fill", "zero", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones",
    "full", "full_like", "new_full", "arange", "linspace", "scalar_tensor", "eye", "one_hot", "view_as_complex",
    "view_as_real", "_local_scalar_dense", "item", "resize", "set", "slice_scatter", "select_scatter", "unfold",
    "im2col", "upsample_nearest2d", "upsample_nearest1d", "sym_size", "reflection_pad1d", "reflection_pad2d",
    "replication_pad1d", "replication_pad2d", "meshgrid",
)  # fmt: skip
ACCUMULATING = (
    "embedding",
    "index",
    "index_select",
    "gather",
    "repeat",
    "repeat_interleave",
    "take",
)


@price_of(*FREE)
def free(op: Op) -> OpPrice:
    if op.name.startswith(("upsample", "unfold", "im2col", "reflection", "replication")):  # adds up what was repeated
        return OpPrice(gradients=(op.out.numel,))
    return OpPrice(gradients=(0,) * len(op.inputs))


@price_of("expand", "broadcast_to")
def expand(op: Op) -> OpPrice:
    return OpPrice(gradients=(reduced(op.inputs[0], op.out),) + (0,) * (len(op.inputs) - 1))


@price_of(*ACCUMULATING)
def accumulating(op: Op) -> OpPrice:
    return OpPrice(gradients=(op.out.numel,) + (0,) * (len(op.inputs) - 1))


@price_of("tril", "triu")
def triangle(op: Op) -> OpPrice:
    """A comparison of row and column and a selection, and again for the gradient."""
    return OpPrice(forward=3 * op.out.numel, gradients=(3 * op.out.numel,))


@price_of("scatter_add", "index_add", "index_put", "scatter")
def scatter(op: Op) -> OpPrice:
    adding = op.name in ("scatter_add", "index_add") or bool(op.arguments.get("accumulate"))
    source = op.inputs[-1].numel
    return OpPrice(forward=source if adding else 0, gradients=(0,) * len(op.inputs))


@price_of("masked_scatter")
def masked_scatter(op: Op) -> OpPrice:
    """Picture features put into their places: copies; what was overwritten has no gradient, which is a selection."""
    return OpPrice(gradients=(op.out.numel,) + (0,) * (len(op.inputs) - 1))
