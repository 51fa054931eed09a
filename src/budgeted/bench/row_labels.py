"""Names of the rows of a table: the method, and whatever else its runs do not have in common with the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from budgeted.runs.config import RunConfig
from budgeted.runs.run import DEFAULT_SLOTS

_NOT_A_DIFFERENCE = {"seed", "data", "threads", "download", "checkpoint_every", "keep_checkpoints", "decode_threads",
                     "eval_beside", "usual", "sources"}  # fmt: skip


def row_labels(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each configuration; those that differ in nothing but the seed have the same."""
    configs = _with_changed_habits([_as_meant(config) for config in given])
    keys = sorted({key for config in configs for key in config} - _NOT_A_DIFFERENCE - {"settings", "method"})
    differing = [key for key in keys if len({json.dumps(config.get(key)) for config in configs}) > 1]
    labels = []
    for config in configs:
        extra = [f"{key.removeprefix('set ')}={config[key]}" for key in differing if config.get(key) is not None]
        labels.append(" ".join([config["method"], *extra]))
    versions: dict[str, set[str]] = {}  # of the user's files behind one label
    for label, config in zip(labels, configs, strict=True):
        versions.setdefault(label, set()).add(_version(config))
    return [
        f"{label} {_version(config)}" if len(versions[label]) > 1 else label
        for label, config in zip(labels, configs, strict=True)
    ]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two configurations do not have in common, their methods' habits included; None is what was not given."""
    first, second = (
        {**{f"set {key}": value for key, value in (config.get("usual") or {}).items()}, **_as_meant(config),
         "own files": _version(config) or None}
        for config in (one, other)
    )  # fmt: skip
    keys = [key for key in {**first, **second} if key not in _NOT_A_DIFFERENCE | {"settings"}]
    pairs = {key.removeprefix("set "): (first.get(key), second.get(key)) for key in keys}
    return {key: pairs[key] for key in sorted(pairs, key=lambda key: (key != "method", key)) if _differ(*pairs[key])}


def _differ(one: Any, other: Any) -> bool:
    return json.dumps(one) != json.dumps(other)


def _as_meant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults written out: a value that was typed and the same one left unsaid are one configuration, and so is one
    from before there was such a thing to say. A user's file goes by its name, wherever it lies."""
    meant = {**RunConfig().to_json(), **config, **{f"set {key}": value for key, value in config["settings"].items()}}
    for path in config.get("sources", {}):
        for key, value in meant.items():
            if isinstance(value, str):
                meant[key] = value.replace(f"{path}:", f"{Path(path).name}:")
    if meant["compute"] is None:
        meant["iterations"] = float(1 if meant["iterations"] is None else meant["iterations"])
    if meant["memory"] is None and not meant["unlimited"]:
        meant["slots"] = meant["slots"] or DEFAULT_SLOTS
    return meant


def _with_changed_habits(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a method was usually run with is no difference, unless runs of it had other habits: then it is a setting."""
    habits: dict[str, list[dict[str, str]]] = {}
    for config in configs:
        habits.setdefault(config["method"], []).append(config.get("usual") or {})
    changed = {
        method: [key for key in {key: None for each in found for key in each}
                 if len({each.get(key) for each in found}) > 1]
        for method, found in habits.items()
    }  # fmt: skip
    return [
        {**{f"set {key}": config.get("usual", {}).get(key) for key in changed[config["method"]]}, **config}
        for config in configs
    ]


def _version(config: Mapping[str, Any]) -> str:
    """Of the user's files, by their content: it tells apart what has the same name."""
    return " ".join(sorted(f"{Path(path).name}@{digest[:8]}" for path, digest in config.get("sources", {}).items()))
