"""The errors a person may see: one line each, and the line says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 1000


class BudgetedError(Exception):
    """Base of every error that is the user's to mend; one line, whatever the names in it are made of."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class UnknownName(BudgetedError):
    """A name that is in no list; the nearest known one is suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "known: " + ", ".join(known)
        super().__init__(f"unknown {kind} {name!r}: {hint}")


def one_line(text: str) -> str:
    """`text` without line breaks, control characters and halves of surrogate pairs; clipped in its middle."""
    return _clipped("".join(letter if letter.isprintable() else _escaped(letter) for letter in _clipped(text)))


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _escaped(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode("ascii")
