"""The errors a person may see: one line each, and the line says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BudgetedError(Exception):
    """Base of every error that is the user's to mend; the command line prints it as one line."""


class UnknownName(BudgetedError):
    """A name that is in no list; the nearest known one is suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "known: " + ", ".join(known)
        super().__init__(f"unknown {kind} {name!r}: {hint}")
