"""One console for all commands: as wide as the terminal, or wide enough for our tables where there is none."""

from __future__ import annotations

from rich.console import Console


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)
