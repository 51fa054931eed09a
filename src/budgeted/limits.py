"""What a setting must be, said where it is declared: `rate: float = limited(0.1, "above 0")`.

The words are `at least 2` or `2 or more`, `above 0`, `above 0 and at most 1`, `between 0 and 1` (neither of the two),
`from 0 to 1`, `from 0 to below 1`, with any numbers.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import field
from typing import Any, TypeVar

from budgeted.errors import BudgetedError

T = TypeVar("T")
_ORDERS = {
    "above": operator.gt, "between": operator.gt, "at least": operator.ge, "from": operator.ge,
    "at most": operator.le, "to": operator.le, "and": operator.lt, "to below": operator.lt,
}  # fmt: skip
_BOUND = re.compile(rf"({'|'.join(sorted(_ORDERS, key=len, reverse=True))}) ([\d.]+)")


def limited(default: T, wanted: str) -> T:
    """A field of a dataclass, and what it must be; None is let through."""
    bounds = _BOUND.findall(re.sub(r"^([\d.]+) or more$", r"at least \1", wanted))
    assert bounds, f"{wanted!r} limits nothing: say it in the words of budgeted.limits"
    found: T = field(default=default, metadata={"wanted": wanted, "bounds": bounds})
    return found


def refuse_outside_limits(settings: Any, where: str = "") -> None:
    """Refuse values of a dataclass that are outside of their limits; those of its bases hold too."""
    items = (each for kind in type(settings).__mro__ for each in vars(kind).get("__dataclass_fields__", {}).values())
    for item in items:
        bounds = item.metadata.get("bounds", ())
        value = getattr(settings, item.name) if bounds else None
        if value is not None and not (
            math.isfinite(value) and all(_ORDERS[word](value, float(bound)) for word, bound in bounds)
        ):
            raise BudgetedError(f"{where}{item.name} must be {item.metadata['wanted']}, got {value}")
