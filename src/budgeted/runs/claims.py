"""What a run's folder claims, held against itself: cheap, and before anything is replayed.

Digests are no signatures: whoever edits a file can write its digest anew, so none of this proves that a run was made.
It finds what was edited with less care, and it makes sure that what is replayed is what the summary stands on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.files import read_bytes
from budgeted.runs.config import RunConfig, refuse_other_config
from budgeted.runs.content import refuse_other_content
from budgeted.runs.folder import CONFIG, RECORDS, RunFolder, opened
from budgeted.runs.records import MOST_RECORDS, parsed, records_digest
from budgeted.runs.run import Run, summarise

_OF_THE_MACHINE = ("data", "download", "checkpoint_every", "keep_checkpoints")
"""of a configuration: what an exported folder no longer has, and no result depends on"""


@dataclass(frozen=True)
class Point:
    """A checkpoint, as far as it is read without its tensors."""

    path: Path
    numbers: Mapping[str, Any]

    @property
    def position(self) -> int:
        """Samples that had arrived, bad ones included."""
        return int(self.numbers.get("position", self.numbers["arrived"]))


@dataclass(frozen=True)
class Claims:
    """Everything in the folder."""

    folder: RunFolder
    config: RunConfig
    content: bytes
    """of the records' file"""
    summary: Mapping[str, Any] | None
    """None: the run is not finished"""
    points: tuple[Point, ...]
    """its checkpoints, the first one first"""

    @property
    def records(self) -> list[dict[str, Any]]:
        return parsed(self.content)

    def records_until(self, point: Point | None) -> int:
        """How many records had been made by then; all for None."""
        if point is None:
            return len(self.records)
        return self.content[: int(point.numbers["records"]["bytes"])].count(b"\n")


def claims_of(path: Path) -> Claims:
    """Read it; what is damaged so that nothing can be replayed is refused in one line."""
    folder, config = opened(path)
    try:
        content = read_bytes(path / RECORDS, MOST_RECORDS)
        content = content[: content.rfind(b"\n") + 1]
        parsed(content)
    except (OSError, ValueError, RecursionError) as error:
        raise BudgetedError(f"{path / RECORDS} cannot be read: {error}") from error
    points = [Point(each, state.read_numbers(each)) for each in folder.checkpoints()]
    return Claims(folder, config, content, folder.summary(), tuple(sorted(points, key=lambda each: each.position)))


def contradictions(claims: Claims, run: Run) -> Iterator[str]:
    """Where the folder contradicts itself, or the data at hand; `run` is built from its configuration."""
    for point in claims.points:
        yield from (f"checkpoint {point.path.name}: {each}" for each in _of_checkpoint(claims, point, run))
    for rule in (0, 1):
        spent = [sum(int(cost[rule]) for cost in point.numbers["ledger"]["spent"].values()) for point in claims.points]
        if spent != sorted(spent):
            yield "the checkpoints' ledgers: a later one has spent less"
    yield from _of_records(claims, run)
    if claims.summary is not None:
        yield from _of_summary(claims, claims.summary, run)


def _of_checkpoint(claims: Claims, point: Point, run: Run) -> Iterator[str]:
    numbers = point.numbers
    try:
        refuse_other_config(numbers.get("config"), claims.config.to_json(), claims.folder.path / CONFIG)
        refuse_other_content(numbers["data"], run.content)
    except BudgetedError as error:
        yield str(error)
    if numbers.get("stream") != run.stream.fingerprint():
        yield "it was made on another stream than the configuration gives"
    if int(point.path.name) != int(numbers["arrived"]):
        yield f"it is of {numbers['arrived']} samples and has the name of another"
    if point.position % run.checkpoint_every and point.position != len(run.stream):
        yield f"this run makes none after {point.position} samples"
    known = numbers["records"]
    lines = claims.content[: int(known["bytes"])]
    if len(lines) < int(known["bytes"]) or hashlib.sha256(lines).hexdigest() != known["sha256"]:
        yield f"{RECORDS} has other records than those that it was made with"


def _of_records(claims: Claims, run: Run) -> Iterator[str]:
    records = claims.records
    before: Mapping[str, Any] | None = None
    for record in records:
        if sum(record["total"]) and record["accuracy"] != sum(record["correct"]) / sum(record["total"]):
            yield f"the record after {record['samples']} samples: its accuracy is not that of its counts"
        if before is not None and any(record["spent"][rule] < before["spent"][rule] for rule in ("paper", "real")):
            yield f"the record after {record['samples']} samples has spent less than the one before it"
        before = record
    places, expected = [int(record["samples"]) for record in records], _evaluated(run)
    stops = run.learner.settings.learner.on_spent == "stop"
    if claims.summary is None:
        expected = expected[: len(places)]
    elif stops and places and places[-1] < len(run.stream):  # it stopped when its budget was spent
        expected = [*(place for place in expected if place < places[-1]), places[-1]]
    if places != expected:
        yield f"{len(places)} evaluations, the last after {places[-1] if places else 0} samples: the stream has others"


def _evaluated(run: Run) -> list[int]:
    """After how many samples a run of the whole stream is evaluated."""
    every = run.config.eval_every
    return sorted({*range(every, len(run.stream) + 1, every), *run.moments, len(run.stream)})


def _of_summary(claims: Claims, summary: Mapping[str, Any], run: Run) -> Iterator[str]:
    records = claims.records
    told, here = (
        {key: value for key, value in config.items() if key not in _OF_THE_MACHINE}
        for config in (_as_now(summary["config"]), claims.config.to_json())
    )
    if told != here:
        other = ", ".join(sorted(key for key in {*told, *here} if told.get(key) != here.get(key)))
        yield f"the summary is of another configuration: {other}"
    if "records_sha256" in summary and summary["records_sha256"] != records_digest(records):
        yield f"the summary was made from other records than those in {RECORDS}"
    for key, value in summarise(records, run.moments).items():
        if key in summary and json.dumps(summary[key]) != json.dumps(value):
            yield f"the summary's {key} does not follow from the records: {summary[key]}, from them {value}"
    if records and summary["spent"] != records[-1]["spent"]:
        yield "the summary has spent other compute than the last record"


def _as_now(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of settings that came later."""
    return RunConfig.from_mapping(config, "the summary").to_json()
