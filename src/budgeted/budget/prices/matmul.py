"""Matrix products: linear layers and the products inside attention.

With M multiply-accumulates and an added bias of b output elements (0 without one): rule `real` forward 2M + b, each
factor's gradient 2M, the bias's a sum over the rows; rule `paper` forward M + b, backward twice that. A factor of the
bias or of the product is one multiplication more for each output element, under rule `real`.
"""

from __future__ import annotations

from budgeted.budget.prices import OpPrice, per_input, price_of, reduced
from budgeted.budget.trace import Op, Value


def _product(op: Op, left: str, right: str, added: str | None = None) -> OpPrice:
    a, b = op.tensor(left), op.tensor(right)
    macs = op.out.numel * a.shape[-1]
    bias, scaled, gradients = 0, 0, {left: 2 * macs, right: 2 * macs}
    if added is not None:
        scaled = op.out.numel * ((op.arguments.get("beta", 1) not in (0, 1)) + (op.arguments.get("alpha", 1) != 1))
    if added is not None and op.arguments.get("beta", 1) != 0:
        bias = op.out.numel
        gradients[added] = reduced(op.tensor(added), op.out)
    weight, inputs = _halves((a, b), macs + bias)
    return OpPrice(
        forward=2 * macs + bias + scaled,
        gradients=per_input(op, **gradients),
        paper_forward=macs + bias,
        paper_weight=weight,
        paper_input=inputs,
    )


def _halves(factors: tuple[Value, Value], macs: int) -> tuple[int, int]:
    """A factor that comes from parameters alone is a weight: its gradient is the parameters' half."""
    weights = sum(not factor.from_input for factor in factors)
    return weights * macs, (2 - weights) * macs


@price_of("mm", "bmm", "matmul", "mv", "dot")
def product(op: Op) -> OpPrice:
    names = [name for name, item in op.arguments.items() if isinstance(item, Value)]
    return _product(op, names[0], names[1])


@price_of("addmm")
def biased_product(op: Op) -> OpPrice:
    return _product(op, "mat1", "mat2", added="self")


@price_of("baddbmm")
def biased_batch_product(op: Op) -> OpPrice:
    return _product(op, "batch1", "batch2", added="self")


@price_of("linear")
def linear(op: Op) -> OpPrice:
    weight = op.tensor("weight")
    macs = op.out.numel * weight.shape[-1]
    bias = op.out.numel if op.value("bias") is not None else 0
    return OpPrice(
        forward=2 * macs + bias,
        gradients=per_input(op, input=2 * macs, weight=2 * macs, bias=bias),
        paper_forward=macs + bias,
        paper_weight=macs + bias,
        paper_input=macs + bias,
    )
