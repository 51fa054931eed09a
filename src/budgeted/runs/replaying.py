"""A stretch of a run again: from a checkpoint, or from nothing, to the next one, or to the summary.

The run is the ordinary one, so nothing is replayed by other code than made it. It works in a folder of its own that is
thrown away: the folder that is looked at is read and never written.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from budgeted.learner import state
from budgeted.learner.files import replace_file, write_json
from budgeted.runs.agreeing import State
from budgeted.runs.claims import Claims, Point
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import ENVIRONMENT, RECORDS, RunFolder
from budgeted.runs.run import Run


@dataclass(frozen=True)
class Replayed:
    """What a stretch came to."""

    began: State
    ended: State | None
    """at the checkpoint that it was to reach; None where the run makes none there"""
    records: list[dict[str, Any]]
    summary: Mapping[str, Any] | None
    """where the stretch is the last one"""


class _Reached(BaseException):
    """The stretch ends here."""


class _Replay(Run):
    """Writes no checkpoint, and keeps its state where it is told to."""

    watched: int | None = None
    goes_on = False
    found: State | None = None

    def state(self) -> State:
        return state.tensors_of(self.learner), {**state.numbers_of(self.learner), **self.numbers()}

    def _evaluates_beside(self) -> bool:
        return False  # no result depends on it, and the process beside would look for the data where they were

    def _checkpoint(self) -> None:
        if self.position == self.watched:
            self.found = self.state()
            if not self.goes_on:
                raise _Reached


def replay(
    claims: Claims, here: dict[str, Any], data: str | None, start: Point | None, stop: Point | None, last: bool
) -> Replayed:
    """From `start` (None: from nothing) to `stop`; the last stretch goes on to the summary."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = _copied(claims, Path(scratch), start)
        run = _Replay(_found_here(claims.config, data), folder, here)
        run.config = claims.config  # as it was written, not as it is found here
        if start is not None:
            run.resume(*state.read(start.path))
        else:
            folder.records.begin()
        run.watched, run.goes_on = None if stop is None else stop.position, last
        known, summary = len(run.records), None
        run.counter = folder.step_counter(claims.config.to_json(), run.executed)
        began = run.state()
        run.counter.close()
        with contextlib.suppress(_Reached):
            summary = run.execute()
        return Replayed(began, run.found, run.records[known:], summary if last else None)


def built(claims: Claims, here: dict[str, Any], data: str | None) -> Run:
    """The run as its configuration has it, before its first sample."""
    return Run(_found_here(claims.config, data), RunFolder(claims.folder.path), here)


def _found_here(config: RunConfig, data: str | None) -> RunConfig:
    return config if data is None else replace(config, data=data)


def _copied(claims: Claims, scratch: Path, start: Point | None) -> RunFolder:
    """A folder with what a run is resumed from, apart from the checkpoint itself."""
    write_json(scratch / ENVIRONMENT, claims.folder.environment())
    if start is not None:
        replace_file(scratch / RECORDS, claims.content[: int(start.numbers["records"]["bytes"])])
    return RunFolder(scratch)
