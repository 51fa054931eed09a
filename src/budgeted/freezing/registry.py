"""Freezing policies by name."""

from __future__ import annotations

from typing import Any

from budgeted.errors import BudgetedError
from budgeted.freezing.adaptive import AdaptivePrefix
from budgeted.freezing.egeria import Egeria
from budgeted.freezing.policies import ConstantPrefix, FreezingPolicy, LinearPrefix, NeverFreeze, RandomPrefix
from budgeted.freezing.ptlf import TaskCorrelated
from budgeted.registry import Registry

POLICIES: Registry[type[FreezingPolicy]] = Registry("freezing policy", "freezing")
_OURS: dict[str, type[FreezingPolicy]] = {
    "none": NeverFreeze,
    "constant": ConstantPrefix,
    "linear": LinearPrefix,
    "random": RandomPrefix,
    "adaptive": AdaptivePrefix,
    "egeria": Egeria,
    "ptlf": TaskCorrelated,
}
for _name, _kind in _OURS.items():
    POLICIES.register(_name)(_kind)


def policy(name: str, **settings: Any) -> FreezingPolicy:
    """Build a policy by name, as in `policy("constant", n=4)`."""
    kind = POLICIES[name]
    try:
        return kind(**settings)
    except TypeError as error:
        raise BudgetedError(f"freezing policy {name!r}: {error}") from error
