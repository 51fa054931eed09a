"""`budgeted check`: hold a part of your own to the invariants that ours are held to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.check import check
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Check:
    """Run the invariants over a method, retrieval, selection, freezing policy or model of your own.

    Example: budgeted check mine.py:MyRetrieval. One line for each check: ledger = executed, bytes as counted, exact
    resume, same seed same run, frozen means not computed, growth, bad input; where one fails, the line says what to do.
    """

    part: Annotated[Positional[str], arg(metavar="FILE.py:NAME")]
    """What to check: FILE.py:NAME, or package.module:NAME."""

    def run_(self) -> None:
        failed = 0
        for result in check(self.part):
            failed += not result.passed
            print(result, flush=True)
        if failed:
            raise BudgetedError(f"{failed} checks failed: mend what their lines say, and run this again")
