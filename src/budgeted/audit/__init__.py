"""The independent witness: counts what was really executed, so that the ledger can be checked against it."""

from __future__ import annotations

from budgeted.audit.executed import ExecutedOnData, ExecutedOps
from budgeted.audit.rules import UncountedOperator

__all__ = ["ExecutedOnData", "ExecutedOps", "UncountedOperator"]
