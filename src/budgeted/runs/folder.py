"""The run folder: configuration, environment, records, checkpoints, summary, and a lock that dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.learner import segments, state
from budgeted.learner.files import (
    NotRegular,
    json_digest,
    open_own,
    part_of,
    read_bytes,
    read_json,
    remove,
    replace_file,
    seal_holds,
    sealed,
    write_json,
)
from budgeted.learner.learner import Learner
from budgeted.runs.config import CONFIG_SEAL, RunConfig
from budgeted.runs.counter import StepCounter
from budgeted.runs.keeping import NEWEST, Keep, kept
from budgeted.runs.records import MOST_RECORDS, Records

CONFIG, ENVIRONMENT, RECORDS, SUMMARY = "config.json", "environment.json", "records.jsonl", "summary.json"
CHECKPOINTS, LOCK, EXECUTED = "checkpoints", "lock", "executed_steps"
SUMMARY_SEAL = "summary_sha256"


class Taken(BudgetedError):
    """Another process writes the folder, or a run is in it already."""


class RunFolder:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = Records(path / RECORDS)
        self._named: dict[str, set[str]] = {}  # segments of the log, by checkpoint
        self.keep: tuple[Keep, int] = (NEWEST, 0)  # checkpoints that stay, and samples of the stream

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process writes; the lock is the kernel's, so a killed one leaves none behind."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open_own(self.path / LOCK, os.O_RDWR | os.O_CREAT) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise Taken(f"another process is writing {self.path}: wait for it, or choose another folder") from error
            self._clear()
            yield

    def vanish(self) -> None:
        """Remove the folder that `locked` has made, if nothing but the lock is in it."""
        with suppress(OSError):
            (self.path / LOCK).unlink()
            self.path.rmdir()

    def busy(self) -> bool:
        """Whether a process is writing it just now."""
        try:
            with open_own(self.path / LOCK, os.O_RDWR) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except (OSError, BudgetedError):
            return False
        return False

    def _clear(self) -> None:
        """What a killed writer left half-done."""
        for name in (CONFIG, ENVIRONMENT, SUMMARY):
            remove(part_of(self.path / name))
        if (self.path / CHECKPOINTS).is_dir():
            for scratch in (self.path / CHECKPOINTS).glob(".*.part"):
                remove(scratch)

    # -- what is written once ----------------------------------------------------------------------------------

    def refuse_another(self) -> None:
        """A folder that holds a run, or files of the names that this one would write."""
        if os.path.lexists(self.path / CONFIG):
            raise Taken(
                f"{self.path} already holds a run: go on with it by `budgeted run --resume {self.path}`, "
                "or choose another folder"
            )
        for name in (ENVIRONMENT, RECORDS, SUMMARY, CHECKPOINTS, segments.FOLDER, EXECUTED):
            if os.path.lexists(self.path / name):
                raise BudgetedError(f"{self.path} holds a {name} without a {CONFIG}: choose another folder")

    def begin(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """The configuration comes first: whatever else is there then belongs to the run."""
        self.refuse_another()
        write_config(self.path / CONFIG, config)
        self.write_environment(environment)

    def refuse_odd_files(self) -> None:
        """What will be written to is looked at before anything is changed."""
        for name in (RECORDS, EXECUTED):
            if os.path.lexists(self.path / name):
                open_own(self.path / name, os.O_RDWR).close()
        for name in (ENVIRONMENT, SUMMARY):  # which are replaced, links too, but for a folder
            if os.path.lexists(path := self.path / name) and stat.S_ISDIR(mode := os.lstat(path).st_mode):
                raise NotRegular(path, mode)

    def config(self) -> dict[str, Any]:
        return read_config(self.path / CONFIG)

    def environment(self) -> dict[str, Any]:
        return read_json(self.path / ENVIRONMENT)

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        write_json(self.path / ENVIRONMENT, environment)

    def summary(self) -> dict[str, Any] | None:
        return read_summary(self.path / SUMMARY) if os.path.lexists(self.path / SUMMARY) else None

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def write_checkpoint(self, learner: Learner, more: Mapping[str, Any]) -> None:
        folder = self.path / CHECKPOINTS
        folder.mkdir(exist_ok=True)
        target = folder / f"{learner.arrived:09d}"
        remove(target)  # repeated after a resume: the same bits
        state.write(learner, target, more, logged=True)
        self._named[target.name] = {each.file for named in learner.memory.journals.values() for each in named.segments}
        self.drop_old_checkpoints()

    def drop_old_checkpoints(self) -> None:
        """And the segments that only they needed."""
        there = self.checkpoints()
        stay = kept([int(path.name) for path in there], *self.keep)
        for path in there:
            if int(path.name) not in stay:
                remove(path)
        needed = [self._segments_of(path) for path in there if int(path.name) in stay]
        segments.drop(self.path / segments.FOLDER, set().union(*needed))

    def _segments_of(self, checkpoint: Path) -> set[str]:
        """Names of what a checkpoint needs of the log; a damaged one needs nothing any more."""
        if checkpoint.name not in self._named:
            try:
                log = state.read_numbers(checkpoint).get(state.LOG, {})
                self._named[checkpoint.name] = {each.file for held in log.values() for each in segments.from_json(held)}
            except (OSError, ValueError, TypeError, AttributeError, BudgetedError):
                return set()
        return self._named[checkpoint.name]

    def read_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The newest checkpoint that is whole: tensors and numbers; None if there is none yet."""
        problem: state.BadCheckpoint | None = None
        for folder in self.checkpoints():
            try:
                return state.read(folder)
            except state.BadCheckpoint as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return None

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        folder = self.path / CHECKPOINTS
        if not os.path.lexists(folder):
            return []
        return sorted((path for path in folder.iterdir() if path.name.isascii() and path.name.isdigit()), reverse=True)

    # -- steps really executed, repeated ones included ----------------------------------------------------------

    def step_counter(self, config: Mapping[str, Any], least: int | None) -> StepCounter:
        return StepCounter(self.path / EXECUTED, json_digest(config), least)


def opened(path: Path) -> tuple[RunFolder, RunConfig]:
    """The folder of a run that was begun, and its configuration."""
    if not (path / CONFIG).is_file():
        raise BudgetedError(f"{path} is no run folder: it has no {CONFIG}; `budgeted run` makes one")
    folder = RunFolder(path)
    return folder, RunConfig.from_mapping(folder.config(), str(path / CONFIG))


# -- what knows by itself whether it was changed ------------------------------------------------------------------


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    write_json(path, sealed(config, CONFIG_SEAL))


def read_config(path: Path) -> dict[str, Any]:
    """The configuration of a run; one from before it was sealed is taken as it is."""
    found = read_json(path)
    if CONFIG_SEAL in found and not seal_holds(found, CONFIG_SEAL):
        raise BudgetedError(f"{path} was changed since the run was begun: restore it, or begin a new run")
    found.pop(CONFIG_SEAL, None)
    return found


def write_summary(path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    found = sealed(summary, SUMMARY_SEAL)
    write_json(path, found)
    return found


#: What tables and the command show; a summary without them is none.
_NUMBERS = ("a_auc", "a_last", "iterations", "samples", "bytes", "frozen_share", "train_seconds", "eval_seconds")
_MAY_MISS = ("f_last", "klr", "kgr", "slots")


def read_summary(path: Path) -> dict[str, Any]:
    """What came of a run; refused where it is not what was written."""
    found = read_json(path)
    # from before summaries were sealed if neither of two keys is there that came with the seal
    if (SUMMARY_SEAL in found or "data" in found) and not seal_holds(found, SUMMARY_SEAL):
        raise BudgetedError(f"{path} is not as the run wrote it: restore it, or remove it and resume the run")
    spent, config = found.get("spent"), found.get("config")
    fits = (
        all(_is_number(found.get(name)) for name in _NUMBERS)
        and all(name in found and (found[name] is None or _is_number(found[name])) for name in _MAY_MISS)
        and isinstance(spent, dict)
        and all(_is_number(spent.get(rule)) for rule in ("paper", "real"))
        and isinstance(config, dict)
        and isinstance(config.get("settings"), dict)
        and isinstance(config.get("method"), str)
        and {"seed", "compute", "iterations", "memory", "unlimited", "slots"} <= set(config)
        and isinstance(found.get("environments", []), list)
    )
    if not fits:
        raise BudgetedError(f"{path} is no summary of a run: restore it, or remove it and resume the run")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def copy_records(run: Path, to: Path, config: RunConfig) -> None:
    """What a finished run recorded, with this configuration in the place of the one that names folders of a machine."""
    to.mkdir(parents=True, exist_ok=True)
    summary = {**read_summary(run / SUMMARY), "config": config.to_json()}
    environment = read_json(run / ENVIRONMENT)
    records = read_bytes(run / RECORDS, MOST_RECORDS)
    write_config(to / CONFIG, config.to_json())
    write_json(to / ENVIRONMENT, environment)
    replace_file(to / RECORDS, records)
    write_summary(to / SUMMARY, summary)  # last: with it the run is finished
