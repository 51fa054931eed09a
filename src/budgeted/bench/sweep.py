"""Run a recipe: each run in a process of its own, several at a time; what is finished stays, what was cut off goes on.

A run is known by its configuration, not by the name of its folder, so recipes that share a run share its folder.
Processes are of this machine or of a cluster (`places_of_work`); the folders, which all of them see, hold everything
that has to last.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from budgeted.bench.places_of_work import LocalProcesses, PlaceOfWork
from budgeted.bench.worker import TAKEN, order
from budgeted.errors import BudgetedError
from budgeted.learner.files import named
from budgeted.registry import short as short_name
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import (
    CONFIG,
    SUMMARY,
    RunFolder,
    copy_records,
    read_config,
)

log = logging.getLogger("budgeted")
_LOOK_EVERY = 0.5  # seconds between two looks at a run that another process is at
MOST_LOSSES = 3
"""times that a run is begun again after its process or its node was lost"""
State = Literal["finished", "interrupted", "missing"]
# Of no consequence to what a run finds.
_ASIDE = ("data", "download", "checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True)
class Place:
    """Where a run of a recipe is, or is to be."""

    config: RunConfig
    folder: Path
    state: State


def identity(config: dict[str, Any]) -> str:
    """What makes two configurations the same run."""
    return json.dumps({key: value for key, value in config.items() if key not in _ASIDE}, sort_keys=True)


def places(runs: Sequence[RunConfig], out: Path) -> list[Place]:
    """Every run of a recipe, with the folder under `out` that already holds it, or a new name."""
    known = {identity(_config_in(path.parent)): path.parent for path in named(out, CONFIG)}
    found = []
    for config in (run.with_sources().with_usual() for run in runs):
        folder = known.get(identity(config.to_json()))
        if folder is None:
            found.append(Place(config, out / _name(config), "missing"))
        else:
            found.append(Place(config, folder, "finished" if (folder / SUMMARY).exists() else "interrupted"))
    return found


def _config_in(folder: Path) -> dict[str, Any]:
    # A folder that was written before a setting was there holds its default.
    return RunConfig.from_mapping(read_config(folder / CONFIG), str(folder / CONFIG)).to_json()


def _name(config: RunConfig) -> str:
    short = hashlib.sha256(identity(replace(config, seed=0).to_json()).encode()).hexdigest()[:8]
    return f"{short_name(config.method)}-{Path(config.dataset).stem}-{config.stream}-{short}-seed{config.seed}"


def sweep(
    runs: Sequence[RunConfig],
    out: Path,
    data: str | None,
    workers: int | PlaceOfWork,
    *,
    accept_other_arithmetic: bool = False,
) -> Generator[tuple[Place, str | None], None, None]:
    """Run what is not finished; yields each run as it ends, with the error that ended it or None.

    workers: how many processes of this machine, or another place of work. A run that another process is at comes after
    the others; it is waited for, and counts as finished when that process finishes it.
    """
    if isinstance(workers, int) and workers < 1:
        raise BudgetedError(f"--workers must be 1 or more, got {workers}")
    out.mkdir(parents=True, exist_ok=True)
    waiting = [place for place in places(runs, out) if place.state != "finished"]
    started = LocalProcesses(workers) if isinstance(workers, int) else workers
    with ThreadPoolExecutor(max(1, started.at_a_time(len(waiting)))) as pool:
        turns = {pool.submit(_turn, place, data, started, accept_other_arithmetic): place for place in waiting}
        told: set[Path] = set()
        try:
            while turns:
                done: set[Future[Turn]] = wait(turns, return_when=FIRST_COMPLETED).done
                for future in done:
                    place, ended = turns.pop(future), future.result()
                    if not isinstance(ended, Elsewhere):
                        yield place, ended
                        continue
                    if place.folder not in told:
                        log.warning("%s: another process is at it", place.folder.name)
                        told.add(place.folder)
                    turns[pool.submit(_turn, place, data, started, accept_other_arithmetic)] = place  # after the others
        finally:  # whatever stops the sweep stops its runs too: they have checkpoints and go on the next time
            pool.shutdown(wait=False, cancel_futures=True)
            started.stop()


class Elsewhere:
    """How a turn ends that finds another process at the run."""


Turn: TypeAlias = str | Elsewhere | None


def _turn(place: Place, data: str | None, started: PlaceOfWork, accept: bool) -> Turn:
    """Execute a run, unless another process is at it: None when it is finished, or the error that ended it."""
    folder, losses = RunFolder(place.folder), 0
    while True:
        if os.path.lexists(place.folder / SUMMARY):
            return None  # another process has finished it
        if folder.busy():
            return "stopped" if started.stopped.wait(_LOOK_EVERY) else Elsewhere()
        begun = os.path.lexists(place.folder / CONFIG)
        config = None if begun else replace(place.config, data=data).to_json()
        code, error = started.run(order(config, place.folder.resolve(), accept), place.config)
        if code == 0:
            return None
        if code < 0 and losses < MOST_LOSSES and not started.stopped.is_set():
            losses += 1
            log.warning("%s: lost (%s), goes on elsewhere", place.folder.name, error)
        elif code != TAKEN:  # taken: another sweep was quicker
            return error
        if started.stopped.wait(_LOOK_EVERY):
            return "stopped"


def export(found: Sequence[Place], to: Path) -> int:
    """Copy the records of finished runs, without checkpoints and this machine's folders; how many there were."""
    finished = [place for place in found if place.state == "finished"]
    for place in finished:
        copy_records(place.folder, to / _name(place.config), place.config)
    return len(finished)
