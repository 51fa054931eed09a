"""Links, FIFOs, folders and files without end in the place of a run's own: refused, never waited for or written to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from budgeted.errors import BudgetedError
from budgeted.learner.files import open_own, read_bytes, replace_file
from budgeted.runs.run import resume
from tests.command_line import refused
from tests.runs.small import begun, config, same_end

SMALL: dict[str, Any] = {"model": "mlp", "limit": 20, "eval_every": 5, "checkpoint_every": 3, "slots": 10}
FILES = (
    "config.json", "environment.json", "records.jsonl", "executed_steps", "lock",
    "checkpoints/000000012/state.json", "checkpoints/000000012/tensors.safetensors",
)  # fmt: skip


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("half") / "run", config(**SMALL), 14)


@pytest.fixture(scope="module")
def whole(half: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return resume(Path(shutil.copytree(half, tmp_path_factory.mktemp("whole") / "run")))


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["fifo", "link", "endless"])
def test_something_else_in_the_place_of_a_file(
    kind: str, name: str, run: Path, tmp_path: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (run / name).unlink()
    if kind == "fifo":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(outside if kind == "link" else "/dev/zero")
    if name.startswith("checkpoints"):  # the one before it is taken
        same_end(resume(run), whole)
    else:
        assert Path(name).name in refused(["run", "--resume", str(run)], capsys)
    assert outside.read_text() == "precious"


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_terabyte_is_not_read(
    name: str, run: Path, whole: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    os.truncate(run / name, 2**40)
    if name in ("lock", "records.jsonl") or name.startswith("checkpoints"):
        same_end(resume(run), whole)  # what is behind the records that the checkpoint knows is cut off
    elif name == "executed_steps":
        assert resume(run)["executed_steps"] is None
    else:
        assert "bytes, at most" in refused(["run", "--resume", str(run)], capsys)


@pytest.mark.parametrize("name", ["environment.json", "executed_steps", "records.jsonl"])
def test_before_the_first_checkpoint_a_refusal_changes_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run without one begins anew, and what it had is cut off; but not where it cannot begin."""
    folder = begun(tmp_path / "run", config(**{**SMALL, "eval_every": 1, "checkpoint_every": 9}), 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != name}
    (folder / name).unlink()
    (folder / name).mkdir()
    assert f"{name} is a folder" in refused(["run", "--resume", str(folder)], capsys)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != name} == before


def test_the_counter_cut_under_a_run_does_it_no_harm(tmp_path: Path) -> None:
    """Mapped into memory, it would end the process."""
    folder = tmp_path / "run"

    def cut(progress: object) -> None:
        os.truncate(folder / "executed_steps", 0)

    from budgeted.runs.run import start

    ended = start(config(**SMALL), folder, cut)
    assert ended["executed_steps"] == ended["iterations"]


def test_a_lock_that_is_a_link_leaves_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "thesis")
    assert "lock is a link" in refused(["run", "--limit", "20", "--out", str(tmp_path / "run")], capsys)
    assert (tmp_path / "thesis").read_text() == "precious"


def test_what_a_kill_left_is_cleared_away(run: Path, half: Path, whole: dict[str, Any]) -> None:
    for name in (".config.json.part", ".summary.json.part", "checkpoints/.000000015.part"):
        (run / name).write_text("half")
    shutil.copytree(run / "checkpoints/000000009", run / "checkpoints/000000006")  # written, and none dropped yet
    same_end(resume(run), whole)
    assert [path.name for path in run.rglob("*") if path.name.startswith(".")] == []
    assert len(list((run / "checkpoints").iterdir())) == 2


def test_a_file_has_the_old_content_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    real = os.write

    def torn(handle: int, content: Any) -> int:
        real(handle, bytes(content)[:1])
        raise OSError("cut off")

    monkeypatch.setattr(os, "write", torn)
    with pytest.raises(OSError, match="cut off"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_records_that_are_gone_are_not_made_anew(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "records.jsonl").unlink()
    assert "fewer records" in refused(["run", "--resume", str(run)], capsys)
    assert not (run / "records.jsonl").exists()


def test_only_regular_files_of_the_right_length_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for attempt in (lambda: read_bytes(tmp_path / "fifo", 10), lambda: open_own(tmp_path / "fifo", os.O_RDWR)):
        with pytest.raises(BudgetedError, match="is a FIFO"):
            attempt()
    with pytest.raises(BudgetedError, match="is a folder"):
        read_bytes(tmp_path, 10)
    (tmp_path / "long").write_bytes(b"x" * 11)
    with pytest.raises(BudgetedError, match="11 bytes, at most 10"):
        read_bytes(tmp_path / "long", 10)
