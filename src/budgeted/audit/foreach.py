"""A `_foreach_*` operator costs the sum over its tensors of what the plain operator costs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from budgeted.audit.call import Call
from budgeted.audit.elements import ELEMENTWISE, per_element, scalar_factor
from budgeted.audit.movement import MOVEMENT
from budgeted.audit.reductions import REDUCTIONS

PREFIX = "_foreach_"
KNOWN = ELEMENTWISE.keys() | REDUCTIONS | MOVEMENT | {"norm"}


def foreach(call: Call) -> int:
    base = call.base.removeprefix(PREFIX)
    tensors: Sequence[Tensor] = next(x for x in call.args if isinstance(x, (list, tuple)) and len(x))
    if base == "norm":
        norm, order, options = torch.ops.aten.linalg_vector_norm.default, call.arg("ord"), {"dtype": call.arg("dtype")}
        return sum(call.costs.of_operator(norm, (x, order), options) for x in tensors)
    if base in MOVEMENT:
        return 0
    if base in REDUCTIONS:
        return sum(int(x.numel()) for x in tensors)
    scalar = scalar_factor(call)
    per_tensor = scalar if isinstance(scalar, (list, tuple)) else [scalar] * len(tensors)
    if base not in {"add", "sub", "addcmul", "addcdiv"}:
        per_tensor = [None] * len(tensors)
    return sum(int(x.numel()) * per_element(base, s) for x, s in zip(tensors, per_tensor, strict=True))
