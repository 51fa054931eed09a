"""Reductions, scans, sorts and searches.

Reductions and scans: 1 per input element; `mean`: plus 1 per result; `var`: 4 per input element (sum,
subtract, square, sum) plus 2 divisions per result, `std` one root more; `var_mean` shares the mean and
costs what `var` does; `sort`, `unique`: ceil(log2 length) per element; `searchsorted`: the same per
result; top-k, median: 1 per input element; `multinomial`: 3 per weight.
"""

from __future__ import annotations

import math

from budgeted.audit.call import Call, Counting

_NAMES = """
    _is_all_true all amax amin aminmax any argmax argmin bincount count_nonzero cummax cummin cumprod cumsum
    equal histc kthvalue max median min mode nanmedian nansum nonzero prod sum topk
"""
REDUCTIONS = frozenset(_NAMES.split())


def _reduction(call: Call) -> int:
    return call.source


def _mean(call: Call) -> int:
    return call.source + call.result


def _variance(call: Call) -> int:
    return 4 * call.source + (3 if call.base.startswith("std") else 2) * call.result


def _sort(call: Call) -> int:
    dim = call.arg("dim")
    values = call.args[0]
    length = values.numel() if dim is None else (values.shape[dim] if values.dim() else 1)
    return int(values.numel()) * max(1, math.ceil(math.log2(max(length, 1))))


def _search(call: Call) -> int:
    edges = next(x for x in (call.arg("sorted_sequence"), call.arg("boundaries")) if x is not None)
    return call.result * max(1, math.ceil(math.log2(edges.shape[-1] + 1)))


def _multinomial(call: Call) -> int:
    return 3 * call.source  # torch draws one exponential per weight, divides, and takes the top k


RULES: dict[str, Counting] = {
    **dict.fromkeys(REDUCTIONS, _reduction),
    "mean": _mean,
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _variance),
    **dict.fromkeys(("sort", "_unique2", "unique_dim", "unique_consecutive"), _sort),
    **dict.fromkeys(("searchsorted", "bucketize"), _search),
    "multinomial": _multinomial,
}
