"""What a label may be, whatever it lies in: a word or a whole number.

A number that is not whole is refused, also as text. It is a measurement, or a whole number that a table has made 1.0 or
nan of, and every value of it would be a class of its own. Where such a text is meant as a name (of a version, say),
nobody can tell; it has to be declared among the classes, where the container can do that, or written as v2.9.
"""

from __future__ import annotations

from typing import Any

from budgeted.streams.dataset import DataError
from budgeted.streams.one_line import fits_a_line


def word(label: Any, where: str) -> str:
    """A label as a word, without the spaces around it; what is neither word nor whole number is refused."""
    if isinstance(label, str):
        return label.strip()
    if hasattr(label, "item") and getattr(label, "ndim", 0) == 0:  # a number of numpy or torch
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise _neither(label, where)
    return str(label).strip()


def demand_text(label: str, where: str) -> None:
    """Refuses what can be the name of nothing: no text, or text that breaks a line."""
    if label == "" or not fits_a_line(label):
        raise DataError(f"{where}: the label {label!r} is empty or no text of one line: correct it")


def demand_class(label: str, where: str) -> None:
    """Refuses what can be the name of a class only where it is declared as one."""
    demand_text(label, where)
    # 1.0 is refused as 2.9 is: it would be another class than 1.
    if _is(float, label) and not _is(int, label):
        raise _neither(label, where)


def _neither(label: Any, where: str) -> DataError:
    remedy = "correct it" + (", or give the class a name such as v2.9" if isinstance(label, float | str) else "")
    return DataError(f"{where}: the label {label!r} is neither a word nor a whole number: {remedy}")


def _is(kind: type[int] | type[float], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
