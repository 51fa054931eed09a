"""How a model is called: with one tensor or several by name, its own weights or others; and what a price goes by."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from budgeted.budget import Purpose

Inputs: TypeAlias = Tensor | Mapping[str, Tensor]
"""What a model is called with: one tensor, or several by name."""


def called(model: nn.Module, inputs: Inputs, weights: Mapping[str, Tensor] | None = None) -> Any:
    """The model's outputs, with its own weights or with others."""
    by_name = isinstance(inputs, Mapping)
    if weights is not None:
        return functional_call(model, dict(weights), *(((), dict(inputs)) if by_name else ((inputs,),)))
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


@contextlib.contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """In training mode for a while, then in the mode it was in."""
    before = model.training
    model.train()
    try:
        yield
    finally:
        model.train(before)


def as_given(inputs: Inputs) -> dict[str, Any]:
    """Inputs and keywords, as a freezing is asked for prices."""
    return {"inputs": (), "keywords": inputs} if isinstance(inputs, Mapping) else {"inputs": (inputs,)}


def count_of(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs)


def key_of(purpose: Purpose, function: Callable[..., Any], given: Sequence[Any]) -> tuple[object, ...]:
    """What the cost of a function follows from; torch's own have no code."""
    return (purpose, getattr(function, "__code__", function), *(_priced_by(each) for each in pytree.tree_leaves(given)))


def _priced_by(given: object) -> object:
    """What a price may depend on: a factor of 1 is no operation, any other is one."""
    if isinstance(given, Tensor):
        return tuple(given.shape)
    if isinstance(given, float):
        return given if given in (0.0, 1.0) else float
    return given if isinstance(given, int) else type(given)
