"""Fused attention, as if every score were computed: causal masking earns no credit.

Forward: two matrix products, one scale (and one for a mask, and `native_dropout` when dropping) and
`_softmax` per score. Backward: five matrix products (scores are recomputed) and per score the scale,
subtract and exp of recomputing, `_softmax_backward_data` and the scale of its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from budgeted.audit.call import Call, Counting

aten = torch.ops.aten


def _scores(call: Call) -> tuple[Tensor, int, int]:
    """One meta tensor of the score's shape, and the two head widths."""
    query, key, value = (call.arg(name) for name in ("query", "key", "value"))
    scores = torch.empty((*query.shape[:-1], key.shape[-2]), dtype=query.dtype, device="meta")
    return scores, int(query.shape[-1]), int(value.shape[-1])


def _masks(call: Call) -> int:
    return sum(call.arg(name) is not None for name in ("attn_mask", "attn_bias"))


def _attention(call: Call) -> int:
    with _disable_current_modes():
        scores, width, value_width = _scores(call)
        cost = call.costs.of_operator(aten._softmax.default, (scores, -1, False), {})
        if call.arg("dropout_p"):
            cost += call.costs.of_operator(aten.native_dropout.default, (scores, 0.5, True), {})
        return cost + int(scores.numel()) * (2 * width + 2 * value_width + 1 + _masks(call))


def _attention_backward(call: Call) -> int:
    with _disable_current_modes():
        scores, width, value_width = _scores(call)
        softmax = (scores, scores, -1, scores.dtype)
        cost = call.costs.of_operator(aten._softmax_backward_data.default, softmax, {})
        if call.arg("dropout_p"):
            cost += call.costs.of_operator(aten.native_dropout_backward.default, (scores, scores, 2.0), {})
        return cost + int(scores.numel()) * (6 * width + 4 * value_width + 4 + _masks(call))


_KERNELS = [
    f"_scaled_dot_product_{kind}"
    for kind in (
        "flash_attention_for_cpu",
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
]

RULES: dict[str, Counting] = {
    **dict.fromkeys(_KERNELS, _attention),
    **dict.fromkeys([f"{name}_backward" for name in _KERNELS], _attention_backward),
}
