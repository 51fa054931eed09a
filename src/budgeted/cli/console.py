"""One console for all commands: as wide as the terminal, or wide enough for our tables where there is none."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TextIO, cast

from rich.console import Console
from rich.file_proxy import FileProxy

from budgeted.cli.output import Forgiving


def wide_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=120)


def say(text: str, shown: Forgiving) -> None:
    """A line, broken between words where the terminal is narrower; elsewhere as it is."""
    if shown.isatty():
        Console(file=shown).print(text, highlight=False, markup=False)
    else:
        print(text, file=shown)


@contextlib.contextmanager
def logged_above(console: Console, shown: Forgiving) -> Iterator[None]:
    """While something live is drawn on the console, lines of the log come above it; else they are overwritten, and
    parts of what is drawn stay."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is shown
    ]
    for handler in handlers:
        handler.setStream(cast(TextIO, FileProxy(console, shown)))
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(shown)
