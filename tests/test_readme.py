"""What the README shows works: the loop before and after the added lines, and the printed table."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch

from budgeted.bench.table import find_runs
from budgeted.budget import Ledger
from budgeted.cli import main
from tests.markdown import ROOT, fences, run, table_rows

README = ROOT / "README.md"


def sides(diff: str) -> tuple[str, str, list[str]]:
    """The program before and after a diff, and its added lines."""
    lines = diff.splitlines()
    assert all(line[:2] in ("", "  ", "+ ", "- ") for line in lines)
    before = "\n".join(line[2:] for line in lines if not line.startswith("+"))
    after = "\n".join(line[2:] for line in lines if not line.startswith("-"))
    return before, after, [line for line in lines if line.startswith("+")]


def test_the_loop_runs_before_and_after_and_freezes() -> None:
    (diff,) = fences(README, "diff")
    before, after, added = sides(diff.text)
    assert len(added) == 3  # as the text says
    plain: dict[str, Any] = {"__name__": "before"}
    names: dict[str, Any] = {"__name__": "after"}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        run(before, str(README), diff.line, plain)
        torch.manual_seed(0)
        run(after, str(README), diff.line, names)
    ledger = names["freezing"].ledger
    assert isinstance(ledger, Ledger)
    assert ledger.steps == len(names["batches"]) == len(plain["batches"])
    assert ledger.compute is not None
    assert 0 < ledger.spent.real <= ledger.compute.amount
    full = sum(names["freezing"].price((batch,)).total.real for batch, _ in names["batches"])
    trained = ledger.spent_on["forward"].real + ledger.spent_on["backward"].real
    assert trained < 0.99 * full  # something was left out
    assert float(names["loss"].detach()) < 1.5  # and yet it learned: ln(10) is guessing

    for block in fences(README, "python"):
        printed = run(block.text, str(README), block.line, names)
        assert str(ledger.spent) in printed
        assert all(purpose in printed for purpose in ledger.spent_on)


def test_the_first_table_is_of_its_records() -> None:
    runs = find_runs([ROOT / "results" / "full-size", ROOT / "results" / "win-full-size"])
    kept = [run for run in runs if run.config["stream"] == "gaussian"]
    expected = []
    for method, retrieval in (("cram", None), ("vanilla", "class-balanced"), ("al-sar", None), ("vanilla", None)):
        alike = [run for run in kept if (run.config["method"], run.config["retrieval"]) == (method, retrieval)]
        alike.sort(key=lambda run: int(run.config["seed"]))
        cells = [", ".join(run.seed for run in alike)]
        for metric in ("a_auc", "a_last"):
            values = [100 * float(run.summary[metric]) for run in alike]
            deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.1f}{deviation}")
        expected.append([*cells, f"{round(statistics.mean(run.summary['slots'] for run in alike)):,}"])
    assert [row[1:] for row in table_rows(README, "What a budget buys")] == expected


def test_blocks_prints_what_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    (shown,) = fences(README, "console")
    command, *lines = shown.text.splitlines()
    program, *arguments = command.removeprefix("$ ").split()
    assert program == ".venv/bin/budgeted"
    assert main(arguments) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == lines
