"""Evaluations in a process of their own give what evaluations in place give, and nobody outlives the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from budgeted import streams
from budgeted.errors import BudgetedError
from budgeted.learner.evaluate import evaluate
from budgeted.runs.beside import Beside
from budgeted.runs.config import RunConfig
from budgeted.runs.run import Progress, resume, start
from budgeted.runs.trained import trained

QUICK = RunConfig(method="er", model="mlp", limit=60, eval_every=10, eval_samples=100, slots=20, checkpoint_every=25)


def told(folder: Path) -> list[dict[str, Any]]:
    """The records without their seconds."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("method", ["bic", "al-sar"])
@pytest.mark.parametrize("stream", ["disjoint"])
def test_beside_and_in_place_are_the_same_run(method: str, stream: str, tmp_path: Path) -> None:
    """BiC answers with a correction that it fits before every evaluation; knowledge is compared at every task's end."""
    config = replace(QUICK, method=method, stream=stream)
    ours = start(replace(config, eval_beside=True), tmp_path / "beside")
    theirs = start(config, tmp_path / "place")
    assert told(tmp_path / "beside") == told(tmp_path / "place")
    timed = {"seconds", "config", "peak_memory", "environments", "records_sha256", "summary_sha256"}
    for key in theirs.keys() - timed:
        if not key.endswith("_seconds"):
            assert ours[key] == theirs[key], key
    assert ours["eval_compute"]["real"] > 0


def test_killed_and_resumed_it_is_the_run_that_was_never_killed(tmp_path: Path) -> None:
    config = replace(QUICK, eval_beside=True)
    start(config, tmp_path / "whole")

    def stop(progress: Progress) -> None:
        if progress.samples == 42:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(config, tmp_path / "cut", stop)
    resume(tmp_path / "cut")
    assert told(tmp_path / "cut") == told(tmp_path / "whole")


def test_a_killed_run_leaves_no_process(tmp_path: Path) -> None:
    flags = ["--method", "er", "--model", "mlp", "--limit", "1400", "--eval-every", "10", "--eval-beside"]
    run = subprocess.Popen([sys.executable, "-m", "budgeted", "run", *flags, "--out", str(tmp_path / "run")])
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    found: list[int] = []
    for _ in range(600):
        found = [int(pid) for pid in children.read_text().split()]
        if found and (tmp_path / "run" / "records.jsonl").exists():
            break
        time.sleep(0.1)
    assert found
    run.send_signal(signal.SIGKILL)
    run.wait()
    for _ in range(300):
        if not any(alive(pid) for pid in found):
            return
        time.sleep(0.1)
    raise AssertionError("the process that evaluates is still there")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_process_that_dies_is_one_line(tmp_path: Path) -> None:
    beside = Beside(QUICK, 60)
    os.kill(beside._process.pid, signal.SIGKILL)
    start(QUICK, tmp_path / "run")
    beside.ask(trained(tmp_path / "run").learner, everything=False)
    with pytest.raises(BudgetedError, match="has died") as refusal:
        beside.take()
    assert "\n" not in str(refusal.value)
    beside.close()


def test_images_of_classes_not_seen_are_left_out_without_a_difference(tmp_path: Path) -> None:
    start(replace(QUICK, stream="disjoint", limit=30), tmp_path / "run")
    learner = trained(tmp_path / "run").learner
    learner.problem.keys.pop()  # as if one class were still to come
    digits = streams.load("digits")
    images, labels = digits.test_images, digits.test_labels
    given = (learner, np.asarray(images), labels, 10)
    whole, predicted = evaluate(*given)
    seen, nothing = evaluate(*given, everything=False)
    assert whole == seen
    assert predicted is not None
    assert len(predicted) == len(labels)
    assert nothing is None


def test_bfloat16_answers_nearly_alike(tmp_path: Path) -> None:
    exact = start(replace(QUICK, limit=200, model="cnn8", eval_samples=None), tmp_path / "exact")
    rough = start(replace(QUICK, limit=200, model="cnn8", eval_samples=None, eval_precision="bfloat16"), tmp_path / "b")
    assert exact["weights_sha256"] == rough["weights_sha256"]
    assert 0 < abs(exact["a_auc"] - rough["a_auc"]) < 0.01 or exact["a_auc"] == rough["a_auc"]
