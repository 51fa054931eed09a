"""What settings must be, in words: each bound from both sides."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass

import pytest

from budgeted.errors import BudgetedError
from budgeted.limits import limited, refuse_outside_limits

BOUNDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "0 or more": ((0, 7), (-1,)),
    "2.5 or more": ((2.5,), (2,)),
    "at least 2": ((2,), (1,)),
    "above 0": ((1e-9,), (0, -1)),
    "above 0 and at most 1": ((0.5, 1), (0, 1.1)),
    "between 0 and 0.5": ((0.4,), (0, 0.5)),
    "from 0 to 1": ((0, 1), (-0.1, 1.1)),
    "from 0 to below 1": ((0, 0.9), (-0.1, 1)),
}


@pytest.mark.parametrize("wanted", BOUNDS)
def test_what_is_inside_is_taken_and_what_is_outside_refused(wanted: str) -> None:
    kind = make_dataclass("Set", [("rate", float, limited(0.0, wanted))])
    inside, outside = BOUNDS[wanted]
    for value in (*inside, None):
        refuse_outside_limits(kind(value))
    for value in (*outside, float("nan"), float("inf")):
        with pytest.raises(BudgetedError, match=f"^part.rate must be {wanted}, got {value}$"):
            refuse_outside_limits(kind(value), "part.")


@dataclass
class Base:
    share: float = limited(0.5, "from 0 to 1")


@dataclass
class Other(Base):
    share: float = 0.25


def test_the_limits_of_a_base_hold_for_another_default() -> None:
    refuse_outside_limits(Other())
    with pytest.raises(BudgetedError, match="share must be from 0 to 1, got 2"):
        refuse_outside_limits(Other(2))


def test_words_that_limit_nothing_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="limits nothing"):
        limited(0, "nice")
