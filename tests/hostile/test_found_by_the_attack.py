"""Command lines that the attack has found: each was a traceback, and is one line now that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Capture, refused

SMALL = ["--dataset", "digits", "--model", "mlp"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["blocks", "mlp", "--batch=9999999999999999999"], "--batch must be"),
        (["blocks", "mlp", "--batch=999999999"], "--batch must be"),
        (["blocks", "cnn8", "--classes", "18446744073709551616"], "classes"),
        (["blocks", "cnn8", "--input", f"3x{'9' * 30}x1"], "channels x height x width"),
        (["plan", *SMALL, "--limit", "30", "--slots", "999999999999999999"], "more than any machine holds"),
        (["plan", *SMALL, "--no-measure", "--limit", "9999999999999999999"], "below 2^63"),
        (["plan", *SMALL, "--no-measure", "--limit", "9999999999999"], "lower --limit"),
        (["costs", "slots", *SMALL, "--memory", "100kB", "--batch-size", "9" * 19], "--batch-size must be"),
        (["run", *SMALL, "--memory", "9999999TB"], "more than any machine holds"),
        (["run", *SMALL, "--threads", "1_000"], "--threads"),
        (["run", "--dataset", "os:strerror"], "gave no data set"),
        (["run", *SMALL, "--problem", "os:getpid"], "is no problem"),
        (["run", *SMALL, "--method", "er", "--retrieval", "os:getpid"], "is no retrieval"),
        (["run", *SMALL, "--codec", "os:getpid"], "is no codec"),
        (["run", *SMALL, "--method", "er", "--freezing", "os:getpid"], "is no freezing policy"),
        (["run", *SMALL, "--method", "os:getpid"], "is no method"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_it_is_refused_in_one_line(
    line: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in refused(line, capsys)
    assert not any((tmp_path / "runs").glob("*"))
