"""Normalisations: batch, layer, group, RMS.

Rule `real`, per element: statistics in training 4 (mean, and the mean of squared differences), normalising 2, scale
and shift 1 each. Backward of batch norm: two sums with their products 4, which serve weight and bias, and 5 for the
gradient of the input; of layer norm: 2 shared, 9 for the input, 2 for the weight, 1 for the bias. With running
statistics (evaluation mode) there are no statistics to pay and the gradient of the input is one product.
Rule `paper`: batch norm 7 forward and 15 backward, the others are not counted.
"""

from __future__ import annotations

from budgeted.budget.prices import OpPrice, per_input, price_of
from budgeted.budget.trace import Op


@price_of(
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "_batch_norm_with_update",
    "_batch_norm_no_update",
)
def batch_norm(op: Op) -> OpPrice:
    elements = op.tensor("input").numel
    training = bool(op.arguments.get("training", "_no_" not in op.name))
    affine = 2 * elements if op.value("weight") is not None else 0
    paper = {"paper_forward": 7 * elements, "paper_input": 15 * elements}
    if not training:
        return OpPrice(
            forward=2 * elements + affine,
            gradients=per_input(op, input=elements, weight=3 * elements, bias=elements),
            **paper,
        )
    return OpPrice(
        forward=6 * elements + affine,
        # the sums of the gradient and of its product with the centred input serve every one of the three
        gradients=per_input(op, input=5 * elements, weight=0, bias=0),
        shared=4 * elements,
        **paper,
    )


@price_of("native_layer_norm", "layer_norm")
def layer_norm(op: Op) -> OpPrice:
    elements = op.tensor("input").numel
    affine = 2 * elements if op.value("weight") is not None else 0
    return OpPrice(
        forward=6 * elements + affine,
        gradients=per_input(op, input=9 * elements, weight=2 * elements, bias=elements),
        shared=2 * elements,
    )


@price_of("native_group_norm")
def group_norm(op: Op) -> OpPrice:
    elements = op.tensor("input").numel
    affine = 2 * elements if op.value("weight") is not None else 0
    return OpPrice(
        forward=6 * elements + affine,
        gradients=per_input(op, input=4 * elements, weight=0, bias=0),
        shared=3 * elements,
    )


@price_of("_fused_rms_norm", "rms_norm")
def rms_norm(op: Op) -> OpPrice:
    elements = op.tensor("input").numel
    affine = elements if op.value("weight") is not None else 0
    return OpPrice(
        forward=3 * elements + affine,
        gradients=per_input(op, input=7 * elements, weight=2 * elements),
        shared=elements,
    )
