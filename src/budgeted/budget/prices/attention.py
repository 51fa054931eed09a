"""Scaled-dot-product attention in its fused forms (the unfused form is priced by its parts).

Let M be the multiply-accumulates of queries times keys, V those of the weights times the values and S the number of
scores. Forward 2M + 2V, scaling and softmax 6S. The backward recomputes the scores: 2M for them, 2V each for the
gradients of weights and values, 2M each for queries and keys; the softmax again 3S, its gradient 3S, and the row sums
of gradient times output. A causal mask earns no credit: the kernels compute whole tiles. Rule `paper` counts one per
multiply-accumulate, twice that backward.
"""

from __future__ import annotations

import math

from budgeted.budget.prices import OpPrice, price_of
from budgeted.budget.trace import Op


@price_of(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
def fused_attention(op: Op) -> OpPrice:
    query, key, value = op.tensor("query"), op.tensor("key"), op.tensor("value")
    scores = math.prod(query.shape[:-1]) * key.shape[-2]
    query_key, weight_value = scores * query.shape[-1], scores * value.shape[-1]
    macs = query_key + weight_value
    bias = scores if op.value("attn_bias") is not None or op.value("attn_mask") is not None else 0
    output = math.prod(query.shape[:-1]) * value.shape[-1]
    return OpPrice(
        forward=2 * macs + 6 * scores + bias,
        gradients=(0,) * len(op.inputs),
        shared=2 * (3 * query_key + 2 * weight_value) + 6 * scores + bias + 2 * output,
        paper_forward=macs,
        paper_input=2 * macs,
    )
