"""Names for parts: ours, those of installed packages, and those of a user's own file.

A registry is a mapping from names to what they stand for. A part gets its name by a decorator,

    @METHODS.register("mine")
    class Mine(Method): ...

by an entry point of an installed package (group `budgeted.methods`, `budgeted.retrievals`, …), or needs none: wherever
a name is taken, `package.module:NAME` and `path/to/file.py:NAME` are taken too. A family is a prefix before any of
these (`lider-er`, `lider-path/to/file.py:NAME`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from budgeted.errors import BudgetedError, UnknownName

T = TypeVar("T")


class MadeByName:
    """A part that goes by a name and settings: the fields of one that is a dataclass."""

    @classmethod
    def settings_type(cls) -> type:
        """The dataclass whose fields are its settings."""
        return cls

    @classmethod
    def made(cls, settings: Mapping[str, Any]) -> Self:
        return cls(**settings)


class Registry(Mapping[str, T], Generic[T]):
    """What there is of one kind, by name."""

    def __init__(self, kind: str, group: str, base: Callable[[], type] | None = None) -> None:
        """kind: as an error calls it. group: the entry points `budgeted.GROUP` of installed packages. base: the class
        that all are made from, if there is one."""
        self.kind = kind
        self._base = base
        self._group = f"budgeted.{group}"
        self._known: dict[str, T] = {}
        self._written_in: dict[str, str] = {}  # names of ours whose modules are imported when one is asked for
        self._families: dict[str, str] = {}

    def later(self, package: str, files: Mapping[str, tuple[str, ...]]) -> None:
        """The names that modules of the package register, each imported when one of its names is asked for; lists have
        this order."""
        self._written_in |= {name: f"{package}.{file}" for file, names in files.items() for name in names}

    def register(self, name: str) -> Callable[[T], T]:
        """Give what follows a name; one name stands for one thing."""

        def add(thing: T) -> T:
            module = getattr(thing, "__module__", None)
            if self._written_in.get(name, module) != module or self._known.get(name, thing) is not thing:
                raise BudgetedError(f"there is a {self.kind} {name!r} already: choose another name")
            self._known[name] = thing
            return thing

        return add

    def family(self, prefix: str, over: str) -> None:
        """`prefix` before the name of any other one stands for what `over`, a `module:NAME`, makes of that one."""
        self._families[prefix] = over

    def __getitem__(self, name: str) -> T:
        """By name, by `module:NAME` or by `file.py:NAME`; an unknown name says which is near."""
        if name not in self._known and name in self._written_in:
            importlib.import_module(self._written_in[name])
        if name in self._known:
            return self._known[name]
        for entry in entry_points(group=self._group, name=name):
            found: T = entry.load()
            return found
        prefix, rest = self.apart(name)
        if prefix and rest in self:
            made: T = load(self._families[prefix])(self[rest])
            return made
        if ":" in name:
            return self._given(name)
        raise UnknownName(self.kind, name, [*self, *(prefix + each for each in self if prefix)])

    def made(self, part: Any, settings: Mapping[str, Any], *given: Any) -> Any:
        """The part of this name with these settings, and what else it is made with; one that is none yet is refused,
        one that is a part already is taken as it is."""
        base = object if self._base is None else self._base()
        if isinstance(part, str):
            kind: Any = self[part]
            try:
                return kind.made(settings, *given)
            except TypeError as error:
                raise BudgetedError(f"{self.kind} {part!r}: {error}") from error
        if not isinstance(part, base):
            raise BudgetedError(
                f"{part!r} is no {self.kind}: give a name such as {next(iter(self))!r}, "
                f"or one made from {base.__name__}"
            )
        return part

    def apart(self, name: str) -> tuple[str, str]:
        """The prefix of a family, and the name of what it stands before; none, and the name, of any other. A file that
        is called so by itself is no member of a family."""
        file = source_of(name)
        for prefix in self._families:
            if name.startswith(prefix) and name not in self._ours() and not (file is not None and file.exists()):
                return prefix, name.removeprefix(prefix)
        return "", name

    def _given(self, name: str) -> T:
        found: T = load(name)
        base = None if self._base is None else self._base()
        if base is not None and not (isinstance(found, type) and issubclass(found, base)):
            made_from = f"{base.__module__}.{base.__name__}"
            raise BudgetedError(f"{name} is no {self.kind}: give a class that is made from {made_from}")
        return found

    def __contains__(self, name: object) -> bool:
        """Whether it is known, or written as one of a user's own; nothing is loaded to tell."""
        return isinstance(name, str) and (
            name in self._ours()
            or ":" in name
            or any(entry_points(group=self._group, name=name))
            or (bool((apart := self.apart(name))[0]) and apart[1] in self)
        )

    def __iter__(self) -> Iterator[str]:
        ours = self._ours()
        yield from ours
        yield from (entry.name for entry in entry_points(group=self._group) if entry.name not in ours)

    def _ours(self) -> dict[str, None]:
        """Names that are registered, or will be."""
        return dict.fromkeys([*self._written_in, *self._known])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def load(text: str) -> Any:
    """What `package.module:NAME` or `file.py:NAME` names."""
    where, _, name = text.rpartition(":")
    module = _file_module(Path(where)) if where.endswith(".py") else _module(where)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise BudgetedError(f"{where} has no {name!r}: give the name of something that it defines")
        found = getattr(found, part)
    return found


def source_of(text: str) -> Path | None:
    """The file of `file.py:NAME`; None for anything else."""
    where, colon, _ = text.rpartition(":")
    return Path(where) if colon and where.endswith(".py") else None


def short(text: str) -> str:
    """A name that a folder can have: NAME of `module:NAME` or `file.py:NAME`."""
    return text.rpartition(":")[2]


def file_digest(path: Path) -> str:
    """Of a user's file, so that another version of it is noticed."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise BudgetedError(f"cannot read {path}: {error.strerror}") from error


def _file_module(path: Path) -> Any:
    """Loaded once for its content, under a name of its own, so that dataclasses and copies find their module."""
    name = f"budgeted_file_{file_digest(path)[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise BudgetedError(f"{path} is no Python file: give FILE.py:NAME")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BudgetedError:
            del sys.modules[name]
            raise
        except Exception as error:  # whatever the user's file does wrong, it is theirs to mend
            del sys.modules[name]
            raise BudgetedError(f"cannot load {path}: {type(error).__name__}: {error}") from error
    return sys.modules[name]


def _module(name: str) -> Any:
    if os.getcwd() not in sys.path:  # as with `python -m`: a user's module next to where they stand
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise BudgetedError(f"cannot import {name!r}: {error}; give package.module:NAME or FILE.py:NAME") from error
