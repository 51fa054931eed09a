"""Published methods, one file each: a class that names its parts and overrides a few verbs."""

from __future__ import annotations

import importlib
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.methods.lent import Holding
from budgeted.methods.method import METHODS, Method, Named, Step

__all__ = ["METHODS", "Holding", "Method", "Named", "Step", "ccl_dc_over", "lider_over", "method"]

# importing a file registers what is in it; this is the order of lists
_FILES = (
    "cram", "vanilla", "er", "al_sar", "der", "x_der", "ewc", "cama", "lider", "ccl_dc", "mir", "aser", "ocs", "gdumb",
    "clib", "bic", "rm", "memo", "remind", "sparcl", "trire",
)  # fmt: skip
for _file in _FILES:
    importlib.import_module(f"budgeted.methods.{_file}")
from budgeted.methods.ccl_dc import ccl_dc_over  # noqa: E402
from budgeted.methods.lider import lider_over  # noqa: E402


def method(name: str, **settings: Any) -> Method:
    """A method by its name, `module:NAME` or `file.py:NAME`, with settings of its own."""
    try:
        return METHODS[name](**settings)
    except TypeError as error:
        raise BudgetedError(f"method {name!r}: {error}") from error
