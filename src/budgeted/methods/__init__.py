"""Published methods, one file each, as compositions of the engine's parts."""

from __future__ import annotations

from budgeted.errors import UnknownName
from budgeted.methods.al_sar import AL, AL_SAR, SAR
from budgeted.methods.er import ER
from budgeted.methods.method import Loss, Method
from budgeted.methods.vanilla import VANILLA

METHODS: dict[str, Method] = {method.name: method for method in (VANILLA, ER, AL, SAR, AL_SAR)}


def method(name: str) -> Method:
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Loss", "Method", "method"]
