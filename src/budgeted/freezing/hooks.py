"""Hooks that belong to one module: a copy of the model carries them along, and they must not act for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def only_for(module: nn.Module, method: Callable[..., None]) -> Callable[..., None]:
    """A hook that calls `method` for this module alone.

    A function and not the method itself: copying a model copies its hooks, and a method would copy its owner.
    """

    def hook(called: nn.Module, *rest: Any) -> None:
        if called is module:
            method(called, *rest)

    return hook
