"""Save a learner to a folder, load it again, export its model: safetensors and JSON, no pickle."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.learner.learner import Learner
from budgeted.learner.settings import LearnerSettings, Settings
from budgeted.methods import METHODS, Method
from budgeted.problems import Augmentation, DataFacts


def save(learner: Learner, folder: Path) -> None:
    """Write everything that going on needs; an earlier save in the folder is replaced when the new one is whole."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    state.write(learner, fresh, {"learner": _described(learner)})
    if folder.exists():
        if not (folder / state.NUMBERS).exists() and any(folder.iterdir()):
            shutil.rmtree(fresh)
            raise BudgetedError(f"{folder} holds something else than a learner: choose another folder")
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)  # a save is there at every moment, under one name or the other
        fresh.rename(folder)
        shutil.rmtree(old)
        return
    fresh.rename(folder)


def load(folder: Path, model: nn.Module, own_method: Method | None = None) -> Learner:
    """The learner that was saved, around a model built as its model was (the weights are replaced)."""
    tensors, numbers = state.read(folder)
    told = numbers.get("learner")
    if told is None:
        raise state.BadCheckpoint(f"{folder} is a run's checkpoint: go on with it by `budgeted run --resume`")
    name, parts, settings = told["method"], told["parts"], told["settings"]
    if own_method is None and (name not in METHODS or None in parts.values()):
        raise BudgetedError(f"the learner used a method or parts of its own, {name!r}: give it as own_method")
    augmentation = settings["augmentation"]
    compute = told["budget"]["compute"]
    learner = Learner(
        model,
        own_method or dataclasses.replace(METHODS[name](), **parts),
        DataFacts(**{**told["data"], "input_shape": tuple(told["data"]["input_shape"])}),
        slots=told["slots"],
        iterations=told["iterations"],
        budget=Budget(None if compute is None else Compute(**compute), told["budget"]["bytes"]),
        spend_savings=told["spend_savings"],
        spending=told["spending"],
        settings=Settings(
            LearnerSettings(**settings["learner"]),
            None if augmentation is None else Augmentation(**augmentation),
            *(settings[part] for part in ("method", "selection", "retrieval", "freezing", "codec")),
        ),
        seed=told["seed"],
        device=told["device"],
    )
    state.restore(learner, tensors, numbers)
    return learner


def export(learner: Learner, path: Path) -> None:
    """Write the trained model: weights to PATH.safetensors, classes and normalisation to PATH.json."""
    weights = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in learner.model.state_dict().items()}
    save_file(weights, path.with_suffix(".safetensors"))
    facts = {
        "classes": learner.class_labels,
        "input_shape": list(learner.data.input_shape),
        "mean": list(learner.data.mean),
        "std": list(learner.data.std),
        "note": "row i of the head is class classes[i]; inputs are uint8 / 255, minus mean, over std",
    }
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


def _described(learner: Learner) -> dict[str, Any]:
    """How the learner was built."""
    chosen = {part: getattr(learner.method, part) for part in ("selection", "retrieval", "freezing", "codec")}
    return {
        "method": learner.method.name,
        "parts": {part: name if isinstance(name, str) else None for part, name in chosen.items()},
        "data": dataclasses.asdict(learner.data),
        "slots": learner.slots,
        "iterations": learner.iterations,
        "budget": dataclasses.asdict(learner.budget),
        "spend_savings": learner.pace.spend_savings,
        "spending": learner.pace.spending,
        "settings": dataclasses.asdict(learner.settings),
        "seed": learner.seed,
        "device": str(learner.device),
    }
