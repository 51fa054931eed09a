"""What a run's bits depend on besides its configuration: recorded, and compared before a run is resumed."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from budgeted import __version__
from budgeted.errors import BudgetedError

# with any of these different, sums come out in another order or another arithmetic
_DECISIVE = ("torch", "threads", "cpu_capability", "machine", "device", "numpy")


def environment(threads: int, device: str) -> dict[str, Any]:
    """Everything worth knowing of where a run was made."""
    return {
        "budgeted": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
    }


def refuse_other(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """A resumed run must end bit-identical; where that cannot be, say why and stop."""
    differing = [
        f"{name} {recorded.get(name)} there, {here.get(name)} here"
        for name in _DECISIVE
        if recorded.get(name) != here.get(name)
    ]
    if differing:
        raise BudgetedError(
            f"this run cannot be resumed exactly here ({'; '.join(differing)}): "
            "resume it where it was begun, or start a new run"
        )
