"""How the training steps of runs are spread over the stream: a method that runs out of compute early is seen here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from budgeted.bench.table import Group, RunResult

PARTS = 5


def steps_by_part(run: RunResult, parts: int = PARTS) -> npt.NDArray[np.float64]:
    """Steps in equal parts of the stream, from the run's records; evenly between two evaluations."""
    records = run.periodic_records()
    samples = np.array([0, *(record["samples"] for record in records)])
    steps = np.array([0, *(record["steps"] for record in records)])
    return np.diff(np.interp(np.linspace(0, samples[-1], parts + 1), samples, steps))


def markdown_steps(groups: Sequence[Group]) -> str:
    """The mean over seeds for each group, a column for each fifth."""
    lines = [
        f"| steps in each fifth | {' | '.join(str(part + 1) for part in range(PARTS))} |",
        f"|{'---|' * (PARTS + 1)}",
    ]
    for group in groups:
        mean = np.mean([steps_by_part(run) for run in group.runs], axis=0)
        lines.append(f"| {group.label} | {' | '.join(f'{value:.0f}' for value in mean)} |")
    return "\n".join(lines)
