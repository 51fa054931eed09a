"""What freezing saved LLaVA on questions, from the records of runs: accuracy, executed compute, CPU seconds, Welch.

    python benchmarks/questions_table.py results/bongard-drawn

A row for each kind of question and policy, beside the runs of the same kind with nothing frozen. "A_AUC of five" is the
mean over the five tasks' ends, as the paper has it, "anytime" that over all evaluations. The p of accuracy is that of
Welch's test between the seeds' accuracies at the end; CPU seconds are those of training alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from budgeted.bench.bongard_recipes import KINDS, POLICIES, TASKS
from budgeted.bench.table import RunResult, find_runs
from budgeted.runs.folder import RECORDS
from budgeted.runs.statistics import NoStatistic, format_mean_sd, summarise, welch

COLUMNS = ("questions", "freezing", "seeds", "before %", "A_AUC of five %", "anytime %", "A_last %", "p against none",
           "executed GFLOP", "of none", "CPU s", "of none's")  # fmt: skip


def rows(runs: list[RunResult]) -> list[list[str]]:
    found = []
    for kind in KINDS:
        of_kind = [run for run in runs if run.config["dataset"].endswith(f"-{kind}")]
        full = [run for run in of_kind if run.config["freezing"] == "none"]
        for policy in POLICIES:
            some = [run for run in of_kind if run.config["freezing"] == policy]
            if some:
                found.append([kind.upper(), policy, *cells(some, full, kind)])
    return found


def cells(some: list[RunResult], full: list[RunResult], kind: str) -> list[str]:
    seeds = {run.config["seed"] for run in some}
    beside = [run for run in full if run.config["seed"] in seeds]  # shares are of the same seeds

    def of(name: str) -> tuple[list[float], list[float]]:
        ours, theirs = ([float(run.summary[name]) for run in which] for which in (some, beside))
        return ours, theirs

    spent, whole = ([run.summary["spent"]["real"] / 1e9 for run in which] for which in (some, beside))
    cpu, cpu_whole = of("train_cpu_seconds")
    p = ""
    if some != full:
        try:
            p = f"{welch(of('a_last')[0], [float(run.summary['a_last']) for run in full]).p_value:.2f}"
        except NoStatistic:
            p = "none"  # one run, or no spread at all
    before = 100 * some[0].summary["base"]["accuracy"][kind]
    return [
        str(len(some)),
        f"{before:.1f}",
        format_mean_sd(summarise([of_five(run) for run in some]), 1, 100),
        *(format_mean_sd(summarise(of(name)[0]), 1, 100) for name in ("a_auc", "a_last")),
        p,
        f"{sum(spent) / len(spent):.0f}",
        share(spent, whole),
        f"{sum(cpu) / len(cpu):.0f}",
        share(cpu, cpu_whole),
    ]


def of_five(run: RunResult) -> float:
    """Mean accuracy at the ends of the tasks."""
    ends = {run.summary["samples"] * (task + 1) // TASKS for task in range(TASKS)}
    records = map(json.loads, (run.path / RECORDS).read_text(encoding="utf-8").splitlines())
    found = [float(record["accuracy"]) for record in records if record["samples"] in ends]
    assert len(found) == TASKS, f"{run.path} has {len(found)} evaluations at the ends of {TASKS} tasks"
    return sum(found) / TASKS


def share(ours: list[float], theirs: list[float]) -> str:
    return f"{sum(ours) / sum(theirs):.2f}" if len(ours) == len(theirs) else "none"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{' --- |' * len(COLUMNS)}")
    for row in rows(find_runs([given.folder])):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
