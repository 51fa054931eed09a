"""The record board: an entry counts if it is of the task, within the budget, and confirmed; the page of it is true."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from budgeted.bench.board import board_table, read_board
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.learner.files import read_json, write_json
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import write_summary
from budgeted.runs.run import start
from tests.markdown import ROOT

RECORDS = ROOT / "records"
TRACK: dict[str, Any] = {
    "name": "tiny", "config": {"dataset": "digits", "limit": 12}, "compute": {"rule": "paper", "amount": 10**9},
    "bytes": "1MB",
}  # fmt: skip


@pytest.fixture
def board(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    start(RunConfig(method="er", model="mlp", limit=12, slots=10, batch_size=4, eval_every=6), run)
    entry = tmp_path / "records" / "tiny" / "2026-11-17-er"
    entry.mkdir(parents=True)
    write_json(entry.parent / "track.json", TRACK)
    assert main(["verify", str(run), "--stretches", "0", "--out", str(entry / "verification.json")]) == 0
    for name in ("config.json", "environment.json", "records.jsonl", "summary.json"):
        shutil.copy(run / name, entry / name)
    return tmp_path / "records"


def test_an_entry_counts_or_is_refused_by_name(board: Path) -> None:
    track, (entry,) = board / "tiny" / "track.json", (board / "tiny").glob("2026*")
    (found,) = read_board(board)
    assert found.a_auc == read_json(entry / "summary.json")["a_auc"]
    assert found.verified == "bit for bit, 12 of 12 samples"
    assert found.date == "2026-11-17"
    for change, reason in (
        ({"config": {"dataset": "cifar10"}}, "dataset is digits"),
        ({"compute": {"rule": "real", "amount": 10}}, "the track allows 10"),
        ({"bytes": "10B"}, "the track allows 10B"),
    ):
        write_json(track, TRACK | change)
        with pytest.raises(BudgetedError, match=reason):
            read_board(board)
    write_json(track, TRACK)
    write_summary(entry / "summary.json", read_json(entry / "summary.json") | {"weights_sha256": "0" * 64})
    with pytest.raises(BudgetedError, match="not confirmed"):
        read_board(board)


def test_the_board_in_the_repository_is_in_order_and_its_page_shows_it() -> None:
    entries = read_board(RECORDS)
    assert entries
    assert board_table(entries) in (RECORDS / "README.md").read_text(encoding="utf-8")
    for entry in entries:
        told = json.loads((ROOT / entry.path / "verification.json").read_text(encoding="utf-8"))
        assert "/" not in told["run"]  # no path of a machine
