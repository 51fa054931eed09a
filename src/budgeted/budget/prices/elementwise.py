"""Elementwise arithmetic and activations.

Rule `real` counts every arithmetic operation of the definition, forward and in the derivative that autograd runs;
transcendental functions count 1. Rule `paper` counts activations 1 + 1 per element and nothing else.
"""

from __future__ import annotations

from budgeted.budget.prices import OpPrice, price_of, reduced
from budgeted.budget.trace import Op

# operator: operations per element forward, operations per element backward
ARITHMETIC: dict[str, tuple[int, int]] = {
    "neg": (1, 1), "abs": (1, 2), "sign": (1, 0), "exp": (1, 1), "exp2": (1, 2), "expm1": (1, 2), "log": (1, 1),
    "log2": (1, 2), "log1p": (1, 2), "sqrt": (1, 2), "rsqrt": (1, 3), "reciprocal": (1, 3), "square": (1, 2),
    "sin": (1, 2), "cos": (1, 3), "erf": (1, 5), "floor": (1, 0), "ceil": (1, 0), "round": (1, 0),
    "isnan": (1, 0), "isinf": (1, 0), "logical_not": (1, 0), "bitwise_not": (1, 0),
    "clamp": (1, 4), "clamp_min": (1, 2), "clamp_max": (1, 2), "masked_fill": (1, 1),
}  # fmt: skip
ACTIVATIONS: dict[str, tuple[int, int]] = {
    "relu": (1, 1), "threshold": (1, 1), "relu6": (1, 3), "hardtanh": (1, 4), "leaky_relu": (3, 3),
    "_prelu_kernel": (3, 7), "elu": (6, 8), "celu": (3, 4), "gelu": (5, 11), "silu": (2, 6), "mish": (6, 12),
    "sigmoid": (1, 3), "tanh": (1, 3), "hardsigmoid": (4, 5), "hardswish": (5, 7), "softplus": (4, 8),
    "log_sigmoid_forward": (5, 7),
}  # fmt: skip
COMPARISONS = (
    "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor",
    "bitwise_and", "bitwise_or", "remainder", "fmod", "floor_divide",
)  # fmt: skip
RANDOM = (
    "bernoulli",
    "normal",
    "uniform",
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "randint",
    "random",
    "randperm",
)


@price_of(*ARITHMETIC)
def arithmetic(op: Op) -> OpPrice:
    forward, backward = ARITHMETIC[op.name]
    elements = op.out.numel
    return OpPrice(forward=forward * elements, gradients=(backward * elements,) + (0,) * (len(op.inputs) - 1))


@price_of(*ACTIVATIONS)
def activation(op: Op) -> OpPrice:
    forward, backward = ACTIVATIONS[op.name]
    if op.name == "gelu" and op.arguments.get("approximate") == "tanh":
        forward, backward = 9, 18
    elements = op.out.numel
    return OpPrice(
        forward=forward * elements,
        gradients=(backward * elements,) + (0,) * (len(op.inputs) - 1),
        paper_forward=elements,
        paper_input=elements,
    )


@price_of(*COMPARISONS, *RANDOM)
def comparison(op: Op) -> OpPrice:
    return OpPrice(forward=op.out.numel, gradients=(0,) * len(op.inputs))


@price_of("add", "sub", "rsub")
def addition(op: Op) -> OpPrice:
    scaled = 2 if op.arguments.get("alpha", 1) != 1 else 1
    gradients = [reduced(value, op.out) for value in op.inputs]
    if op.name == "rsub":  # other - alpha * self
        gradients[0] += op.out.numel * scaled
    elif len(gradients) == 2:  # the second operand's gradient is negated or scaled
        gradients[1] += op.out.numel * ((op.name == "sub") + scaled - 1)
    return OpPrice(forward=scaled * op.out.numel, gradients=tuple(gradients))


@price_of("mul", "where")
def multiplication(op: Op) -> OpPrice:
    return OpPrice(
        forward=op.out.numel,
        gradients=tuple(op.out.numel + reduced(value, op.out) for value in op.inputs),
    )


@price_of("div", "true_divide")
def division(op: Op) -> OpPrice:
    gradients = [op.out.numel + reduced(value, op.out) for value in op.inputs]
    if len(gradients) == 2:
        gradients[1] += 3 * op.out.numel
    return OpPrice(forward=op.out.numel, gradients=tuple(gradients))


@price_of("pow")
def power(op: Op) -> OpPrice:
    # a constant exponent: power, product with the exponent and with the gradient; a tensor's takes the logarithm too
    each = 3 if len(op.inputs) == 1 else 6
    return OpPrice(forward=op.out.numel, gradients=tuple(each * op.out.numel for _ in op.inputs))


@price_of("maximum", "minimum")
def larger(op: Op) -> OpPrice:
    # a tie shares the gradient: two comparisons, a halving and a selection for each
    return OpPrice(
        forward=op.out.numel,
        gradients=tuple(5 * op.out.numel + reduced(value, op.out) for value in op.inputs),
    )


@price_of("lerp")
def interpolation(op: Op) -> OpPrice:
    return OpPrice(forward=3 * op.out.numel, gradients=tuple(2 * op.out.numel for _ in op.inputs))


@price_of("addcmul", "addcdiv")
def fused_addition(op: Op) -> OpPrice:
    scaled = 3 if op.arguments.get("value", 1) != 1 else 2
    return OpPrice(forward=scaled * op.out.numel, gradients=tuple(scaled * op.out.numel for _ in op.inputs))


@price_of("glu")
def gated(op: Op) -> OpPrice:
    return OpPrice(
        forward=2 * op.out.numel,
        gradients=(6 * op.out.numel,),
        paper_forward=op.out.numel,
        paper_input=op.out.numel,
    )


@price_of("xlogy")
def product_with_logarithm(op: Op) -> OpPrice:
    return OpPrice(forward=4 * op.out.numel, gradients=tuple(2 * op.out.numel for _ in op.inputs))


@price_of("native_dropout")
def dropout(op: Op) -> OpPrice:
    # draw, compare, mask and scale; backward the product with the scaled mask
    return OpPrice(forward=4 * op.out.numel, gradients=(2 * op.out.numel,))
