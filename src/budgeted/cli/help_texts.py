"""How the options of a command are shown: with what they are if not given, and nothing that says "None".

The words of an option are the docstring of its field. A field without a value of its own ends with what stands instead
("… if not given"), so its default is not shown a second time.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from tyro.conf import arg

T = TypeVar("T")
_WORDS = {
    "against": "ROW",
    "byte_rule": "real|paper",
    "compute": "AMOUNT",
    "data": "FOLDER",
    "dataset": "NAME|PATH",
    "device": "cpu|cuda",
    "freezing": "NAME",
    "codec": "NAME",
    "resize": "HOW",
    "problem": "NAME",
    "input": "CxHxW",
    "memory": "BYTES",
    "method": "NAME",
    "methods": "NAME [NAME ...]",
    "model": "NAME",
    "on": "local|ray|HOST:PORT",
    "part": "I/N",
    "retrieval": "NAME",
    "rows": "ROW [ROW ...]",
}
"""what stands after an option whose value is text"""


def with_help_texts(command: type[T]) -> type[T]:
    """The same dataclass; how its fields, and those of dataclasses in it, are shown is written into their types."""
    hints = get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):  # type: ignore[arg-type]
        hint = hints[field.name]
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if dataclasses.is_dataclass(plain):
            with_help_texts(plain)  # type: ignore[arg-type]
        elif not _told(hint):
            text = plain in (str, str | None, tuple[str, ...])
            metavar = _word(field.name) if text else None
            hidden = "" if _says_nothing(field, plain) else None
            command.__annotations__[field.name] = Annotated[hint, arg(metavar=metavar, help_behavior_hint=hidden)]
    return command


def _word(name: str) -> str | None:
    if name == "stream":
        from budgeted.streams import order_names  # whoever has a stream has loaded them; a list has not

        return "|".join(order_names())
    return _WORDS.get(name)


def _says_nothing(field: dataclasses.Field[Any], plain: Any) -> bool:
    """A flag that is simply not there, an option that is not given, or a list without an end."""
    default = field.default
    endless = default is dataclasses.MISSING and get_origin(plain) is tuple
    return endless or default is None or isinstance(default, bool) or default in ("", ())


def _told(hint: Any) -> bool:
    """Was the field told already how it is shown?"""
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(getattr(extra, "help_behavior_hint", None) is not None for extra in extras)
