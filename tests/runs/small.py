"""Runs of a second or two, ended at any sample, and when two of them ended alike."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted.runs.config import RunConfig
from budgeted.runs.run import Progress, start

SAMPLES = 120
TIMELESS = ("weights_sha256", "records_sha256", "spent", "samples", "iterations", "a_auc", "a_last", "bytes")
# the smallest model: what is asked of a folder does not depend on it
SMALL: dict[str, Any] = {"model": "mlp", "limit": 40, "eval_every": 10, "checkpoint_every": 3}

# Kernels without AVX: another arithmetic on every processor that has it.
_PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}


def other_dispatch() -> dict[str, str]:
    """The environment of a process whose kernels are not those of this one; it finds the tests' own modules."""
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        return {key: value for key, value in here.items() if key not in _PLAIN}
    return {**here, **_PLAIN}


def config(method: str = "vanilla", **more: Any) -> RunConfig:
    """A run of a second or two."""
    given: dict[str, Any] = {
        "model": "cnn8",
        "limit": SAMPLES,
        "slots": 30,
        "batch_size": 4,
        "eval_every": 50,
        "eval_samples": 40,
        "checkpoint_every": 4,
        **more,
    }
    return RunConfig(method=method, **given)


def same_end(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert {key: first[key] for key in TIMELESS} == {key: second[key] for key in TIMELESS}


def flags(method: str, **more: Any) -> list[str]:
    chosen = config(method, **more)
    names = ("model", "limit", "slots", "batch_size", "eval_every", "eval_samples", "checkpoint_every", "method")
    return [word for name in names for word in (f"--{name.replace('_', '-')}", str(getattr(chosen, name)))]


class Stopped(BaseException):
    """As sudden as a kill for all that is on disk, and much quicker."""


def stop_after(samples: int) -> Callable[[Progress], None]:
    """Ends a run between the learning of a sample and the checkpoint that would follow."""

    def report(progress: Progress) -> None:
        if progress.samples == samples:
            raise Stopped

    return report


def begun(folder: Path, chosen: RunConfig, samples: int) -> Path:
    with pytest.raises(Stopped):
        start(chosen, folder, stop_after(samples))
    return folder
