"""Convolution in any number of dimensions: plain, strided, dilated, grouped, depthwise, transposed.

With M multiply-accumulates and a bias of b output elements (0 without one): rule `real` forward 2M + b, gradient of the
input 2M, of the weight 2M, of the bias b; rule `paper` forward M + b, backward twice that.
"""

from __future__ import annotations

import math

from budgeted.budget.prices import OpPrice, per_input, price_of
from budgeted.budget.trace import Op


@price_of("convolution", "_convolution")
def convolution(op: Op) -> OpPrice:
    data, weight = op.tensor("input"), op.tensor("weight")
    # a convolution's weight is [out, in / groups, *kernel]; a transposed one's is [in, out / groups, *kernel]
    # and every input element, not every output element, meets the whole kernel of its group
    positions = data if op.arguments.get("transposed") else op.out
    macs = positions.numel * math.prod(weight.shape[1:])
    bias = op.out.numel if op.value("bias") is not None else 0
    return OpPrice(
        forward=2 * macs + bias,
        gradients=per_input(op, input=2 * macs, weight=2 * macs, bias=bias),
        paper_forward=macs + bias,
        paper_weight=macs + bias,
        paper_input=macs + bias,
    )
