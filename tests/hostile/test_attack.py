"""A few cases of every attack that `benchmarks/hostile.py` makes at any size; and that it sees what it looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import commands, damages, forked, kills

ROOT = Path(__file__).resolve().parents[2]
CASES = {"kills": 8, "damages": 60, "settings": 300, "commands": 40, "resources": 3}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """In a process of its own: one that has trained cannot fork children that train."""
    log = tmp_path_factory.mktemp("attack") / "log.jsonl"
    command = [sys.executable, "benchmarks/hostile.py", "--attack", *CASES, "--log", str(log), "--cases"]
    command += [f"{name}={count}" for name, count in CASES.items()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.timeout(600)
def test_there_is_no_finding(attacked: tuple[str, list[dict[str, Any]]]) -> None:
    said, results = attacked
    assert "--only" not in said, said  # the command that repeats a finding
    assert Counter(result["attack"] for result in results) == CASES
    assert sum(result["kills"] for result in results) >= CASES["kills"]


@pytest.mark.timeout(600)
def test_the_attack_is_one(attacked: tuple[str, list[dict[str, Any]]]) -> None:
    """Some damage is seen, some does no harm; some command lines are carried out, most are not."""
    outcomes = {name: Counter(r["outcome"] for r in attacked[1] if r["attack"] == name) for name in CASES}
    assert outcomes["damages"]["refused"] > 10
    assert outcomes["damages"]["identical"] > 10
    assert outcomes["settings"]["refused"] > 100
    assert outcomes["commands"]["refused"] > 10
    assert outcomes["commands"]["done"] + outcomes["commands"]["begun"] > 3


def ended(answer: Any, **more: bool) -> forked.Ended:
    return forked.Ended(answer, more.get("killed", False), more.get("hung", False), 0)


def test_a_run_that_differs_is_seen() -> None:
    right = dict.fromkeys(kills.TIMELESS, 0) | {"executed_steps": 9, "iterations": 9}
    whole = kills.Whole(right, ("a",), 1, 1.0)

    def judged(answer: Any, left: tuple[str, ...] = ("a",)) -> str:
        return kills._judged("0", "", 1, ended(answer), whole, left).outcome

    assert judged(right) == "identical"
    assert judged({**right, "weights_sha256": 1}) == "DIFFERS"
    assert judged({**right, "executed_steps": 8}) == "MISCOUNTED"
    assert judged(right, ("a", ".a.part")) == "LEFT BEHIND"
    assert judged(forked.Crash("OSError", "", "")) == "LOST"


def test_damage_that_nobody_notices_is_seen() -> None:
    right = {"a_auc": 1, "steps": 9, "executed": 9}

    def judged(answer: Any, **more: bool) -> str:
        return damages._judged(ended(answer, **more), right)[0]

    assert judged(right) == "identical"
    assert judged({**right, "executed": None}) == "count unknown"
    assert judged({**right, "executed": 10**9}) == "SILENT"
    assert judged({**right, "a_auc": 2}) == "SILENT"
    assert judged("one line") == "refused"
    assert judged("two\nlines") == "NOT ONE LINE"
    assert judged(forked.Crash("KeyError", "", "trace")) == "TRACEBACK"
    assert judged(None, hung=True) == "HANG"
    assert judged(None, killed=True) == "DIED"


def test_a_command_that_breaks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(problem: BaseException) -> Any:
        def work() -> int:
            raise problem

        return work

    def waits() -> int:
        while True:
            pass

    assert commands._judged(lambda: 0)[0] == "done"
    assert commands._judged(lambda: 2)[0] == "NO MESSAGE"
    assert commands._judged(raises(KeyError("x")))[0] == "TRACEBACK"
    assert commands._judged(raises(commands.Begun()))[0] == "begun"
    monkeypatch.setattr(commands, "SECONDS", 0.05)
    assert commands._judged(waits)[0] == "HANG"
