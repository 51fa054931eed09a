"""The errors a person may see: one line each, and the line says what to do."""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterable
from typing import Any

_LONGEST = 1000
_NEAR = 0.6
_FILES = (".npz", ".csv", ".tsv", ".parquet", ".tar", ".py", ".toml", ".json")
_LISTED = 12
"""names that an error lists; the whole list is a command's"""


class BudgetedError(Exception):
    """Base of every error that is the user's to mend; one line, whatever the names in it are made of."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class UnknownName(BudgetedError):
    """A name that is in no list: the nearest known one is suggested, or the line says that none is near."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = None if name.endswith(_FILES) else nearest(name, known)
        if near is not None:
            super().__init__(f"unknown {kind} {name!r}: did you mean {near!r}?")
        elif os.sep in name or name.startswith(("~", ".")) or name.endswith(_FILES):
            super().__init__(f"there is no file or folder {name}: check the path, or give a {kind}: {_some(known)}")
        else:
            own = "; your own data go by folder:PATH or manifest:FILE" if kind == "data set" else ""
            super().__init__(f"unknown {kind} {name!r}, and none is near it: {_some(known, name)}{own}")


class Terminated(BaseException):
    """SIGTERM: as Ctrl-C, so that whatever was started is stopped, and a cursor that was hidden is shown."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that this one was meant to be, if a slip of the fingers explains it.

    Another number is no slip: resnet99 is no misspelt resnet56. Digits that were left out or changed places are. Of a
    setting such as learner.learning_rate the last part is enough, and so are its initials.
    """
    known, last = list(known), name.lower().replace("-", "_").rpartition(".")[2]
    shortened = [each for each in known if "." in each and last in (_last(each), _initials(_last(each)))]
    if len(shortened) == 1:
        return shortened[0]
    for found in difflib.get_close_matches(name.lower(), known, n=3, cutoff=_NEAR):
        given, there = _digits(name), _digits(found)
        if sorted(given) == sorted(there) or there.startswith(given):
            return found
    return None


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _initials(name: str) -> str:
    words = name.split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""


def _digits(name: str) -> str:
    return "".join(re.findall(r"\d", name))


def _some(known: list[str], name: str = "") -> str:
    """The known names, those that begin alike first; cut short if they are many."""
    beginning = re.match(r"[^\W\d_]*", name)
    alike = [each for each in known if beginning and beginning[0] and each.startswith(beginning[0])]
    listed = [*alike, *(each for each in known if each not in alike)]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED + 1 else ""
    return "known are " + ", ".join(listed[: _LISTED if more else None]) + more


def one_line(text: str) -> str:
    """`text` without line breaks, control characters and halves of surrogate pairs; clipped in its middle."""
    return _clipped("".join(letter if letter.isprintable() else _escaped(letter) for letter in _clipped(text)))


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def _escaped(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode("ascii")


def needed(module: str, said: str) -> Any:
    """A module that not everybody has installed, imported when it is asked for; `said`: how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BudgetedError(said) from error
