"""What the registry holds of a data set: who reads it, its facts, its addresses and its licence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import unquote

from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams.dataset import Dataset, DatasetInfo, Request
from budgeted.streams.download import Source

_OPTIONS = re.compile(r"\?(?=[A-Za-z_0-9]+=)")


@dataclass(frozen=True)
class Entry:
    """One data set that `load` can find."""

    info: DatasetInfo | None
    read: Callable[[Request], Dataset]
    #: Ways to download it, each a set of files; a later way is taken only where an earlier address is gone.
    downloads: tuple[tuple[Source, ...], ...] = ()
    #: What to do where there is no download.
    by_hand: str = ""
    resizes: bool = False
    #: Where it is described, and what its authors allow.
    home: str = ""
    licence: str = ""
    #: Options that its name may carry behind a `?`.
    options: tuple[str, ...] = ()


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """`NAME?key=value&key=value` as name and options; a `?` that no `key=` follows is part of the name."""
    found = list(_OPTIONS.finditer(text))
    if not found:
        return text, {}
    name, rest = text[: found[0].start()], text[found[0].end() :]
    options: dict[str, str] = {}
    for pair in rest.split("&"):
        key, equals, value = pair.partition("=")
        if not equals or key in options:
            raise BudgetedError(f"{text}: write options as NAME?key=value&other=value, each once")
        options[key] = unquote(value)
    return name, options


def refuse_others(options: Collection[str], known: Collection[str], name: str) -> None:
    for key in options:
        if key not in known:
            raise (
                UnknownName(f"option of {name}", key, known)
                if known
                else BudgetedError(f"{name} takes no options: leave out {key!r}")
            )
