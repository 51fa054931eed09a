"""Counting an operator by its decomposition, run on meta tensors of the same shapes, strides and dtypes.

What only serves outputs that `output_mask` declines is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from budgeted.audit.call import Call, Operator, OperatorCosts, argument, operator_name
from budgeted.audit.reference import decomposition, is_composite
from budgeted.audit.rules import UncountedOperator, decomposed, rule_of


class _Shape(NamedTuple):
    """All that a decomposition may ask of a tensor, and hashable."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Shape(tuple(map(int, value.shape)), tuple(map(int, value.stride())), value.dtype)
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if isinstance(value, torch.device):
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, _Shape):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype, device="meta")
    return [_thawed(x) for x in value] if isinstance(value, tuple) else value


class _Step(NamedTuple):
    cost: int
    inputs: list[Any]
    outputs: list[Any]  # held, so that no later tensor can be mistaken for one of these
    mutates: bool


class _Primitives(TorchDispatchMode):
    """Counts what it runs, following decompositions down to operators that have a rule of their own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []

    def cost_of(self, results: Any) -> int:
        """The cost of what the results need: a decomposition also computes gradients nobody asked for."""
        wanted = {id(x) for x in tree_leaves(results)}
        total = 0
        for step in reversed(self.steps):
            if step.mutates or not wanted.isdisjoint(map(id, step.outputs)):
                wanted.update(map(id, step.inputs))
                total += step.cost
        return total

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = rule_of(func)
        if rule is None or rule is decomposed:
            decompose = func.decompose if is_composite(func) else decomposition(func)
            if decompose is None:
                raise UncountedOperator(operator_name(func))
            with self:
                return decompose(*args, **kwargs)
        out = func(*args, **kwargs)
        cost = rule(Call(func, args, kwargs, out, COSTS))
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        outputs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        self.steps.append(_Step(cost, inputs, outputs, func._schema.is_mutable))
        return out


@lru_cache(maxsize=4096)
def _decomposed_cost(func: Operator, args: tuple[Any, ...], kwargs: tuple[Any, ...]) -> int:
    decompose = decomposition(func)
    assert decompose is not None
    with _disable_current_modes():
        inputs, options = [_thawed(x) for x in args], {name: _thawed(x) for name, x in kwargs}
        counter = _Primitives()
        try:
            with counter:
                results = decompose(*inputs, **options)
        except UncountedOperator as error:
            raise UncountedOperator(error.operator, inside=operator_name(func)) from error
        except Exception as error:  # a decomposition may fail on meta tensors in any way at all
            raise UncountedOperator(operator_name(func)) from error
    mask = argument(func, tuple(inputs), options, "output_mask")
    if mask is not None:
        results = [x for x, asked in zip(results, mask, strict=True) if asked]
    return counter.cost_of(results)


class _DecompositionCosts(OperatorCosts):
    def of_operator(self, func: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        frozen_kwargs = tuple((k, _frozen(v)) for k, v in sorted(kwargs.items()))
        return _decomposed_cost(func, tuple(map(_frozen, args)), frozen_kwargs)

    def of_running(self, work: Callable[[], object]) -> int:
        counter = _Primitives()
        with counter:
            work()
        return sum(step.cost for step in counter.steps)


COSTS = _DecompositionCosts()
