"""How fast this machine trains, measured once and kept in the user's cache folder: a list of costs comes without torch.

What is kept holds for one machine and one version of torch; anything else there is measured anew.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from budgeted.errors import BudgetedError

START_SECONDS = 5
"""of a run, until its first sample"""


def seconds_of(operations: int, runs: int, rate: float) -> float:
    return operations / rate + START_SECONDS * runs


def kept_rate() -> float | None:
    """Operations in a CPU second, as they were measured here before; None if they were not."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
        rate = float(found["rate"])
        return rate if found["of"] == _machine() and math.isfinite(rate) and rate > 0 else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def measured_rate() -> float:
    """Measured now, and kept where that is possible."""
    from budgeted.bench.recipe_costs import rate
    from budgeted.learner.files import write_json

    found = rate()
    with contextlib.suppress(OSError, BudgetedError):  # it is measured again next time
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_json(_file(), {"of": _machine(), "rate": found})
    return found


def _file() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "budgeted" / "speed.json"


def _machine() -> list[str]:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return [platform.node(), platform.machine(), platform.release(), str(os.cpu_count()), torch]
