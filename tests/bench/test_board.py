"""The record board: an entry counts if it is of the task, within the budget, and confirmed; the page of it is true."""

from __future__ import annotations

import json
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
    entry.parent.mkdir(parents=True)
    write_json(entry.parent / "track.json", TRACK)
    assert main(["verify", str(run), "--stretches", "0", "--enter", str(entry)]) == 0
    return tmp_path / "records"


def test_what_is_entered_names_no_folder_and_is_verified_again(board: Path, tmp_path: Path) -> None:
    (entry,) = (board / "tiny").glob("2026*")
    names = {"config.json", "environment.json", "records.jsonl", "summary.json", "verification.json"}
    assert {path.name for path in entry.iterdir()} == names
    assert not any(str(tmp_path) in path.read_text(encoding="utf-8") for path in entry.iterdir())
    told, sealed = read_json(entry / "verification.json"), read_json(entry / "summary.json")
    assert told["run"] == entry.name
    assert told["summary_sha256"] == sealed["summary_sha256"]
    assert main(["verify", str(entry)]) == 0  # by whoever takes it in, whole


def test_an_entry_that_cannot_be_is_refused_before_it_is_replayed(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("budgeted.cli.verify.verify", lambda *given, **more: pytest.fail("it was replayed"))
    run, track = tmp_path / "run", board / "tiny"
    (there,) = track.glob("2026*")
    assert main(["verify", str(run), "--enter", str(there)]) == 2
    assert "give the entry another name" in capsys.readouterr().err
    assert main(["verify", str(run), "--enter", str(tmp_path / "elsewhere" / "me")]) == 2
    assert "no track of a record board" in capsys.readouterr().err
    write_json(track / "track.json", TRACK | {"bytes": "10B"})
    assert main(["verify", str(run), "--enter", str(track / "2026-11-18-me")]) == 2
    assert "the track allows 10B" in capsys.readouterr().err


def test_a_forged_run_is_not_entered(board: Path, tmp_path: Path) -> None:
    run, track = tmp_path / "run", board / "tiny"
    write_summary(run / "summary.json", read_json(run / "summary.json") | {"a_auc": 0.99})
    assert main(["verify", str(run), "--enter", str(track / "2026-11-18-me")]) == 2
    assert not (track / "2026-11-18-me").exists()


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
