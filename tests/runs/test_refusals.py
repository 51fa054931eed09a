"""What cannot be resumed says why, and stays as it was; a full disk loses nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from budgeted.cli import main
from budgeted.learner import segments, state
from budgeted.runs.environment import environment
from budgeted.runs.folder import RunFolder
from budgeted.runs.run import resume, start
from tests.command_line import refused
from tests.runs.small import SMALL, Stopped, begun, config, flags, other_dispatch, same_end, stop_after


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return start(config(**SMALL), tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("half") / "run", config(**SMALL), 25)


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").iterdir(), reverse=True)


def contents(folder: Path) -> dict[str, str]:
    """A digest of every file but the lock, which says nothing."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


OTHER = {
    "threads": 2, "torch": "1.0", "cpu_capability": "NEON", "numpy": "1.0", "machine": "vax", "device": "x",
    "arithmetic": "0123456789abcdef",
}  # fmt: skip


def elsewhere(monkeypatch: pytest.MonkeyPatch, **differing: object) -> None:
    """From here on the machine is another one."""
    here = environment(1, "cpu")
    monkeypatch.setattr("budgeted.runs.run.environment", lambda threads, device: {**here, **differing})


@pytest.mark.parametrize("key", OTHER)
def test_another_environment_is_refused_with_the_reason(
    key: str, run: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(run)
    with monkeypatch.context() as there:
        elsewhere(there, **{key: OTHER[key]})
        said = refused(["run", "--resume", str(run)], capsys)
    assert f"{key} {environment(1, 'cpu')[key]} there, {OTHER[key]} here" in said
    assert "--accept-other-arithmetic" in said
    assert contents(run) == before
    if key == "threads":  # back where it was begun it goes on
        same_end(resume(run), whole)


def test_accepted_it_goes_on_and_says_so_in_records_summary_and_table(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere(monkeypatch, arithmetic=OTHER["arithmetic"])
    with pytest.raises(Stopped):  # killed before and behind the first checkpoint there
        resume(run, stop_after(25), accept_other_arithmetic=True)
    refused(["run", "--resume", str(run)], capsys)  # nothing of the other machine is in the checkpoint yet
    with pytest.raises(Stopped):
        resume(run, stop_after(31), accept_other_arithmetic=True)
    capsys.readouterr()
    assert main(["run", "--resume", str(run)]) == 0  # what is in the checkpoint now is this machine's
    assert "not those of one machine" in capsys.readouterr().out
    summary = json.loads((run / "summary.json").read_text())
    assert [found["arithmetic"] for found in summary["environments"]] == [
        environment(1, "cpu")["arithmetic"],
        OTHER["arithmetic"],
    ]
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert {record["environment"] for record in records if record["samples"] <= 24} == {0}
    assert {record["environment"] for record in records if record["samples"] > 24} == {1}
    assert main(["table", str(run)]) == 0
    table = capsys.readouterr().out
    assert "| 1† |" in table
    assert "†: went on on another machine" in table


def test_a_run_of_one_machine_has_no_mark(whole: dict[str, Any]) -> None:
    assert [found["arithmetic"] for found in whole["environments"]] == [environment(1, "cpu")["arithmetic"]]


def test_before_the_first_checkpoint_it_begins_anew_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was kept, so all of its bits are of the machine that it ends on."""
    folder = begun(tmp_path / "run", config(**SMALL), 2)
    elsewhere(monkeypatch, arithmetic=OTHER["arithmetic"])
    summary = resume(folder)
    assert [found["arithmetic"] for found in summary["environments"]] == [OTHER["arithmetic"]]
    assert json.loads((folder / "environment.json").read_text())["arithmetic"] == OTHER["arithmetic"]


def test_a_run_from_before_arithmetic_was_recorded_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = {key: value for key, value in environment(1, "cpu").items() if key not in ("arithmetic", "processor")}
    (run / "environment.json").write_text(json.dumps(old))
    monkeypatch.setattr("budgeted.runs.run.sittings_of", lambda numbers, folder: [folder.environment()])
    assert "arithmetic not recorded there" in refused(["run", "--resume", str(run)], capsys)


def test_another_dispatch_is_another_arithmetic(run: Path) -> None:
    """For real: a process with other kernels refuses, and accepts when told to."""
    command = [sys.executable, "-m", "budgeted", "run", "--resume", str(run)]
    there = other_dispatch()
    first = subprocess.run(command, env=there, capture_output=True, text=True, check=False)
    assert first.returncode != 0
    assert len(first.stderr.strip().splitlines()) == 1
    assert "arithmetic" in first.stderr
    accepted = [*command, "--accept-other-arithmetic"]
    second = subprocess.run(accepted, env=there, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert len(json.loads((run / "summary.json").read_text())["environments"]) == 2


def test_accepting_without_going_on_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--resume" in refused(["run", "--accept-other-arithmetic"], capsys)


def test_other_threads_asked_for_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that would change the bits must not be passed over in silence."""
    before = contents(run)
    assert "--resume" in refused(["run", "--resume", str(run), "--threads", "2"], capsys)
    assert "--resume" in refused(["run", "--resume", str(run), "--set", "learner.learning_rate=1"], capsys)
    assert contents(run) == before


def test_what_does_not_decide_the_bits_may_differ(
    run: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch, python="3.99.0", budgeted="0.0.1", processor="a twin")
    same_end(resume(run), whole)


def test_the_environment_tells_what_decides_the_bits() -> None:
    found = environment(3, "cpu")
    assert found["threads"] == 3
    assert found["torch"] == torch.__version__
    assert found["cpu_capability"] == torch.backends.cpu.get_cpu_capability()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def another_number(path: Path) -> None:
    """Still good JSON, but not what was written: a lost update, a bad block that falls on a digit."""
    numbers = json.loads((path / state.NUMBERS).read_text())
    numbers["pace"]["due"][0] += 1
    (path / state.NUMBERS).write_text(json.dumps(numbers))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda checkpoint: flip(checkpoint / state.TENSORS),
    "a cut file": lambda checkpoint: os.truncate(checkpoint / state.TENSORS, 1000),
    "an empty file": lambda checkpoint: os.truncate(checkpoint / state.NUMBERS, 0),
    "half of the numbers": lambda checkpoint: os.truncate(checkpoint / state.NUMBERS, 500),
    "another number": another_number,
    "no tensors": lambda checkpoint: (checkpoint / state.TENSORS).unlink(),
    "no numbers": lambda checkpoint: (checkpoint / state.NUMBERS).unlink(),
    "not a table": lambda checkpoint: (checkpoint / state.NUMBERS).write_text("[]"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(kind: str, run: Path, whole: dict[str, Any]) -> None:
    newest, before = checkpoints(run)
    assert (newest.name, before.name) == ("000000024", "000000021")
    DAMAGE[kind](newest)
    ended = resume(run)
    same_end(ended, whole)
    assert ended["executed_steps"] == 25 + 40 - 21


def test_both_checkpoints_damaged_is_said_and_nothing_is_lost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for checkpoint in checkpoints(run):
        flip(checkpoint / state.TENSORS)
    before = contents(run)
    assert "000000024/tensors.safetensors does not have the checksum" in refused(["run", "--resume", str(run)], capsys)
    assert contents(run) == before


def test_what_a_killed_writer_left_is_cleared(run: Path, whole: dict[str, Any]) -> None:
    scratch = run / "checkpoints" / ".000000027.999.part"
    scratch.mkdir()
    (scratch / state.TENSORS).write_bytes(b"half")
    same_end(resume(run), whole)
    assert not scratch.exists()


def test_before_the_first_checkpoint_it_starts_anew(tmp_path: Path, whole: dict[str, Any]) -> None:
    folder = begun(tmp_path / "run", config(**{**SMALL, "checkpoint_every": 39}), 12)
    assert not (folder / "checkpoints").exists()
    ended = resume(folder)
    same_end(ended, whole)
    assert ended["executed_steps"] == 12 + 40


FOREIGN = {
    "another method": (config("er", **SMALL), "method er then, vanilla now"),
    "another seed": (config(**SMALL, seed=2), "seed 2 then, 1 now"),
    "another model": (config(**{**SMALL, "model": "cnn8"}), "model cnn8 then, mlp now"),
    "other iterations": (config(**SMALL, iterations=0.5), "iterations 0.5 then, None now"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_checkpoint_is_refused(
    kind: str, run: Path, tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen, reason = FOREIGN[kind]
    foreign = checkpoints(begun(tmp_path / "foreign", chosen, 28))[0]
    put = Path(shutil.copytree(foreign, run / "checkpoints" / "000000030"))
    shutil.copytree(segments.beside(foreign), segments.beside(put), dirs_exist_ok=True)
    before = contents(run)
    assert reason in refused(["run", "--resume", str(run)], capsys)
    assert contents(run) == before
    shutil.rmtree(put)
    same_end(resume(run), whole)


def test_files_of_others_are_no_checkpoint(run: Path, whole: dict[str, Any]) -> None:
    other = run / "checkpoints" / "000000099"
    other.mkdir()
    (other / state.NUMBERS).write_text(json.dumps({"format": 1, "weights": [1, 2]}))
    (run / "checkpoints" / "notes").mkdir()
    same_end(resume(run), whole)


@pytest.mark.parametrize("torn", [b'{"samples": 30, "ste', b'{"samples": 30}\n{"samp', b"\xff\xfe"])
def test_a_torn_record_is_cut_off(torn: bytes, run: Path, whole: dict[str, Any]) -> None:
    with open(run / "records.jsonl", "ab") as file:
        file.write(torn)
    same_end(resume(run), whole)
    lines = (run / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [8, 10, 16, 20, 24, 30, 32, 40]


def test_lost_records_are_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[:2]))
    before = contents(run)
    assert "fewer records than the checkpoint knows of" in refused(["run", "--resume", str(run)], capsys)
    assert contents(run) == before


def test_a_second_writer_is_refused(run: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    with RunFolder(run).locked():
        assert "another process is writing" in refused(["run", "--resume", str(run)], capsys)
        assert "another process is writing" in refused(["run", *flags("vanilla"), "--out", str(run)], capsys)
    assert contents(run) == before
    with open(run / "lock") as file:  # a lock file alone holds nobody up: the holder may be dead
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(file, fcntl.LOCK_UN)
    same_end(resume(run), whole)


def test_a_new_run_takes_no_folder_that_holds_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(run)
    said = refused(["run", *flags("vanilla"), "--out", str(run)], capsys)
    assert f"already holds a run: go on with it by `budgeted run --resume {run}`" in said
    assert contents(run) == before


def test_a_finished_run_resumes_to_its_summary(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = resume(run)
    before = contents(run)
    (run / "environment.json").write_text("{}")  # nothing is executed any more, so nothing can differ
    assert resume(run) == summary
    assert main(["run", "--resume", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary
    assert {**contents(run), "environment.json": before["environment.json"]} == before


def test_a_folder_of_something_else_is_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert "is no run folder" in refused(["run", "--resume", str(tmp_path)], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert "is no folder" in refused(["run", "--resume", str(tmp_path / "nowhere")], capsys)


@pytest.mark.parametrize("name", ["config.json", "environment.json"])
@pytest.mark.parametrize("content", ["", "{", "[1]", None])
def test_damaged_or_missing_descriptions_are_said(
    name: str, content: str | None, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    assert name in refused(["run", "--resume", str(run)], capsys)


def test_a_loss_that_is_no_number_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    settings = ["--set", "learner.learning_rate=1e30", "--out", str(folder)]
    arguments = ["run", *flags("vanilla", **{**SMALL, "checkpoint_every": 1}), *settings]
    assert "the loss is nan" in refused(arguments, capsys)
    assert checkpoints(folder) != []
    before = contents(folder)
    assert "the loss is nan" in refused(["run", "--resume", str(folder)], capsys)
    assert contents(folder).items() >= {name: it for name, it in before.items() if "checkpoints" in name}.items()


# -- a full disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few checkpoints, but fewer than are on disk while one is written."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_said_and_the_run_goes_on_after(
    small_disk: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_disk / "run"
    said = refused(["run", *flags("vanilla", **SMALL), "--out", str(folder)], capsys)
    assert f"is full: free some room, then `budgeted run --resume {folder}`" in said
    assert f"the disk of {folder}" in said
    assert not (folder / "summary.json").exists()
    assert len(checkpoints(folder)) >= 1
    assert "is full" in refused(["run", "--resume", str(folder)], capsys)  # still no room, still nothing lost
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    same_end(resume(folder), whole)


_LIMITED = """
import resource, sys
from budgeted.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
sys.exit(main(sys.argv[1:]))
"""


def test_a_limit_on_file_size_is_said(tmp_path: Path, whole: dict[str, Any]) -> None:
    """What anyone can set without being root: a checkpoint grows beyond what the user may write."""
    folder = tmp_path / "run"
    arguments = ["run", *flags("vanilla", **SMALL)]
    ended = subprocess.run(
        [sys.executable, "-c", _LIMITED, *arguments, "--out", str(folder)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("budgeted: error: ")
    assert ended.stderr.count("\n") == 1
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000
    same_end(resume(folder), whole)
