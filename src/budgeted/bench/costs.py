"""The tables of `budgeted costs`: slots, compute per iteration, freezing policies; as Markdown, CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from budgeted.bench.compute_costs import Multiplier, PolicyCost, Setup
from budgeted.bench.published import PAPER_SETTINGS
from budgeted.bench.slot_costs import SlotRow
from budgeted.bench.text_tables import csv_table
from budgeted.budget import RULES, format_bytes, format_compute
from budgeted.runs.config import flat

_NOTHING = "-"


@dataclass
class Costs:
    """What was asked for; a table that was not is empty."""

    setup: Setup
    slots: list[SlotRow] = field(default_factory=list)
    multipliers: list[Multiplier] = field(default_factory=list)
    policies: list[PolicyCost] = field(default_factory=list)

    def markdown(self) -> str:
        parts = []
        budgets = list(dict.fromkeys((row.dataset, row.model, row.budget, row.batch_size) for row in self.slots))
        for budget in budgets:
            rows = [row for row in self.slots if (row.dataset, row.model, row.budget, row.batch_size) == budget]
            parts.append(_slots_markdown(rows))
        if self.multipliers:
            parts.append(_multipliers_markdown(self.multipliers, self.setup))
            parts += [_if_sparse(row) for row in self.multipliers if row.if_sparse is not None]
        if self.policies:
            parts.append(_policies_markdown(self.policies, self.setup))
        return "\n\n".join(parts)

    def json(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "slots": [_slots_record(row) for row in self.slots],
            "multipliers": [_multiplier_record(row, self.setup) for row in self.multipliers],
            "policies": [_policy_record(row, self.setup) for row in self.policies],
        }

    def csv(self) -> str:
        """One line per row of any table; what a table does not have stays empty."""
        lines = [
            {"table": table} | flat(record) for table, records in self.json().items() for record in records
        ]  # fmt: skip
        columns = list(dict.fromkeys(name for line in lines for name in line))
        return csv_table(columns, ([line.get(name, "") for name in columns] for line in lines))


def _slots_markdown(rows: Sequence[SlotRow]) -> str:
    first = rows[0]
    known = PAPER_SETTINGS.get(first.dataset)
    printed = f", the paper's {known.source}" if known is not None and known.budget == first.budget else ""
    title = (
        f"Slots: {first.dataset}, {first.model}, {first.budget:,} bytes ({format_bytes(first.budget)}{printed}), "
        f"batch {first.batch_size}"
    )
    models = [f"{rows[0].under[rule].model:,} under rule {rule}" for rule in RULES if rule in rows[0].under]
    if models:
        title += f"; of these the model {', '.join(models)}"
    cells = [
        [
            row.method,
            _number(row.printed),
            _number(row.slots("paper")),
            _number(row.slots("real")),
            str(row.under["real"]) if "real" in row.under else _NOTHING,
            row.reason,
        ]
        for row in rows
    ]
    heads = ["method", "paper", "rule paper", "rule real", "beside the model, rule real", "why not the paper's"]
    return f"{title}\n\n{_table(heads, cells)}"


def _multipliers_markdown(rows: Sequence[Multiplier], setup: Setup) -> str:
    arriving = setup.arriving or max(1, setup.classes // 5)
    title = (
        f"Compute of an iteration over ER's: {setup.dataset}, {setup.model}, batch {setup.batch_size}, "
        f"{setup.iterations:g} iterations per sample, {arriving} of {setup.classes} classes arriving"
    )
    cells = [
        [
            row.method,
            row.published.paper or _NOTHING,
            row.published.charged or _NOTHING,
            row.published.executed or _NOTHING,
            f"{row.over_er['paper']:.3f}",
            f"{row.over_er['real']:.4f}",
            _NOTHING if row.executed_over_charged is None else f"{row.executed_over_charged:.4f}",
            row.averaged_over,
            row.published.remark,
        ]
        for row in rows
    ]
    heads = [
        *["method", "paper", "published code charges", "published code runs", "ours, rule paper", "ours, rule real"],
        *["executed / charged", "ours averaged over", "theirs"],
    ]
    if not setup.audit:
        del heads[6]
        for line in cells:
            del line[6]
    return f"{title}\n\n{_table(heads, cells)}"


def _if_sparse(row: Multiplier) -> str:
    return (
        f"Not charged: kernels that skip masked weights would execute {row.if_sparse:.3f} of the multiply-adds of "
        f"{row.method}'s layers. Dense kernels ran, and are charged."
    )


def _policies_markdown(rows: Sequence[PolicyCost], setup: Setup) -> str:
    title = (
        f"What a freezing policy itself keeps and runs: {setup.dataset}, {setup.model}, batch {setup.batch_size}, "
        "under vanilla"
    )
    cells = [
        [
            row.policy,
            f"{row.bytes['paper']:,}",
            f"{row.bytes['real']:,}",
            format_compute(round(row.per_iteration), "real") if row.per_iteration else "0",
            f"{100 * row.over_er:.3f} %",
            row.averaged_over if row.per_iteration else "",
            row.paper_run,
        ]
        for row in rows
    ]
    heads = [
        *["policy", "bytes, rule paper", "bytes, rule real", "an iteration", "of ER's iteration", "averaged over"],
        "the paper's whole run, savings taken off",
    ]
    return f"{title}\n\n{_table(heads, cells)}"


def _slots_record(row: SlotRow) -> dict[str, Any]:
    return {
        "dataset": row.dataset,
        "model": row.model,
        "budget": row.budget,
        "batch_size": row.batch_size,
        "name": row.method,
        "slots_printed": row.printed,
        "slots": {rule: row.slots(rule) for rule in RULES},
        "bytes": {
            rule: {"slot": found.per_slot, "model": found.model, **found.beside} for rule, found in row.under.items()
        },
        "reason": row.reason,
    }


def _multiplier_record(row: Multiplier, setup: Setup) -> dict[str, Any]:
    return {
        **_where(setup),
        "iterations": setup.iterations,
        "arriving": setup.arriving,
        "eval_every": setup.eval_every,
        "name": row.method,
        "paper": row.published.paper,
        "published_charged": row.published.charged,
        "published_executed": row.published.executed,
        "over_er": dict(row.over_er),
        "by_purpose": dict(row.by_purpose),
        "executed_over_charged": row.executed_over_charged,
        "averaged_over": row.averaged_over,
        "if_sparse_not_charged": row.if_sparse,
        "remark": row.published.remark,
    }


def _policy_record(row: PolicyCost, setup: Setup) -> dict[str, Any]:
    return {
        **_where(setup),
        "iterations": setup.iterations,
        "name": row.policy,
        "bytes": dict(row.bytes),
        "per_iteration_real": row.per_iteration,
        "over_er": {"real": row.over_er},
        "paper_run": row.paper_run,
        "averaged_over": row.averaged_over,
    }


def _where(setup: Setup) -> dict[str, Any]:
    return {"dataset": setup.dataset, "model": setup.model, "batch_size": setup.batch_size}


def _number(count: int | None) -> str:
    return _NOTHING if count is None else str(count)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
