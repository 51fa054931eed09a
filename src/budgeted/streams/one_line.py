"""One printable line from any text: names and messages out of files and servers are not ours to trust."""

from __future__ import annotations

_LONGEST = 1000


def one_line(text: str) -> str:
    """`text` without line breaks, control characters and halves of surrogate pairs; clipped in its middle."""
    return _clipped("".join(letter if letter.isprintable() else _escaped(letter) for letter in _clipped(text)))


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _escaped(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode("ascii")
