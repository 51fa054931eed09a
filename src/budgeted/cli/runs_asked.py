"""The finished runs that a command was asked for; what cannot be read is left out, and said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from budgeted.bench.query import Found, look, where
from budgeted.bench.table import RunResult
from budgeted.cli.output import Forgiving
from budgeted.errors import BudgetedError
from budgeted.learner.files import named
from budgeted.runs.folder import CONFIG


def asked(folders: Sequence[Path], conditions: Sequence[str]) -> list[RunResult]:
    """Of these folders, those for which all conditions hold; a folder without any is a mistake."""
    found = look(folders)
    for folder in folders:
        _refuse_without_finished(folder, found)
    if not found.runs:
        more = f" (and {len(found.unreadable) - 1} more that cannot be read)" if len(found.unreadable) > 1 else ""
        raise BudgetedError(found.unreadable[0] + more)
    for line in found.unreadable:
        print(f"left out: {line}", file=Forgiving())
    runs = where(found.runs, conditions)
    if not runs:
        raise BudgetedError("there is no finished run for which these conditions hold: ask for others")
    return runs


def _refuse_without_finished(folder: Path, found: Found) -> None:
    places = {config.parent for config in named(folder, CONFIG)}
    if not places:
        raise BudgetedError(f"{folder} holds no run: make one with `budgeted run`, or give another folder")
    if places <= set(found.unfinished):
        raise BudgetedError(
            f"{folder} holds no finished run: finish one with `budgeted run --resume`, or give another folder"
        )
