"""How the training steps of runs are spread over the stream: a method that runs out of compute early is seen here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from budgeted.bench.table import Group, RunResult
from budgeted.bench.text_tables import markdown_table

PARTS = 5


def steps_by_part(run: RunResult) -> npt.NDArray[np.float64]:
    """Steps in equal parts of the stream, from the run's records; evenly between two evaluations."""
    records = run.periodic_records()
    samples = np.array([0, *(record["samples"] for record in records)])
    steps = np.array([0, *(record["steps"] for record in records)])
    return np.diff(np.interp(np.linspace(0, samples[-1], PARTS + 1), samples, steps))


def markdown_steps(groups: Sequence[Group]) -> str:
    """The mean over seeds for each group, a column for each fifth."""
    means = {group.label: np.mean([steps_by_part(run) for run in group.runs], axis=0) for group in groups}
    heads = ["steps in each fifth", *(str(part + 1) for part in range(PARTS))]
    return markdown_table(heads, ([label, *(f"{value:.0f}" for value in mean)] for label, mean in means.items()))
