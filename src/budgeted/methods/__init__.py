"""Published methods, one file each: a class that names its parts and overrides a few verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from budgeted.errors import BudgetedError
from budgeted.later import later
from budgeted.methods.lent import Holding
from budgeted.methods.method import METHODS, Method, Named, Step

if TYPE_CHECKING:
    from budgeted.methods.ccl_dc import ccl_dc_over
    from budgeted.methods.lider import lider_over

__all__ = ["METHODS", "Holding", "Method", "Named", "Step", "ccl_dc_over", "lider_over", "method"]

# which names a file registers, in the order of lists
METHODS.later(__name__, {
    "cram": ("cram",), "vanilla": ("vanilla",), "er": ("er",), "al_sar": ("al", "sar", "al-sar"), "der": ("der++",),
    "x_der": ("x-der",), "ewc": ("ewc",), "cama": ("cama",), "lider": ("lider",), "ccl_dc": ("ccl-dc",),
    "mir": ("mir",), "aser": ("aser",), "ocs": ("ocs",), "gdumb": ("gdumb",), "clib": ("clib",), "bic": ("bic",),
    "rm": ("rm",), "memo": ("memo",), "remind": ("remind",), "sparcl": ("sparcl",), "trire": ("trire",),
})  # fmt: skip
METHODS.family("lider-", f"{__name__}.lider:lider_over")
METHODS.family("ccl-dc-", f"{__name__}.ccl_dc:ccl_dc_over")

_FILES = {"ccl_dc": ("ccl_dc_over",), "lider": ("lider_over",)}
__getattr__, __dir__ = later(__name__, _FILES)


def method(name: str, **settings: Any) -> Method:
    """A method by its name, `module:NAME` or `file.py:NAME`, with settings of its own."""
    try:
        return METHODS[name](**settings)
    except TypeError as error:
        raise BudgetedError(f"method {name!r}: {error}") from error
