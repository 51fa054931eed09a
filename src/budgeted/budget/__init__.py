"""Units, prices of operators under both rules, and the ledger that everything is charged to."""

from __future__ import annotations

from budgeted.budget.cost import NOTHING, Cost, total
from budgeted.budget.ledger import PURPOSES, Budget, BudgetSpent, Ledger, Purpose, peak_memory
from budgeted.budget.pricing import BlockPrices, Pricer
from budgeted.budget.refusals import CannotTrace, UnpricedOperator, UnpricedOperatorWarning
from budgeted.budget.trace import Trace, trace
from budgeted.budget.units import (
    RULES,
    BadQuantity,
    Compute,
    Rule,
    format_bytes,
    format_compute,
    parse_bytes,
    parse_compute,
)

__all__ = [
    "NOTHING",
    "PURPOSES",
    "RULES",
    "BadQuantity",
    "BlockPrices",
    "Budget",
    "BudgetSpent",
    "CannotTrace",
    "Compute",
    "Cost",
    "Ledger",
    "Pricer",
    "Purpose",
    "Rule",
    "Trace",
    "UnpricedOperator",
    "UnpricedOperatorWarning",
    "format_bytes",
    "format_compute",
    "parse_bytes",
    "parse_compute",
    "peak_memory",
    "total",
    "trace",
]
