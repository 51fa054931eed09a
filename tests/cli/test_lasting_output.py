"""What a command prints can be cut off, full or ASCII; what is wrong with it is one line."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from budgeted.cli import main
from budgeted.cli.output import Forgiving
from budgeted.cli.run import _Shown
from budgeted.runs import run as run_module
from tests.cli.small import MEMORY, QUICK
from tests.command_line import refused

ODD_LINES = {
    "a word for a number": (["run", "--slots", "x"], "--slots"),
    "an unknown flag": (["run", "--metod", "er"], "did you mean --method?"),
    "an unknown command": (["ruin"], "unknown command 'ruin': did you mean 'run'?"),
    "no command": ([], "give a command first"),
    "a flag without its value": (["run", "--iterations"], "--iterations"),
    "a missing word": (["list"], "methods, datasets"),
    "none of the choices": (["plan", "--rule", "x"], "paper"),
    "a line break": (["run", "--method", "a\nb"], "unknown method"),
    "a number of 5000 digits": (["run", "--slots", "9" * 4000], "below 2^63"),
    "endless": (["run", "--iterations", "inf"], "--iterations must be 0 to 1,000,000,000"),
    "no number": (["run", "--iterations", "nan"], "--iterations must be 0 to 1,000,000,000"),
    "a billion threads": (["run", "--threads", "1000000000"], "at most 1024"),
    "an absurd batch": (["plan", "--batch-size", "9" * 18], "--batch-size must be at most"),
    "another device": (["run", "--device", "banana"], "device 'banana' is not there"),
    "a card that is not there": (["run", "--device", "cuda:99"], "device 'cuda:99' is not there"),
}


@pytest.mark.parametrize("kind", ODD_LINES)
def test_an_odd_command_line_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words, said = ODD_LINES[kind]
    assert said in refused(words, capsys)


def test_where_a_file_cannot_be_written_the_line_names_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = runs / ("x" * 300)
    assert f"cannot read or write {long}" in refused(["table", str(runs), "--csv", str(long)], capsys)
    assert f"cannot write {runs}: it is a folder" in refused(["table", str(runs), "--csv", str(runs)], capsys)
    assert "is no run folder" in refused(["run", "--resume", "/dev"], capsys)


def test_a_run_of_a_card_goes_on_only_where_one_is(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import shutil

    from budgeted.runs.folder import write_config

    folder = Path(shutil.copytree(runs / "er-1", runs / "on-a-card"))
    try:
        (folder / "summary.json").unlink()
        config = json.loads((folder / "config.json").read_text())
        write_config(folder / "config.json", {**config, "device": "cuda"})
        assert "was begun on cuda, which is not here" in refused(["run", "--resume", str(folder)], capsys)
    finally:
        shutil.rmtree(folder)


def test_data_that_may_not_be_read_are_blamed_and_not_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/data/digits")

    monkeypatch.setattr("budgeted.runs.config.load", denied)
    said = refused(["run", "--out", str(tmp_path / "run")], capsys)
    assert "cannot read the data of digits: /data/digits: Permission denied" in said
    assert str(tmp_path) not in said


def test_a_finished_run_shows_its_summary_without_writing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "er-1" / "lock").unlink()
    assert main(["run", "--resume", str(runs / "er-1")]) == 0
    assert "A_AUC" in capsys.readouterr().out
    assert not (runs / "er-1" / "lock").exists()


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_progress_that_nobody_reads_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    monkeypatch.setattr("budgeted.cli.run._LINE_EVERY", 0.0)
    assert main(["run", "--method", "er", *QUICK, *MEMORY, "--out", str(tmp_path / "run")]) == 0
    assert "A_AUC" in capsys.readouterr().out
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_bar_on_a_terminal_that_is_gone_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    shown = _Shown(quiet=False)
    monkeypatch.setattr(type(shown.console), "is_terminal", True)
    learner: Any = type("Learner", (), {"mean_frozen_share": 0.0, "nbytes": lambda self: 1})()
    learner.budget = type("Budget", (), {"compute": None, "bytes": None})()
    learner.ledger = type("Ledger", (), {"left": None, "spent": type("Cost", (), {"real": 1})()})()
    shown.report(run_module.Progress(1, 2, 0.5, 0.5, learner, 1.0))
    shown.close()
    assert Forgiving().write("x") == 1


@pytest.mark.parametrize("words", [["table"], ["list", "methods"], ["blocks", "mlp", "--input", "1x8x8"]])
def test_ascii_is_enough(
    words: list[str], runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main([*words, str(runs)] if words == ["table"] else words) == 0
    sys.stdout.flush()
    assert raw.getvalue().isascii()
    if words == ["table"]:
        assert b"+-" in raw.getvalue()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
def test_an_output_that_is_full_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["list", "streams"]) == 2
    assert capsys.readouterr().err == "budgeted: error: cannot print: No space left on device\n"


def test_a_plan_is_made_for_memory_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--dataset", "digits", "--model", "mlp", "--memory", "900TB", "--no-measure", "--json"]
    assert main(words) == 0
    assert '"slots": 1' in capsys.readouterr().out


def test_a_run_that_does_not_fit_into_memory_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", *QUICK, "--slots", str(10**15), "--out", str(tmp_path / "run")]
    assert "does not fit into the machine's memory" in refused(words, capsys)
