"""What a run's bits depend on besides its configuration: recorded, and compared before a run is resumed."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from budgeted import __version__
from budgeted.errors import BudgetedError
from budgeted.runs.arithmetic import fingerprint, processor

# with any of these different, sums come out in another order or another arithmetic
DECISIVE = ("torch", "threads", "cpu_capability", "machine", "device", "numpy", "arithmetic")


def available(device: str) -> bool:
    """Whether tensors can be put there: the processor, or a graphics card that is in the machine."""
    try:
        wanted = torch.device(device)
    except RuntimeError:
        return False
    if wanted.type != "cuda":
        return device == "cpu"
    return torch.cuda.is_available() and (wanted.index or 0) < torch.cuda.device_count()


def most_threads() -> int:
    """More than so many get in each other's way, and a library that cannot start them ends the process."""
    return max(64, 4 * (os.cpu_count() or 1))


def environment(threads: int, device: str) -> dict[str, Any]:
    """Everything worth knowing of where a run was made."""
    if threads > most_threads():
        raise BudgetedError(f"--threads {threads} is too many for this machine: give {most_threads()} or less")
    if not available(device):
        raise BudgetedError(f"device {device!r} is not there: use --device cpu")
    return {
        "budgeted": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "processor": processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "arithmetic": fingerprint(threads, device),
    }


def alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Does the same program give the same bits in both, as far as anybody can tell?"""
    return all(one.get(name) == other.get(name) for name in DECISIVE)


def refuse_other(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """A resumed run must end bit-identical; where that cannot be, say why and stop."""
    differing = [
        f"{name} {recorded.get(name, 'not recorded')} there, {here.get(name)} here"
        for name in DECISIVE
        if recorded.get(name) != here.get(name)
    ]
    if differing:
        raise BudgetedError(
            f"this run cannot be resumed exactly here ({'; '.join(differing)}): resume it where it was begun, or add "
            "--accept-other-arithmetic, and its records will say that its bits are not those of one machine"
        )
