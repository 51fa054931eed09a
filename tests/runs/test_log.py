"""Checkpoints that write what changed: damaged segments, kept checkpoints, folders of earlier versions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted.learner import segments, state
from budgeted.learner.learner import Learner
from budgeted.runs.folder import RunFolder
from budgeted.runs.run import resume, start
from tests.command_line import refused
from tests.runs.small import begun, config, same_end

SMALL: dict[str, Any] = {"model": "mlp", "limit": 20, "eval_every": 10, "checkpoint_every": 3, "slots": 10}


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("half") / "run", config(**SMALL), 14)


@pytest.fixture(scope="module")
def whole(half: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return resume(Path(shutil.copytree(half, tmp_path_factory.mktemp("whole") / "run")))


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def named(checkpoint: Path) -> list[str]:
    (held,) = state.read_numbers(checkpoint)[state.LOG].values()
    return [each.file for each in segments.from_json(held)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def exchange(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "cut": lambda path: os.truncate(path, 40),
    "a terabyte": lambda path: os.truncate(path, 2**40),
    "gone": Path.unlink,
    "a FIFO": exchange,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_segment_falls_back_where_the_checkpoint_before_does_not_need_it(
    kind: str, run: Path, whole: dict[str, Any]
) -> None:
    newest, before = RunFolder(run).checkpoints()
    (new,) = set(named(newest)) - set(named(before))
    DAMAGE[kind](run / segments.FOLDER / new)
    ended = resume(run)
    same_end(ended, whole)
    assert ended["executed_steps"] == 14 + 20 - 9
    assert {path.name for path in (run / segments.FOLDER).iterdir()} == {
        name for each in RunFolder(run).checkpoints() for name in named(each)
    }


def test_a_damaged_segment_that_both_need_is_said_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest, before = RunFolder(run).checkpoints()
    shared = next(name for name in named(newest) if name in named(before))
    flip(run / segments.FOLDER / shared)
    there = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert f"{shared} does not have the checksum" in refused(["run", "--resume", str(run)], capsys)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == there


def test_a_resumed_run_writes_the_same_segments(run: Path, tmp_path: Path) -> None:
    resume(run)
    start(config(**SMALL), tmp_path / "never killed")
    assert {path.name for path in (run / segments.FOLDER).iterdir()} == {
        path.name for path in (tmp_path / "never killed" / segments.FOLDER).iterdir()
    }


def test_checkpoints_that_are_kept_need_no_second_copy_of_what_they_share(tmp_path: Path) -> None:
    """Each is read again, as it was when it was written."""
    found: dict[str, dict[str, torch.Tensor]] = {}

    def learnt(progress: Any) -> None:
        learner: Learner = progress.learner
        if learner.arrived % SMALL["checkpoint_every"] == 0 or learner.arrived == SMALL["limit"]:
            found[f"{learner.arrived:09d}"] = state.tensors_of(learner)

    start(config(**{**SMALL, "keep_checkpoints": "all", "slots": 15}), tmp_path / "run", learnt)
    kept = RunFolder(tmp_path / "run").checkpoints()
    assert len(kept) == 7
    for checkpoint in kept:
        tensors, _ = state.read(checkpoint)
        assert {name for name in tensors if not name.startswith("log.")} == found[checkpoint.name].keys()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in found[checkpoint.name].items())
    written = sum(path.stat().st_size for path in (tmp_path / "run" / segments.FOLDER).iterdir())
    assert written < 3 * 15 * 64 + 7 * 200  # of seven times fifteen pictures of 64 bytes, and headers


def test_a_folder_of_an_earlier_version_goes_on(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints hold all of the memory."""
    with monkeypatch.context() as patched:
        real = state.write
        patched.setattr(state, "write", lambda learner, folder, more, logged: real(learner, folder, more))
        folder = begun(tmp_path / "run", config(**SMALL), 14)
    assert not (folder / segments.FOLDER).exists()
    assert all(state.read_numbers(each)["format"] == 3 for each in RunFolder(folder).checkpoints())
    same_end(resume(folder), whole)
    assert (folder / segments.FOLDER).is_dir()
