"""Printing that never ends what it tells of: a closed pipe, a full disk, a terminal that knows ASCII only."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import IO

from budgeted.errors import BudgetedError

#: Where a terminal cannot show what we print.
_PLAIN = {"±": "+-", "†": "+", "‡": "++", "─": "-", "│": "|", "≤": "<=", "≥": ">=", "…": "...", "→": "->"}


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


codecs.register_error("budgeted.plain", _replaced)


def show_anything() -> None:
    """What the terminal has no letters for is shown by others; it is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="budgeted.plain")


def mute(stream: IO[str]) -> None:
    """Nothing more comes of a stream that is closed or full: what waits in it would fail again at the very end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def refuse_without_folder(*paths: Path | None, example: str = "NAME") -> None:
    """Before anything is computed: files that have no place to be written to."""
    for path in paths:
        if path is not None and path.is_dir():
            raise BudgetedError(f"cannot write {path}: it is a folder, give a file in it, as in {path / example}")
        if path is not None and not path.parent.is_dir():
            raise BudgetedError(f"cannot write {path}: there is no folder {path.parent}")


class Forgiving(io.TextIOWrapper):
    """The error stream, for progress: what cannot be shown is not shown, and the run goes on."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding=getattr(sys.stderr, "encoding", None) or "utf-8")
        self._to = sys.stderr  # a bar stands in for the error stream while it is drawn, and draws here
        self._broken = False

    def write(self, text: str, /) -> int:
        if not self._broken:
            try:
                self._to.write(text)
                self._to.flush()
            except (OSError, ValueError):
                self._broken = True
        return len(text)

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return self._to.isatty()
        return False
