"""Published methods, one file each, as compositions of the engine's parts."""

from __future__ import annotations

from budgeted.errors import UnknownName
from budgeted.methods.al_sar import AL, AL_SAR, SAR
from budgeted.methods.aser import ASER
from budgeted.methods.bic import BIC
from budgeted.methods.cama import CAMA
from budgeted.methods.clib import CLIB
from budgeted.methods.der import DER
from budgeted.methods.er import ER
from budgeted.methods.ewc import EWC
from budgeted.methods.gdumb import GDUMB
from budgeted.methods.lider import LIDER, lider_over
from budgeted.methods.method import Loss, Method
from budgeted.methods.mir import MIR
from budgeted.methods.ocs import OCS
from budgeted.methods.rm import RM
from budgeted.methods.technique import Step, Technique
from budgeted.methods.vanilla import VANILLA

METHODS: dict[str, Method] = {
    method.name: method
    for method in (VANILLA, ER, AL, SAR, AL_SAR, DER, EWC, CAMA, LIDER, MIR, ASER, OCS, GDUMB, CLIB, BIC, RM)
}


def method(name: str) -> Method:
    """A method by its name; `lider-NAME` is the Lipschitz term over another one."""
    over = name.removeprefix("lider-")
    if over != name and over in METHODS:
        return lider_over(METHODS[over])
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


__all__ = ["METHODS", "Loss", "Method", "Step", "Technique", "lider_over", "method"]
