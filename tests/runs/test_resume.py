"""Exact resume: killed at any moment, a run ends as if never killed; whatever its settings."""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from budgeted.cli import main
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from budgeted.runs.counter import executed_steps
from budgeted.runs.run import resume, start
from tests.runs.small import SMALL, Stopped, begun, config, flags, same_end, stop_after

COMMAND = [sys.executable, "-c", "import sys; from budgeted.cli import main; sys.exit(main(sys.argv[1:]))"]


# -- kill -9 ------------------------------------------------------------------------------------------------------


@cache
def unkilled(method: str) -> dict[str, Any]:
    folder = Path(mkdtemp())
    try:
        return start(config(method), folder / "run")
    finally:
        shutil.rmtree(folder)


def executed(folder: Path) -> int:
    return executed_steps(folder / "executed_steps")


def half_written(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".*.part"))


def kill(process: subprocess.Popen[bytes], moment: Callable[[], bool], folder: Path) -> None:
    """Let the process run until the moment; stopped first, so that a moment inside a write is really inside."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        if moment():
            process.send_signal(signal.SIGSTOP)
            if moment():
                break
            process.send_signal(signal.SIGCONT)
    assert process.poll() is None, f"it ended before it could be killed: {process.communicate()}"
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (folder / "summary.json").exists()


@pytest.mark.parametrize(
    ("method", "kills"),
    [("vanilla", ("step",)), ("er", ("step", "checkpoint")), ("al-sar", ("checkpoint", "step"))],
)
def test_a_killed_run_ends_as_if_never_killed(method: str, kills: tuple[str, ...], tmp_path: Path) -> None:
    rng = random.Random(f"{method} {kills}")
    folder = tmp_path / "run"
    begin = [*COMMAND, "run", *flags(method), "--out", str(folder)]
    go_on = [*COMMAND, "run", "--resume", str(folder)]
    for number, kind in enumerate(kills):
        target = rng.randrange(15, 50) + 55 * number
        process = subprocess.Popen(go_on if number else begin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

        def moment(target: int = target, kind: str = kind) -> bool:
            if executed(folder) < target:
                time.sleep(0.002)
                return False
            if kind == "checkpoint":
                time.sleep(0.0003)
                return half_written(folder)
            time.sleep(rng.random() / 50)
            return True

        kill(process, moment, folder)
        assert half_written(folder) or kind == "step"
    summary = resume(folder)
    same_end(summary, unkilled(method))
    assert summary == json.loads((folder / "summary.json").read_text())
    assert summary["sittings"] == len(kills) + 1
    assert summary["iterations"] <= summary["executed_steps"] <= 1.2 * unkilled(method)["executed_steps"]
    assert not half_written(folder)


# -- every setting resumes exactly --------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["disjoint", "gaussian"])
@pytest.mark.parametrize("method", [*METHODS, "lider-mir"])
def test_every_method_resumes_exactly_on_streams_with_and_without_tasks(
    method: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped behind a boundary, between checkpoints, and taken up by the command."""
    small = {"model": "mlp", "limit": 50, "slots": 12, "eval_every": 10, "eval_samples": 20, "checkpoint_every": 7}
    chosen = config(method, stream=stream, **small)
    whole = start(chosen, tmp_path / "whole")
    stopped = begun(tmp_path / "stopped", chosen, 33)
    capsys.readouterr()
    assert main(["run", "--resume", str(stopped), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["sittings"] == 2
    assert resumed["iterations"] > 0
    same_end(whole, resumed)


SETTINGS: dict[str, RunConfig] = {
    "vanilla": config(**SMALL),
    "er": config("er", **{**SMALL, "batch_size": 16}),
    "al": config("al", **{**SMALL, "model": "cnn8"}, settings={"freezing.ema": "1.0", "learner.learning_rate": "0.01"}),
    "sar by class gradients": config("sar", **SMALL, settings={"retrieval.similarity": "class_gradient"}),
    "al-sar, everything stored": config("al-sar", **{**SMALL, "slots": None, "unlimited": True}),
    "random freezing": config(**SMALL, freezing="random"),
    "linear freezing, sgd with momentum": config(
        **SMALL, freezing="linear", settings={"learner.optimizer": "sgd", "learner.momentum": "0.9"}
    ),
    "a schedule": config(**SMALL, settings={"learner.schedule": "cosine"}),
    "muon on smaller images, averaged": config(
        **{**SMALL, "model": "cnn8"},
        settings={
            "learner.optimizer": "muon",
            "learner.warm_up": "7",
            "learner.train_size": "6",
            "learner.train_size_until": "0.5",
            "learner.average": "bfloat16",
            "learner.norms": "memory",
        },
    ),
    "float16": config("al-sar", **SMALL, settings={"learner.autocast": "float16"}),
    "a tenth of an iteration": config(**SMALL, iterations=0.1),
    "savings spent": config(**SMALL, freezing="constant", spend_savings=True),
    "bytes": config("al-sar", **{**SMALL, "slots": None}, memory="82kB"),
    "compute that runs out": config(**SMALL, compute="4MFLOP"),
}


@pytest.fixture
def overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compute budget is planned to last; here it is not."""
    monkeypatch.setattr("budgeted.runs.plan.iterations_within", lambda *given: 1.0)


@pytest.mark.usefixtures("overrun")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_resumes_exactly(name: str, tmp_path: Path) -> None:
    whole = start(SETTINGS[name], tmp_path / "whole")
    folder = begun(tmp_path / "parts", SETTINGS[name], 20)
    with pytest.raises(Stopped):
        resume(folder, stop_after(35))
    parts = resume(folder)
    assert whole["budget_spent"] or name != "compute that runs out"
    same_end(parts, whole)
    assert parts["sittings"] == 3
    assert whole["executed_steps"] == whole["iterations"] <= parts["executed_steps"]


@pytest.mark.usefixtures("overrun")
def test_when_compute_is_spent_a_run_goes_on_or_stops(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="budgeted"):  # whatever level another test has left behind
        goes_on = start(config(**SMALL, compute="4MFLOP"), tmp_path / "goes on")
    assert goes_on["budget_spent"]
    assert goes_on["samples"] == 40
    assert len([record for record in caplog.records if "is spent after" in record.message]) == 1
    chosen = config(**{**SMALL, "checkpoint_every": 1}, compute="4MFLOP", settings={"learner.on_spent": "stop"})
    stopped = start(chosen, tmp_path / "stops")
    assert stopped["budget_spent"]
    assert stopped["samples"] < 40
    assert stopped["iterations"] == goes_on["iterations"] > 5
    (tmp_path / "stops" / "summary.json").unlink()  # killed between the last checkpoint and the summary
    same_end(resume(tmp_path / "stops"), stopped)
