"""A misspelt keyword is one of the plug-in's own or one of its policy's: the line says which was meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing import POLICIES, FreezingPolicy
from budgeted.freezing.registry import settings_of


def refuse_unknown(taken_by: Callable[..., Any], policy: FreezingPolicy | str, settings: Mapping[str, Any]) -> None:
    """Refuse what neither `taken_by` takes nor the policy, or any setting of a policy that is built already."""
    if not settings:
        return
    asked = inspect.signature(taken_by).parameters.values()
    own = [each.name for each in asked if each.kind is not inspect.Parameter.VAR_KEYWORD]
    if not isinstance(policy, str):
        for name in settings:
            if difflib.get_close_matches(name, own, n=1, cutoff=0.7):
                raise UnknownName("setting of AdaptiveFreezing,", name, own)
        raise BudgetedError(f"{', '.join(settings)}: settings go with a policy's name; this policy is built already")
    known = settings_of(POLICIES[policy])
    for name in settings:
        if known is not None and name not in known:
            raise UnknownName(f"setting of AdaptiveFreezing or of its policy {policy!r},", name, [*own, *known])
