"""Fused attention, by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.audit.helpers import count, draw, passes


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_dense_whether_causal_or_not(causal: bool) -> None:
    batch_heads, queries, keys, width, value_width = 6, 5, 7, 4, 4
    q, k, v = (draw(2, 3, n, width, grad=True) for n in (queries, keys, keys))
    scores = batch_heads * queries * keys
    products = 2 * scores * width + 2 * scores * value_width
    forward, backward = passes(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal))
    assert forward == products + scores * (1 + 5)
    recomputed, softmax_backward, scale = 3, 4, 1
    assert backward == 5 * products // 2 + scores * (recomputed + softmax_backward + scale)


def test_masked_shared_and_dropped_attention() -> None:
    attend = functional.scaled_dot_product_attention
    q, k = draw(2, 4, 5, 4), draw(2, 2, 7, 4)
    scores = 2 * 4 * 5 * 7
    assert count(lambda: attend(q, q, q, attn_mask=torch.zeros(5, 5))) == 200 * (16 + 6 + 1)
    assert count(lambda: attend(q, k, k, enable_gqa=True)) == scores * (16 + 6)
    fused = torch.ops.aten._scaled_dot_product_flash_attention.default
    q, k = q.to("meta"), draw(2, 4, 7, 4).to("meta")
    assert count(lambda: fused(q, k, k, 0.5)) == scores * (16 + 6 + 4)  # draw, compare, mask, scale
