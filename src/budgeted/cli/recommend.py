"""`budgeted plan --recommend`: what to take for a budget, and what that stands on."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from budgeted import streams
from budgeted.bench.outcomes import CHOSEN, Outcome, shipped
from budgeted.bench.recommend import Asked, Recommendation, recommend
from budgeted.budget import Budget
from budgeted.cli.console import wide_console
from budgeted.errors import BudgetedError

if TYPE_CHECKING:
    from budgeted.cli.plan import PlanCommand

_SHOWN = 5


def recommend_for(command: PlanCommand) -> None:
    budget = Budget(command.compute, command.memory)
    if budget.bytes is None or budget.compute is None or command.slots is not None or command.iterations is not None:
        raise BudgetedError("a recommendation is for a budget: give --memory and --compute, no --slots or --iterations")
    info = streams.info(command.dataset)
    if info.problem != "classification":
        raise BudgetedError(f"{command.dataset} is not measured here: recommendations are for classes of images")
    samples = info.train_size if command.limit is None else command.limit
    if samples < 1:
        raise BudgetedError(f"a stream of {samples} samples (--limit) teaches nothing: give at least 1")
    asked = Asked(info, command.stream, samples, budget.bytes, budget.compute)
    found = recommend(asked, shipped(), command.model)
    run = as_command(found.candidates[0].row, command)
    if command.json:
        print(json.dumps(_as_json(found, run), indent=1))
    else:
        _print(found, run, command)


def as_command(row: Outcome, command: PlanCommand) -> str:
    """The run that is recommended, as it is typed."""
    words = ["budgeted", "run"]
    for name in CHOSEN:
        value = row.choice.get(name)
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    words += ["--batch-size", str(row.batch_size)]
    for name in ("dataset", "stream", "limit", "memory", "compute"):
        value = getattr(command, name)
        words += [] if value is None else [f"--{name}", str(value)]
    for key, value in sorted(row.choice.get("settings", {}).items()):
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def _as_json(found: Recommendation, run: str) -> dict[str, Any]:
    return {
        "command": run,
        "candidates": [
            {
                **each.row.choice,
                "batch_size": each.row.batch_size,
                "slots": int(each.row.slots),
                "iterations": each.row.steps / each.row.samples,
                "a_auc": each.a_auc,
                "deviation": each.deviation,
            }
            for each in found.candidates
        ],
        "nearest": [run for row in found.nearest for run in row.runs],
        "configurations": found.configurations,
        "runs": found.runs,
        "covers": dict(found.covers),
        "left_out_error": found.error,
        "left_out_within_two_deviations": found.within,
        "not_measured_here": list(found.unmeasured),
    }


def _print(found: Recommendation, run: str, command: PlanCommand) -> None:
    console = wide_console()
    console.print(run, highlight=False, soft_wrap=True)
    for what in found.unmeasured:
        console.print(f"not measured here: {what}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="foretold, best first", title_justify="left")
    for name in ("choice", "batch", "slots", "it/sample"):
        table.add_column(name, justify="left" if name == "choice" else "right")
    table.add_column("A_AUC %", justify="right")
    for each in found.candidates[:_SHOWN]:
        row = each.row
        told = f"{each.a_auc:.1f} ± {each.deviation:.1f}"
        table.add_row(_chosen(row), str(row.batch_size), f"{int(row.slots):,}", f"{row.steps / row.samples:.2f}", told)
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, title="the records nearest to the first", title_justify="left")
    for name in ("runs", "stream", "samples", "slots", "it/sample", "A_AUC %"):
        table.add_column(name, justify="left" if name in ("runs", "stream") else "right")
    for row in found.nearest:
        seeds = f" and {len(row.runs) - 1} more" if len(row.runs) > 1 else ""
        mean = sum(row.a_auc) / len(row.a_auc)
        table.add_row(
            row.runs[0] + seeds, row.stream, f"{row.samples:,}", f"{int(row.slots):,}",
            f"{row.steps / row.samples:.2f}", f"{mean:.1f}",
        )  # fmt: skip
    console.print(table)
    covers = "; ".join(f"{what} {', '.join(values)}" for what, values in found.covers.items())
    console.print(
        f"Fitted to {found.runs} runs of {found.configurations} configurations: {covers}. One that is left out is "
        f"foretold with an error of {found.error:.1f} points in the mean, {found.within:.0%} within two standard "
        "deviations.",
        highlight=False,
    )


def _chosen(row: Outcome) -> str:
    settings = " ".join(f"{key}={value}" for key, value in sorted(row.choice.get("settings", {}).items()))
    parts = [str(row.choice[name]) for name in CHOSEN if row.choice.get(name) and name != "spend_savings"]
    return " ".join([*parts, *(["savings spent"] if row.choice.get("spend_savings") else []), settings]).strip()
