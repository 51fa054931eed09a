"""Names of a package that are imported when they are asked for: who does not ask does not wait."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def later(package: str, files: Mapping[str, tuple[str, ...]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`; `files` says which of its modules has which names."""
    file_of = {name: file for file, names in files.items() for name in names}

    def get(name: str) -> Any:
        file = file_of.get(name)
        if file is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        collecting = gc.isenabled()
        gc.disable()  # with torch loaded every collection looks through its objects too: more than half of our import
        try:
            found = getattr(importlib.import_module(f"{package}.{file}"), name)
        finally:
            if collecting:
                gc.enable()
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *file_of})
