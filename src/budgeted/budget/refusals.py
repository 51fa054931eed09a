"""What cannot be priced, and why: said in one line, never counted as 0."""

from __future__ import annotations

from collections.abc import Sequence

from budgeted.errors import BudgetedError


class CannotTrace(BudgetedError):
    """The module cannot be run on tensors without data, so it cannot be priced."""


class UnpricedOperator(BudgetedError):
    """An operator that no price is known for; it is never counted as 0 in silence."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            "no price for operator "
            + ", ".join(names)
            + ": register one with budgeted.budget.prices.price_of, or pass unpriced='warn' to leave it out"
        )


class UnpricedBackward(UnpricedOperator):
    """A backward pass that torch's operators do not explain."""

    def __init__(self, reason: str) -> None:
        BudgetedError.__init__(self, reason)


class UnpricedOperatorWarning(UserWarning):
    """Said once per trace when operators without a price are left out of the count."""
