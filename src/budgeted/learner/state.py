"""A learner as tensors and plain numbers, and back: exact, and without pickle.

Tensors go to safetensors, the rest to JSON. Loading fills a learner that was built with the same settings; whatever a
training step depends on is in it: weights, statistics, moments, memory, retrieval, generators, averages, counters.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner.learner import Learner, StepRecord
from budgeted.problems.batches import at, stacked

TENSORS, NUMBERS = "tensors.safetensors", "state.json"
FORMAT = 3


class BadCheckpoint(BudgetedError):
    """A checkpoint that is damaged, or of something else."""


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    """Everything that is a tensor, by name."""
    tensors = learner.network.state()
    for part in ("memory", "retrieval", "selection", "method", "problem"):
        for name, tensor in getattr(learner, part).state().items():
            tensors[f"{part}.{name}"] = tensor
    if learner.waiting:
        samples = stacked([sample for sample, _ in learner.waiting])
        parts = {"samples": samples} if isinstance(samples, Tensor) else samples
        tensors |= {f"waiting.{name}": tensor for name, tensor in parts.items()}
        tensors["waiting.rows"] = torch.tensor([row for _, row in learner.waiting])
    # safetensors takes no shared or strided storage; a copy also keeps what later steps would overwrite
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
    if numbers.get("format") != FORMAT or numbers.get("method") != learner.method.name:
        raise BadCheckpoint(
            f"the checkpoint is of method {numbers.get('method')!r} (format {numbers.get('format')}), "
            f"this is {learner.method.name!r} (format {FORMAT}): resume with the settings it was saved with"
        )
    learner.problem.meet(*(_key(key) for key in numbers["class_labels"]))
    learner.problem.grow(learner.network, len(learner.class_labels), learner.generators["head"])
    try:
        learner.network.load_state(tensors)
    except KeyError as missing:
        raise BadCheckpoint(f"{missing.args[0]}: it is of another model") from missing
    learner.memory.load_state(_part("memory", tensors))
    learner.memory.watch(learner.retrieval)
    for part in ("retrieval", "selection", "method", "problem"):
        getattr(learner, part).load_state(_part(part, tensors), learner.device)
    waiting = _part("waiting", tensors)
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


def _key(written: Any) -> Any:
    """A key as it was: JSON makes lists of tuples."""
    return tuple(_key(each) for each in written) if isinstance(written, list) else written


def _part(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def write(learner: Learner, folder: Path, more: Mapping[str, Any] | None = None) -> None:
    """Write into a folder that is not there yet: it appears whole, or not at all."""
    scratch = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    scratch.mkdir(parents=True, exist_ok=True)
    save_file(tensors_of(learner), scratch / TENSORS)
    digest = file_digest(scratch / TENSORS)
    numbers = {**numbers_of(learner), **(more or {}), "tensors_sha256": digest}
    text = json.dumps({**numbers, "numbers_sha256": _numbers_digest(numbers)})
    with open(scratch / NUMBERS, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with open(scratch / TENSORS, "rb") as written:
        os.fsync(written.fileno())
    scratch.rename(folder)
    _sync_folder(folder.parent)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and verify what `write` wrote."""
    try:
        numbers = json.loads((folder / NUMBERS).read_text())
        if not isinstance(numbers, dict) or "tensors_sha256" not in numbers:
            raise BadCheckpoint(f"{folder} is no checkpoint of budgeted: {NUMBERS} has no checksum")
        if numbers.pop("numbers_sha256", None) != _numbers_digest(numbers):
            raise BadCheckpoint(f"{folder / NUMBERS} does not have the checksum written in it: it is damaged")
        if file_digest(folder / TENSORS) != numbers["tensors_sha256"]:
            raise BadCheckpoint(f"{folder / TENSORS} does not have the checksum in {NUMBERS}: it is damaged")
        return load_file(folder / TENSORS), numbers
    except (OSError, ValueError, SafetensorError) as error:
        raise BadCheckpoint(f"cannot read the checkpoint {folder}: {error}") from error


def _numbers_digest(numbers: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_digest(learner: Learner) -> str:
    """One hash over all parameters and buffers, whatever their memory format."""
    digest = hashlib.sha256()
    for name, tensor in sorted(learner.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
