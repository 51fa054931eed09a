"""The networks by name: what there is, what each one is, and how to build one from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later

if TYPE_CHECKING:
    from budgeted.models.parts import ImageShape
    from budgeted.models.registry import build, describe, names

__all__ = ["ImageShape", "build", "describe", "names"]

# who brings a network of their own needs none of ours
_FILES = {"parts": ("ImageShape",), "registry": ("build", "describe", "names")}
__getattr__, __dir__ = later(__name__, _FILES)
