"""Run a recipe: each run in a process of its own, several at a time; what is finished stays, what was cut off goes on.

A run is known by its configuration, not by the name of its folder, so recipes that share a run share its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from budgeted.errors import BudgetedError
from budgeted.registry import short as short_name
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG, ENVIRONMENT, RECORDS, SUMMARY, read_json, write_json

State = Literal["finished", "interrupted", "missing"]
# Of no consequence to what a run finds.
_ASIDE = ("data", "download", "checkpoint_every")


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
    known = {identity(_config_in(path.parent)): path.parent for path in sorted(out.rglob(CONFIG))}
    found = []
    for config in runs:
        folder = known.get(identity(config.to_json()))
        if folder is None:
            found.append(Place(config, out / _name(config), "missing"))
        else:
            found.append(Place(config, folder, "finished" if (folder / SUMMARY).exists() else "interrupted"))
    return found


def _config_in(folder: Path) -> dict[str, Any]:
    # A folder that was written before a setting was there holds its default.
    return RunConfig.from_mapping(read_json(folder / CONFIG), str(folder / CONFIG)).to_json()


def _name(config: RunConfig) -> str:
    short = hashlib.sha256(identity(replace(config, seed=0).to_json()).encode()).hexdigest()[:8]
    return f"{short_name(config.method)}-{Path(config.dataset).stem}-{config.stream}-{short}-seed{config.seed}"


def sweep(
    runs: Sequence[RunConfig], out: Path, data: str | None, workers: int, *, accept_other_arithmetic: bool = False
) -> Iterator[tuple[Place, str | None]]:
    """Run what is not finished; yields each run as it ends, with the error that ended it or None."""
    more = ["--accept-other-arithmetic"] if accept_other_arithmetic else []
    if workers < 1:
        raise BudgetedError(f"--workers must be 1 or more, got {workers}")
    out.mkdir(parents=True, exist_ok=True)
    waiting = [place for place in places(runs, out) if place.state != "finished"]
    started: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(_execute, place, data, started, more): place for place in waiting}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # whatever stops the sweep stops its runs too: they have checkpoints and go on the next time
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                process.terminate()


def _execute(
    place: Place, data: str | None, started: list[subprocess.Popen[str]], going_on: Sequence[str]
) -> str | None:
    command = [sys.executable, "-m", "budgeted", "run", "--json"]
    if place.state == "interrupted":
        command += ["--resume", str(place.folder), *going_on]
    else:
        config = place.folder.with_suffix(".config.json")
        write_json(config, {key: value for key, value in replace(place.config, data=data).to_json().items() if value})
        command += ["--config", str(config), "--out", str(place.folder)]
    # One thread a process: more would only get in each other's way.
    environment = {**os.environ, "OMP_NUM_THREADS": str(place.config.threads)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    started.append(process)
    _, errors = process.communicate()
    started.remove(process)
    if place.state == "missing":
        place.folder.with_suffix(".config.json").unlink(missing_ok=True)
    if process.returncode == 0:
        return None
    return (errors.strip().splitlines() or [f"ended with code {process.returncode}"])[-1]


def export(found: Sequence[Place], to: Path) -> int:
    """Copy the records of finished runs, without checkpoints and this machine's folders; how many there were."""
    finished = [place for place in found if place.state == "finished"]
    for place in finished:
        target = to / _name(place.config)
        target.mkdir(parents=True, exist_ok=True)
        write_json(target / CONFIG, place.config.to_json())
        summary = {**read_json(place.folder / SUMMARY), "config": place.config.to_json()}
        write_json(target / SUMMARY, summary)
        for name in (ENVIRONMENT, RECORDS):
            (target / name).write_bytes((place.folder / name).read_bytes())
    return len(finished)
