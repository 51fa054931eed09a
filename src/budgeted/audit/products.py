"""Matrix products and convolutions: 2 per multiply-accumulate, padding counted as dense arithmetic.

A bias costs 1 per result (none with beta = 0), beta or alpha other than 0 and 1 one more each. Convolution
backward costs 2 per multiply-accumulate for each of grad input and grad weight that is asked for, and 1 per
element of grad output for grad bias. `cdist`: 3 per pair and coordinate, plus 1 per pair.
"""

from __future__ import annotations

import math

from budgeted.audit.call import Call, Counting


def _matmul(call: Call) -> int:
    return 2 * call.result * int(call.args[0].shape[-1])


def _matmul_plus(call: Call) -> int:
    left = call.args[1]
    contracted = left.shape[-1] * (left.shape[0] if call.base == "addbmm" else 1)
    beta, alpha = call.arg("beta"), call.arg("alpha")
    extra = (0 if beta == 0 else 1 if beta == 1 else 2) + (alpha != 1)
    return call.result * int(2 * contracted + extra)


def _pairwise_distance(call: Call) -> int:
    return call.result * (3 * int(call.args[0].shape[-1]) + 1)


def _filter_elements(call: Call) -> int:
    return int(math.prod(call.arg("weight").shape[1:]))


def _convolution(call: Call) -> int:
    # Every element on the side that the kernel scatters from or gathers into meets one whole filter.
    anchors = call.source if call.arg("transposed") else call.result
    products = anchors * _filter_elements(call)
    return 2 * products + (call.result if call.arg("bias") is not None else 0)


def _convolution_backward(call: Call) -> int:
    grad = call.arg("grad_output")
    anchors = call.arg("input") if call.arg("transposed") else grad
    products = int(anchors.numel()) * _filter_elements(call)
    for_input, for_weight, for_bias = call.arg("output_mask")
    return int(2 * products * (for_input + for_weight) + grad.numel() * for_bias)


RULES: dict[str, Counting] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _matmul),
    **dict.fromkeys(("addmm", "addmv", "baddbmm", "addbmm"), _matmul_plus),
    "_cdist_forward": _pairwise_distance,
    **dict.fromkeys(("convolution", "_convolution"), _convolution),
    "convolution_backward": _convolution_backward,
}
