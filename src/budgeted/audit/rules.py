"""Rule `real`: which rule counts which operator.

It counts arithmetic on tensor elements; python numbers are free. The numbers stand with their families:
`elements`, `reductions`, `movement`, `foreach`, `products`, `pools`, `attention`, `optimizers`. Every other
operator costs the sum over torch's own reference decomposition into these (`decompose`).
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from budgeted.audit import attention, elements, foreach, movement, optimizers, pools, products, reductions
from budgeted.audit.call import Call, Counting, Operator, base_name, nothing
from budgeted.audit.reference import decomposition, is_composite
from budgeted.errors import BudgetedError


class UncountedOperator(BudgetedError):
    """An operator that is no primitive, moves no data and has no decomposition."""

    def __init__(self, operator: str, inside: str | None = None) -> None:
        self.operator = operator
        where = f" (inside {inside})" if inside and inside != operator else ""
        super().__init__(
            f"no rule counts operator {operator}{where}: build it from counted operators, "
            "or pass strict=False to leave it out of the count"
        )


_BY_NAME: MappingProxyType[str, Counting] = MappingProxyType(
    elements.RULES
    | reductions.RULES
    | movement.RULES
    | products.RULES
    | pools.RULES
    | attention.RULES
    | optimizers.RULES
)


def decomposed(call: Call) -> int:
    outputs = {a.name for a in call.func._schema.arguments if a.is_out}
    kwargs = {k: v for k, v in call.kwargs.items() if k not in outputs}
    return call.costs.of_operator(call.func, call.args, kwargs)


@lru_cache(maxsize=4096)
def rule_of(func: Operator) -> Counting | None:
    if func.namespace not in {"aten", "prims", "prim", "profiler"} or is_composite(func):
        return None
    base = base_name(func)
    if base in _BY_NAME:
        return _BY_NAME[base]
    if func.is_view or base.endswith(("_copy", "_scatter")) or base.startswith(("empty", "new_", "sym_")):
        return nothing
    if base.startswith(foreach.PREFIX):
        return foreach.foreach if base.removeprefix(foreach.PREFIX) in foreach.KNOWN else None
    return decomposed if decomposition(func) is not None else None
