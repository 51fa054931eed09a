"""A learner as tensors and plain numbers, and back: exact, and without pickle.

Tensors go to safetensors, the rest to JSON. Loading fills a learner that was built with the same settings; whatever a
training step depends on is in it: weights, statistics, moments, memory, retrieval, generators, averages, counters.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from budgeted.budget.kept import prefixed, without_prefix
from budgeted.errors import BudgetedError
from budgeted.learner import segments
from budgeted.learner.files import (
    MOST_JSON,
    file_digest,
    parse_json,
    part_of,
    read_bytes,
    remove,
    replace_file,
    seal_holds,
    sealed,
    sync_file,
    sync_folder,
)
from budgeted.learner.learner import Learner
from budgeted.learner.lent import StepRecord
from budgeted.problems.batches import at, stacked
from budgeted.replay.journal import Places, Segment

TENSORS, NUMBERS = "tensors.safetensors", "state.json"
TENSORS_PART = ".tensors.part"
OWN_TENSORS = re.compile(r"tensors(-[0-9a-f]{16})?\.safetensors")
SEAL = "numbers_sha256"
FORMAT = 3
LOGGED_FORMAT = 4
"""of a checkpoint whose samples are in a log beside it"""
LOG = "log"


class BadCheckpoint(BudgetedError):
    """A checkpoint that is damaged, or of something else."""


def tensors_of(learner: Learner, apart: Collection[str] = ()) -> dict[str, Tensor]:
    """Everything that is a tensor, by name; without the rows of the memory's journals in `apart`."""
    learner.meanwhile.refuse_between()
    tensors = _state_of(learner, "retrieval", "selection", "method", "problem")
    tensors |= prefixed("memory", learner.memory.state(apart))
    if learner.waiting:
        samples = stacked([sample for sample, _ in learner.waiting])
        parts = {"samples": samples} if isinstance(samples, Tensor) else samples
        tensors |= prefixed("waiting", parts)
        tensors["waiting.rows"] = torch.tensor([row for _, row in learner.waiting])
    return _copied(tensors)


def _state_of(learner: Learner, *parts: str) -> dict[str, Tensor]:
    """Of the network, and of these parts."""
    tensors = learner.network.state()
    for part in parts:
        tensors |= prefixed(part, getattr(learner, part).state())
    return tensors


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """safetensors takes no shared or strided storage; a copy also keeps what later steps would overwrite."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def numbers_of(learner: Learner) -> dict[str, Any]:
    """Everything else: ready for JSON."""
    return {
        "format": FORMAT,
        "method": learner.method.name,
        "class_labels": learner.class_labels,
        "arrived": learner.arrived,
        "pace": learner.pace.state(),
        "last_loss": None if learner.last is None else learner.last.loss,
        "rested": learner.rested,
        "frozen_share": learner.frozen_share,
        "generators": learner.generators.state(),
        "ledger": learner.ledger.state_dict(),
    }


@torch.no_grad()
def restore(learner: Learner, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Make `learner`, just built, the one that was saved."""
    if numbers.get("format") not in (FORMAT, LOGGED_FORMAT) or numbers.get("method") != learner.method.name:
        raise BadCheckpoint(
            f"the checkpoint is of method {numbers.get('method')!r} (format {numbers.get('format')}), "
            f"this is {learner.method.name!r} (format {FORMAT}): resume with the settings it was saved with"
        )
    learner.problem.meet(*(_key(key) for key in numbers["class_labels"]))
    learner.problem.grow(learner.network, len(learner.class_labels), learner.generators["head"])
    # it may have changed network and memory
    learner.method.load_state(without_prefix("method", tensors), learner.device)
    try:
        learner.network.load_state(tensors)
    except KeyError as missing:
        raise BadCheckpoint(f"{missing.args[0]}: it is of another model") from missing
    of_memory = without_prefix("memory", tensors)
    learner.memory.load_state(of_memory, of_memory.keys() if LOG in numbers else ())  # read for us alone, row by row
    for name, places in without_prefix(LOG, tensors).items():
        journal = learner.memory.journals[name]
        journal.rows.settle(places.numpy())
        journal.segments = segments.from_json(numbers[LOG][name])
    learner.memory.watch(learner.retrieval)
    for part in ("retrieval", "selection", "problem"):
        getattr(learner, part).load_state(without_prefix(part, tensors), learner.device)
    waiting = without_prefix("waiting", tensors)
    rows = waiting.pop("rows", torch.empty(0))
    samples = waiting.get("samples", waiting)
    learner.waiting = [(at(samples, place), int(row)) for place, row in enumerate(rows)]
    learner.pace.load_state(numbers["pace"])
    if numbers["last_loss"] is not None:
        learner.last = StepRecord(float(numbers["last_loss"]), frozenset(), 0.0, {})
    learner.rested = {str(name): int(count) for name, count in numbers["rested"].items()}
    learner.frozen_share = float(numbers["frozen_share"])
    learner.generators.load_state(numbers["generators"])
    learner.ledger.load_state_dict(numbers["ledger"])
    learner.arrived = int(numbers["arrived"])
    learner.events.caught_up()


def answering_state(learner: Learner) -> dict[str, Tensor]:
    """What predictions are made from: copies, so that training may go on."""
    return _copied(_state_of(learner, "method", "problem"))


@torch.no_grad()
def restore_answers(learner: Learner, tensors: Mapping[str, Tensor], class_labels: list[Any]) -> None:
    """Let `learner`, built alike, answer as the one that `tensors` are of."""
    learner.problem.meet(*(_key(key) for key in class_labels[len(learner.class_labels) :]))
    learner.problem.grow(learner.network, len(learner.class_labels), learner.generators["head"])
    learner.method.grown()
    learner.network.load_state(tensors)
    for part in ("method", "problem"):
        getattr(learner, part).load_state(without_prefix(part, tensors), learner.device)


def _key(written: Any) -> Any:
    """A key as it was: JSON makes lists of tuples."""
    return tuple(_key(each) for each in written) if isinstance(written, list) else written


def write(learner: Learner, folder: Path, more: Mapping[str, Any] | None = None, *, logged: bool = False) -> None:
    """Write into a folder that is not there yet: it appears whole, or not at all.

    logged: of the memory's samples write only what changed since the last time, into the log beside; `folder` then
    lies in the folder of all checkpoints.
    """
    scratch = part_of(folder)
    remove(scratch)
    scratch.mkdir(parents=True)
    journals, log = learner.memory.journals if logged else {}, segments.beside(folder)
    try:
        if logged:
            log.mkdir(exist_ok=True)
        written = {name: segments.write(journal, log) for name, journal in journals.items()}
        _write_files(learner, scratch, TENSORS, more, written if logged else None)
        os.replace(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    sync_folder(folder.parent)
    for name, (places, held) in written.items():
        journals[name].segments = held
        journals[name].rows.settle(places)


def write_into(learner: Learner, folder: Path, more: Mapping[str, Any] | None = None) -> str:
    """Write into a folder that is there, beside an earlier state, which counts until the new one is whole.

    Answers with the name of the tensors' file: the numbers, replaced in one step, name the tensors that belong to them.
    """
    return _write_files(learner, folder, None, more)


def _write_files(
    learner: Learner,
    folder: Path,
    name: str | None,
    more: Mapping[str, Any] | None,
    logged: Mapping[str, tuple[Places, tuple[Segment, ...]]] | None = None,
) -> str:
    """Tensors first, under the name given or one by their digest; then the numbers, which make them count."""
    tensors = tensors_of(learner, (logged or {}).keys())
    tensors |= {f"{LOG}.{journal}": torch.from_numpy(places) for journal, (places, _) in (logged or {}).items()}
    scratch = folder / TENSORS_PART  # a folder: safetensors writes beside its file, under a name that nobody knows
    remove(scratch)
    scratch.mkdir()
    try:
        written = scratch / TENSORS
        save_file(tensors, written)
        digest, size = file_digest(written), written.stat().st_size
        sync_file(written)
        name = name or f"tensors-{digest[:16]}.safetensors"
        os.replace(written, folder / name)
    finally:
        remove(scratch)
    numbers = {**numbers_of(learner), **(more or {})}
    numbers |= {"tensors_file": name, "tensors_bytes": size, "tensors_sha256": digest}
    if logged is not None:
        held = {journal: segments.to_json(named) for journal, (_, named) in logged.items()}
        numbers |= {"format": LOGGED_FORMAT, LOG: held}
    replace_file(folder / NUMBERS, json.dumps(sealed(numbers, SEAL)).encode())
    return name


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify what `write` wrote."""
    try:
        numbers = read_numbers(folder)
        tensors = folder / str(numbers["tensors_file"])
        if tensors.stat().st_size != numbers["tensors_bytes"]:
            raise BadCheckpoint(f"{tensors} does not have the length in {NUMBERS}: it is damaged")
        # read, not mapped: a file that is cut under a mapping ends the process; and what is checked is what is used
        content = read_bytes(tensors, int(numbers["tensors_bytes"]))
        if hashlib.sha256(content).hexdigest() != numbers["tensors_sha256"]:
            raise BadCheckpoint(f"{tensors} does not have the checksum in {NUMBERS}: it is damaged")
        return _with_log(load(content), numbers, segments.beside(folder)), numbers
    except BadCheckpoint:
        raise
    except (OSError, ValueError, KeyError, SafetensorError, BudgetedError) as error:
        raise BadCheckpoint(f"cannot read the checkpoint {folder}: {error}") from error


def _with_log(tensors: dict[str, Tensor], numbers: Mapping[str, Any], log: Path) -> dict[str, Tensor]:
    for name, held in numbers.get(LOG, {}).items():
        rows = segments.read(log, segments.from_json(held), tensors[f"{LOG}.{name}"].numpy())
        tensors |= {f"memory.{key}": tensor for key, tensor in rows.items()}
    return tensors


def read_numbers(folder: Path) -> dict[str, Any]:
    """What `write` wrote beside the tensors, verified."""
    numbers = parse_json(read_bytes(folder / NUMBERS, MOST_JSON), folder / NUMBERS)
    if "tensors_sha256" not in numbers:
        raise BadCheckpoint(f"{folder} is no checkpoint of budgeted: {NUMBERS} has no checksum")
    if not seal_holds(numbers, SEAL):
        raise BadCheckpoint(f"{folder / NUMBERS} does not have the checksum written in it: it is damaged")
    del numbers[SEAL]
    if not OWN_TENSORS.fullmatch(str(numbers.get("tensors_file", TENSORS))):  # it could name any file
        raise BadCheckpoint(f"{folder / NUMBERS} names tensors that are none of ours: it is damaged")
    if numbers.get("format") not in (FORMAT, LOGGED_FORMAT):
        raise BadCheckpoint(
            f"{folder} has format {numbers.get('format')}, this version reads {FORMAT} and {LOGGED_FORMAT}: go on "
            "with the version that wrote it, or begin anew"
        )
    return numbers


def weights_digest(learner: Learner) -> str:
    """One hash over all parameters and buffers, and their average, whatever their memory format."""
    digest = hashlib.sha256()
    averaged = {} if learner.network.average is None else learner.network.average.by_name()
    for name, tensor in (*sorted(learner.model.state_dict().items()), *sorted(averaged.items())):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
