"""Save a learner to a folder, load it again, export its model: safetensors and JSON, no pickle."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner import state
from budgeted.learner.files import disk_errors, part_of, read_json, remove, sync_file, sync_folder, write_json
from budgeted.learner.handing_on import SUFFIXES, Format, described, hand_on, is_description
from budgeted.learner.learner import Learner
from budgeted.learner.settings import LearnerSettings, Settings
from budgeted.methods import METHODS, Method
from budgeted.problems import Augmentation, DataFacts, Problem

_PARTS = ("selection", "retrieval", "freezing", "codec")
_BY_DIGEST = re.compile(r"tensors-[0-9a-f]{16}\.safetensors")


def save(learner: Learner, folder: Path) -> None:
    """Write everything that going on needs; an earlier save in the folder counts until the new one is whole.

    Files of others in the folder stay; a folder of something else is refused. `folder` may be a link to one.
    """
    folder = Path(folder)
    with disk_errors(folder, "save again: an earlier save in it is whole"):
        folder.mkdir(parents=True, exist_ok=True)
        with _only_writer(folder):
            before = _refuse_foreign(folder)
            name = state.write_into(learner, folder, {"learner": _described(learner)})
            for other in {before, *_own_files(folder)} - {name, state.NUMBERS}:  # saves before, and cut off
                remove(folder / other)
            sync_folder(folder)


@contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    """The lock is on the folder itself: it leaves no file, and is gone with its holder."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise BudgetedError(
            f"another save into {folder} is under way: wait for it, or choose another folder"
        ) from error
    finally:
        os.close(handle)


def _refuse_foreign(folder: Path) -> str:
    """Nothing is written where something else is; the name of the tensors of the save that is there, if one is."""
    if (folder / state.NUMBERS).exists() or (folder / state.NUMBERS).is_symlink():
        try:
            found = read_json(folder / state.NUMBERS)
        except BudgetedError as error:
            raise BudgetedError(
                f"{error}, so no learner is saved over it: remove it, or choose another folder"
            ) from error
        if "tensors_sha256" not in found or not isinstance(found.get("learner"), dict):
            raise BudgetedError(
                f"{folder} holds a {state.NUMBERS} of something else than a learner: choose another folder"
            )
        name = str(found.get("tensors_file", state.TENSORS))
        return name if state.OWN_TENSORS.fullmatch(name) else state.NUMBERS
    if {path.name for path in folder.iterdir()} - _own_files(folder):
        raise BudgetedError(f"{folder} holds something else than a learner: choose another folder")
    return state.NUMBERS


def _own_files(folder: Path) -> set[str]:
    """Names that only saves give, whole or cut off."""
    own = {state.NUMBERS, part_of(folder / state.NUMBERS).name, state.TENSORS_PART}
    return {path.name for path in folder.iterdir() if path.name in own or _BY_DIGEST.fullmatch(path.name)}


def load(
    folder: Path | str,
    model: nn.Module | str | None = None,
    own_method: Method | None = None,
    *,
    own_problem: Problem | None = None,
    device: str | None = None,
) -> Learner:
    """The learner that was saved.

    model: built as its model was (the weights are replaced); one that went by a name need not be given.
    own_method, own_problem: where it had a method, a part of one or a problem of its own, another like it.
    device: where to go on; where it was saved if not given.
    """
    if not (Path(folder) / state.NUMBERS).exists():
        raise state.BadCheckpoint(f"{folder} holds no saved learner: give the folder that save() was given")
    tensors, numbers = _read(Path(folder))
    told = numbers.get("learner")
    if told is None:
        raise state.BadCheckpoint(f"{folder} is a run's checkpoint: go on with it by `budgeted run --resume`")
    device = device or str(told["device"])
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise BudgetedError(f"the learner was saved on {told['device']}, which is not here: load it with device='cpu'")
    name, parts, settings = told["method"], told["parts"], told["settings"]
    own_settings = told.get("method_settings", {})  # None: JSON cannot say them
    if own_method is None and (name not in METHODS or None in parts.values() or own_settings is None):
        raise BudgetedError(f"the learner used a method or parts of its own, {name!r}: give it as own_method")
    model = model if model is not None else told["model"]
    if model is None:
        raise BudgetedError(f"the learner in {folder} had a model of its own: build one like it, and give it to load()")
    if own_problem is None and told["data"] is None:
        raise BudgetedError(f"the learner in {folder} had a problem of its own: give one like it as own_problem")
    augmentation = settings["augmentation"]
    compute = told["budget"]["compute"]
    learner = Learner(
        model,
        own_method or METHODS[name](**parts, **own_settings),
        own_problem or DataFacts(**told["data"]),
        slots=told["slots"],
        iterations=told["iterations"],
        budget=Budget(None if compute is None else Compute(**compute), told["budget"]["bytes"]),
        spend_savings=told["spend_savings"],
        spending=told["spending"],
        settings=Settings(
            LearnerSettings(**settings["learner"]),
            None if augmentation is None else Augmentation(**augmentation),
            *(settings[part] for part in ("method", "selection", "retrieval", "freezing", "codec", "problem")),
        ),
        seed=told["seed"],
        device=device,
    )
    state.restore(learner, tensors, numbers)
    return learner


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Whole, also while another process saves: what was replaced in between is read again."""
    for _ in range(10):
        before = _stamp(folder)
        try:
            return state.read(folder)
        except state.BadCheckpoint:
            if _stamp(folder) == before:
                raise
    return state.read(folder)


def _stamp(folder: Path) -> tuple[int, int] | None:
    try:
        found = (folder / state.NUMBERS).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def export(
    learner: Learner,
    path: Path | str,
    format: Format = "safetensors",
    *,
    names: Sequence[str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the trained model to PATH.safetensors (weights), PATH.onnx or PATH.pt2 (a program of `torch.export`), and
    classes, shape and normalisation to PATH.json; the files that were written.

    What the JSON says is in the metadata of weights, too. Files of these names that are no export are refused.

    names: of the classes in order of the rows, where labels are numbers. more: what else the JSON is to say.
    """
    path = Path(path)
    if format not in SUFFIXES:
        raise UnknownName("format", str(format), SUFFIXES)
    if path.suffix in (SUFFIXES[format], ".json"):  # the name of one of the two was given
        path = path.with_suffix("")
    model_at, facts_at = (path.with_name(path.name + suffix) for suffix in (SUFFIXES[format], ".json"))
    facts = {"file": model_at.name, **described(learner, format), **(more or {})}
    if names is not None:
        facts |= {"classes": list(names), "labels": learner.class_labels}
    with disk_errors(path.parent, "export again"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(facts_at):
            _refuse_other_facts(facts_at)
        elif os.path.lexists(model_at):
            _refuse_other_weights(model_at)
        scratch = part_of(model_at)  # a folder: libraries write beside their file, under names that nobody knows
        remove(scratch)
        scratch.mkdir()
        try:
            hand_on(learner, scratch / model_at.name, format, json.dumps(facts))
            sync_file(scratch / model_at.name)
            os.replace(scratch / model_at.name, model_at)
        finally:
            remove(scratch)
        write_json(facts_at, facts)
    return [model_at, facts_at]


def _refuse_other_facts(path: Path) -> None:
    with contextlib.suppress(BudgetedError):
        if is_description(read_json(path)):
            return
    raise BudgetedError(f"{path} is no model that was exported: choose another name")


def _refuse_other_weights(path: Path) -> None:
    """Weights without their JSON: of an export that was cut off, or another's."""
    with contextlib.suppress(SafetensorError, OSError), safe_open(path, "pt") as found:
        if "facts" in (found.metadata() or {}):
            return
    raise BudgetedError(f"{path} is no model that was exported: choose another name")


def _settings_of(method: Method) -> dict[str, Any] | None:
    """What it was made with that is no default, also by whoever made it; None if that is not for JSON to say."""
    own = [item for item in dataclasses.fields(method) if item.init and item.name not in _PARTS]
    found = {item.name: value for item in own if (value := getattr(method, item.name)) != item.default}
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in found.values())
    return found if plain else None


def _described(learner: Learner) -> dict[str, Any]:
    """How the learner was built."""
    chosen = {part: getattr(learner.method, part) for part in _PARTS}
    return {
        "method": learner.method.name,
        "method_settings": _settings_of(learner.method),
        "parts": {part: name if isinstance(name, str) else None for part, name in chosen.items()},
        "model": learner.model_name,
        "data": dataclasses.asdict(learner.data) if isinstance(learner.data, DataFacts) else None,
        "slots": learner.slots,
        "iterations": learner.iterations,
        "budget": dataclasses.asdict(learner.budget),
        "spend_savings": learner.pace.spend_savings,
        "spending": learner.pace.spending,
        "settings": dataclasses.asdict(learner.settings),
        "seed": learner.seed,
        "device": str(learner.device),
    }
