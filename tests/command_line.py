"""What a command prints, and the one line that it ends with when it is refused."""

from __future__ import annotations

import pytest

from budgeted.cli import main

Capture = pytest.CaptureFixture[str]


def said(arguments: list[str], capsys: Capture) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    assert main(arguments) == 0
    return capsys.readouterr().out


def refused(arguments: list[str], capsys: Capture, *, quiet: bool = True) -> str:
    """The one line of a command that fails; quiet: nothing was printed before it."""
    capsys.readouterr()
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert (shown.out == "") is quiet
    assert shown.err.startswith("budgeted: error: ")
    assert shown.err.count("\n") == 1
    return shown.err
