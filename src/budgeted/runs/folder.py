"""The run folder: configuration, environment, records, checkpoints, summary, and a lock that dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.learner import Learner

CONFIG, ENVIRONMENT, RECORDS, SUMMARY = "config.json", "environment.json", "records.jsonl", "summary.json"
CHECKPOINTS, LOCK, EXECUTED = "checkpoints", "lock", "executed_steps"
_KEPT = 2  # checkpoints: the newest, and one before it in case the newest is damaged


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process writes; the lock is the kernel's, so a killed one leaves none behind."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / LOCK, "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise BudgetedError(
                    f"another process is writing {self.path}: wait for it, or choose another folder"
                ) from error
            yield

    # -- what is written once ----------------------------------------------------------------------------------

    def begin(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        if (self.path / CONFIG).exists():
            raise BudgetedError(
                f"{self.path} already holds a run: go on with it by `budgeted run --resume {self.path}`, "
                "or choose another folder"
            )
        self.write_environment(environment)
        write_json(self.path / CONFIG, config)

    def config(self) -> dict[str, Any]:
        return read_json(self.path / CONFIG)

    def environment(self) -> dict[str, Any]:
        return read_json(self.path / ENVIRONMENT)

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, environment)

    def summary(self) -> dict[str, Any] | None:
        return read_json(self.path / SUMMARY) if (self.path / SUMMARY).exists() else None

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)

    # -- records -----------------------------------------------------------------------------------------------

    def append(self, record: Mapping[str, Any]) -> None:
        """One line; it is in the file, whole, before the next checkpoint says so."""
        with open(self.path / RECORDS, "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[dict[str, Any]]:
        path = self.path / RECORDS
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def keep_records(self, count: int) -> None:
        """Cut off what was written after the checkpoint that is resumed, a torn last line included."""
        path = self.path / RECORDS
        lines = path.read_bytes().splitlines(keepends=True)[:count] if path.exists() else []
        if len(lines) < count or any(not line.endswith(b"\n") for line in lines):
            raise BudgetedError(f"{path} has fewer records than the checkpoint knows of: the folder is damaged")
        replace_file(path, b"".join(lines))

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def write_checkpoint(self, learner: Learner, more: Mapping[str, Any]) -> None:
        folder = self.path / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        target = folder / f"{learner.arrived:09d}"
        if target.exists():  # repeated after a resume: the same bits
            shutil.rmtree(target)
        state.write(learner, target, more)
        for old in self._checkpoints()[_KEPT:]:
            shutil.rmtree(old, ignore_errors=True)

    def read_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The newest checkpoint that is whole: tensors and numbers; None if there is none yet."""
        problem: state.BadCheckpoint | None = None
        for folder in self._checkpoints():
            try:
                return state.read(folder)
            except state.BadCheckpoint as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def _checkpoints(self) -> list[Path]:
        """Newest first; what a killed writer left half-done does not count, and is cleared away."""
        folder = self.path / CHECKPOINTS
        if not folder.exists():
            return []
        for scratch in folder.glob(".*.part"):
            shutil.rmtree(scratch, ignore_errors=True)
        return sorted((path for path in folder.iterdir() if path.name.isdigit()), reverse=True)

    # -- steps really executed, repeated ones included ----------------------------------------------------------

    def step_counter(self) -> Any:
        """A counter in a file, kept by the kernel: it survives a kill at any moment."""
        path = self.path / EXECUTED
        if not path.exists():
            path.write_bytes(b"\0" * 8)
        return np.memmap(path, dtype=np.int64, mode="r+", shape=(1,))


def records_digest(records: list[dict[str, Any]]) -> str:
    """One hash over all records, wall-clock fields aside."""
    digest = hashlib.sha256()
    for record in records:
        timeless = {key: value for key, value in record.items() if key != "seconds"}
        digest.update(json.dumps(timeless, sort_keys=True).encode())
    return digest.hexdigest()


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode())


def replace_file(path: Path, content: bytes) -> None:
    """The file has the old content or the new, never a part."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with open(scratch, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise BudgetedError(f"{path.parent} is no run folder: cannot read {path.name} ({error.strerror})") from error
    except ValueError as error:
        raise BudgetedError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BudgetedError(f"{path} is damaged: it holds no table")
    return found
