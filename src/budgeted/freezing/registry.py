"""Freezing policies by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.policies import POLICIES, FreezingPolicy


def settings_of(kind: Callable[..., FreezingPolicy]) -> list[str] | None:
    """What a policy may be given by name; None if it takes anything."""
    asked = inspect.signature(kind).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in asked):
        return None
    return [each.name for each in asked]


def policy(name: str, **settings: Any) -> FreezingPolicy:
    """Build a policy by name, as in `policy("constant", n=4)`."""
    kind = POLICIES[name]
    known = settings_of(kind)
    for setting in settings:
        if known is not None and setting not in known:
            raise UnknownName(f"setting of freezing policy {name!r},", setting, known)
    try:
        return kind(**settings)
    except TypeError as error:
        raise BudgetedError(f"freezing policy {name!r}: {error}") from error
