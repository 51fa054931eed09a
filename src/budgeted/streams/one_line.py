"""Text that fits in one line: names and messages out of files and servers are not ours to trust."""

from __future__ import annotations

import unicodedata

_LONGEST = 1000
#: Kinds of letters that break a line or cannot be written: control characters, separators, halves of pairs.
_UNFIT = frozenset({"Cc", "Cs", "Zl", "Zp"})


def fits_a_line(name: str) -> bool:
    """Whether a name can stand in a line of text as it is."""
    return name.isprintable() or not any(unicodedata.category(letter) in _UNFIT for letter in name)


def one_line(text: str) -> str:
    """`text` without line breaks, control characters and halves of surrogate pairs; clipped in its middle."""
    return _clipped("".join(letter if letter.isprintable() else _escaped(letter) for letter in _clipped(text)))


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _escaped(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode("ascii")
