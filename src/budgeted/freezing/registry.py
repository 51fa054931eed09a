"""Freezing policies by name."""

from __future__ import annotations

from typing import Any

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.adaptive import AdaptivePrefix
from budgeted.freezing.egeria import Egeria
from budgeted.freezing.policies import ConstantPrefix, FreezingPolicy, LinearPrefix, NeverFreeze, RandomPrefix
from budgeted.freezing.ptlf import TaskCorrelated

POLICIES: dict[str, type[FreezingPolicy]] = {
    "none": NeverFreeze,
    "constant": ConstantPrefix,
    "linear": LinearPrefix,
    "random": RandomPrefix,
    "adaptive": AdaptivePrefix,
    "egeria": Egeria,
    "ptlf": TaskCorrelated,
}


def policy(name: str, **settings: Any) -> FreezingPolicy:
    """Build a policy by name, as in `policy("constant", n=4)`."""
    if name not in POLICIES:
        raise UnknownName("freezing policy", name, POLICIES)
    try:
        return POLICIES[name](**settings)
    except TypeError as error:
        raise BudgetedError(f"freezing policy {name!r}: {error}") from error
