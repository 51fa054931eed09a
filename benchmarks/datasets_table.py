"""The recipe `datasets` as a table: a row for each data set and order, a column for each method.

    python benchmarks/datasets_table.py results/datasets

A_AUC and A_last in per cent: mean and sample standard deviation over the seeds, of one seed the value.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from budgeted.bench.recipes import DATASET_STREAMS
from budgeted.bench.table import RunResult, find_runs
from budgeted.runs.statistics import format_mean_sd, summarise

METHODS = {"Vanilla": ("vanilla", None), "class-balanced": ("vanilla", "class-balanced"), "aL-SAR": ("al-sar", None)}


def rows(runs: list[RunResult]) -> list[list[str]]:
    found = []
    for dataset, order in DATASET_STREAMS:
        some = [run for run in runs if (run.config["dataset"], run.config["stream"]) == (dataset, order)]
        if some:
            columns = [[run for run in some if of(run) == method] for method in METHODS.values()]
            seeds = " ".join(sorted({str(run.config["seed"]) for run in some}))
            classes = len(some[0].summary["classes"])
            found.append([f"`{dataset}`", order, str(classes), seeds, *map(cell, columns)])
    return found


def of(run: RunResult) -> tuple[str, str | None]:
    return run.config["method"], run.config["retrieval"]


def cell(runs: list[RunResult]) -> str:
    if not runs:
        return "none"
    columns = ([float(run.summary[name]) for run in runs] for name in ("a_auc", "a_last"))
    return " / ".join(
        format_mean_sd(summarise(values), 1, 100) if len(values) > 1 else f"{100 * values[0]:.1f}" for values in columns
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    columns = ("data set", "order", "classes", "seeds", *METHODS)
    print(f"| {' | '.join(columns)} |")
    print(f"|{' --- |' * len(columns)}")
    for row in rows(find_runs([given.folder])):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
