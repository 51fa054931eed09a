"""Curves over budgets join what differs in nothing but its budget, by what was used and by what was allowed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from budgeted.bench.budget_curves import (
    allowed_bytes,
    allowed_compute,
    curves,
    draw_bytes_curves,
    draw_compute_curves,
    draw_forgetting_curves,
    draw_spent,
    executed_compute,
)
from budgeted.bench.query import look
from budgeted.bench.table import Group, RunResult, group_runs
from tests.markdown import ROOT

RESULTS = ROOT / "results"


def at_budgets(runs: tuple[RunResult, ...], key: str, budgets: tuple[str, ...]) -> list[Group]:
    """Runs that there are, as if each had been made with several budgets: the more, the better."""
    found = []
    for place, budget in enumerate(budgets):
        for run in runs:
            summary = run.summary
            spent = {rule: amount * (place + 1) for rule, amount in summary["spent"].items()}
            changed = {"a_auc": summary["a_auc"] * (1 + place / 10), "spent": spent, "bytes": 10**6 * (place + 1)}
            config = {**summary["config"], "compute": "1TFLOP", "iterations": None, key: budget}
            found.append(replace(run, summary={**summary, **changed, "config": config}))
    return group_runs(found)


def runs_of(*methods: str) -> tuple[RunResult, ...]:
    return tuple(run for run in look([RESULTS / "methods"]).runs if run.config["method"] in methods)


def test_a_method_is_one_line_over_its_budgets() -> None:
    groups = at_budgets(runs_of("er", "al-sar", "vanilla"), "compute", ("2TFLOP", "1TFLOP", "500GFLOP"))
    lines = {line.label: line.groups for line in curves(groups, allowed_compute)}
    assert set(lines) == {"er", "al-sar", "vanilla"}
    assert [allowed_compute(group) for group in lines["er"]] == [5e11, 1e12, 2e12]
    assert [len(group.runs) for group in lines["al-sar"]] == [2, 2, 2]
    first = lines["er"][0]
    assert executed_compute(first) == pytest.approx(sum(first.spent("real")) / 2)
    assert curves(group_runs(runs_of("er", "vanilla")), allowed_compute) == []
    stored = at_budgets(runs_of("er"), "memory", ("2MB", "1MB"))
    (line,) = curves(stored, allowed_bytes)
    assert [allowed_bytes(group) for group in line.groups] == [1e6, 2e6]


def test_figures_are_drawn_where_there_are_curves(tmp_path: Path) -> None:
    over_compute = at_budgets(runs_of("er", "al-sar", "vanilla"), "compute", ("1TFLOP", "2TFLOP", "4TFLOP"))
    assert draw_compute_curves(over_compute, tmp_path / "compute.svg")
    assert draw_forgetting_curves(over_compute, tmp_path / "forgetting.svg")
    assert not draw_bytes_curves(over_compute, tmp_path / "none.svg")
    assert draw_bytes_curves(at_budgets(runs_of("er"), "memory", ("1MB", "2MB")), tmp_path / "bytes.svg")
    components = group_runs(look([RESULTS / "components"]).runs)
    assert draw_spent([group for group in components if group.label in ("sar", "al-sar")], tmp_path / "spent.svg")
    assert not draw_spent([group for group in components if "al" not in group.label.split()[0]], tmp_path / "no.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"compute.svg", "forgetting.svg", "bytes.svg", "spent.svg"}
    assert "al-sar" in (tmp_path / "compute.svg").read_text()
