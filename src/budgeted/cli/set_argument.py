"""`--set KEY=VALUE`, as often as needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from budgeted.errors import BudgetedError


def with_pairs(settings: Mapping[str, str], pairs: Iterable[str]) -> dict[str, str]:
    found = dict(settings)
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BudgetedError(f"cannot read --set {pair}: write KEY=VALUE, as in --set learner.learning_rate=1e-3")
        found[key.strip()] = value.strip()
    return found
