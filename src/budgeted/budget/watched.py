"""What a piece of code executes, priced while it runs: for work beside the model that no trace foresees.

Every operator passes a dispatch mode and is priced as its forward; so code with a backward of its own inside is not for
this. Rule `paper` counts the layers of models alone, so nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from budgeted.budget import prices
from budgeted.budget.cost import Cost
from budgeted.budget.refusals import UnpricedOperator
from budgeted.budget.trace import Op, Recorder, Value

T = TypeVar("T")
_FOREACH = "_foreach_"


def watched(function: Callable[[], T]) -> tuple[T, Cost]:
    """What the call gives, and what it executed."""
    recorder = Recorder(nn.Module(), nn.Module(), [])
    with recorder:
        result = function()
    operations = 0
    for op in recorder.trace.ops:
        for single in _singles(op):
            price = prices.find(single.name)
            if price is None:
                raise UnpricedOperator([f"{single.name} (beside the model)"])
            operations += price(single).forward
    return result, Cost(0, operations)


def _singles(op: Op) -> list[Op]:
    """An operator over lists of tensors as the single ones that it stands for."""
    if not op.name.startswith(_FOREACH):
        return [op]
    lists = {name: value for name, value in op.arguments.items() if isinstance(value, (list, tuple))}
    count = max(len(value) for value in lists.values())
    found = []
    for place in range(count):
        arguments = {name: lists[name][place] if name in lists else value for name, value in op.arguments.items()}
        inputs = tuple(value for value in arguments.values() if isinstance(value, Value))
        name = op.name.removeprefix(_FOREACH)
        found.append(Op(name, op.index, arguments, inputs, inputs[:1], op.path, op.modules, op.differentiable))
    return found
