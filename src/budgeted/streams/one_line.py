"""Text that fits in one line: names and messages out of files and servers are not ours to trust."""

from __future__ import annotations

import unicodedata

from budgeted.errors import one_line

__all__ = ["fits_a_line", "one_line"]
#: Kinds of letters that break a line or cannot be written: control characters, separators, halves of pairs.
_UNFIT = frozenset({"Cc", "Cs", "Zl", "Zp"})


def fits_a_line(name: str) -> bool:
    """Whether a name can stand in a line of text as it is."""
    return name.isprintable() or not any(unicodedata.category(letter) in _UNFIT for letter in name)
