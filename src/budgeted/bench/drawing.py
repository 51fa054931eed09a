"""Matplotlib, which draws into files only here, and comes with an extra."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError


def refuse_without_matplotlib() -> None:
    """Before anything is computed that would be drawn at its end."""
    if find_spec("matplotlib") is None:
        raise BudgetedError("figures need matplotlib: pip install 'budgeted[plot]'")


def pyplot() -> Any:
    """matplotlib.pyplot, without a window."""
    refuse_without_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def write_figure(figure: Any, path: Path, dpi: int) -> None:
    """Into the file: the same picture gives the same bytes, whenever it is drawn."""
    import matplotlib

    date = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix)
    with matplotlib.rc_context({"svg.hashsalt": "budgeted"}):
        figure.savefig(path, dpi=dpi, metadata={date: None} if date else None)
