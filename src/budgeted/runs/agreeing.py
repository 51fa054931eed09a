"""Do two states, two lists of records, two summaries say the same? Bit for bit, or within a tolerance.

A wall clock repeats itself for nobody: seconds, sittings and peak memory are left out everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

State = tuple[Mapping[str, Tensor], Mapping[str, Any]]
"""tensors and numbers, as a checkpoint has them"""

#: Of a checkpoint: times, and what tells of the file and not of the learner. Records are compared one by one.
_ASIDE = {
    "wait_seconds", "train_seconds", "train_cpu_seconds", "eval_seconds", "codec_seconds", "sittings", "executed",
    "environments", "records",
    "tensors_file", "tensors_bytes", "tensors_sha256", "numbers_sha256", "format", "log",
}  # fmt: skip
UNREPEATABLE = (
    "train_seconds", "train_cpu_seconds", "eval_seconds", "codec_seconds", "wait_seconds", "peak_memory",
    "executed_steps", "sittings",
    "working_bytes",  # of indices, whose room depends on how they came to be
)  # fmt: skip
"""of a summary: what no replay can confirm"""
_SUMMARY_ASIDE = {*UNREPEATABLE, "environments", "config", "summary_sha256"}
_SHOWN = 4  # names in a line


def exact_states(recorded: State, replayed: State) -> Iterator[str]:
    """What differs between a checkpoint and the state that a replay came to, in words."""
    names = sorted(name for name in {*recorded[0], *replayed[0]} if not name.startswith("log."))
    other = [name for name in names if not _same_bits(recorded[0].get(name), replayed[0].get(name))]
    if other:
        yield f"{len(other)} of {len(names)} tensors have other bits ({_some(other)})"
    one, two = _told(recorded[1]), _told(replayed[1])
    if differing := [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]:
        yield f"other {_some(differing)}"


def exact_records(recorded: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len(recorded) != len(replayed):
        yield f"{len(recorded)} records, where the replay made {len(replayed)}"
    for one, two in zip(recorded, replayed, strict=False):
        keys = sorted({*one, *two} - {"seconds"})
        if differing := [key for key in keys if _text(one.get(key)) != _text(two.get(key))]:
            shown = f": accuracy {one.get('accuracy')}, replayed {two.get('accuracy')}" * ("accuracy" in differing)
            yield f"the record after {one.get('samples')} samples has other {_some(differing)}{shown}"


def exact_summaries(recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> Iterator[str]:
    """What an older version did not write yet is not asked for."""
    keys = sorted({*recorded} - _SUMMARY_ASIDE)
    for key in keys:
        if _text(recorded[key]) != _text(json.loads(json.dumps(replayed.get(key)))):
            shown = f": {recorded[key]}, replayed {replayed.get(key)}" * isinstance(recorded[key], int | float)
            yield f"the summary has another {key}{shown}"


# -- where sums come out otherwise ----------------------------------------------------------------------------------


def near_states(recorded: State, replayed: State, began: State, tolerance: float) -> Iterator[str]:
    """Weights may be off by `tolerance` of the way that they came in the stretch, what was spent by as much of it.

    Classes, position, data, stream and configuration are no sums: they must be the same. Of the memory and of what a
    method keeps, nothing is asked: a choice that hangs on the last bit of a loss may fall the other way.
    """
    way = _distance(recorded[0], began[0])
    off = _distance(recorded[0], replayed[0])
    if not off <= tolerance * way:
        yield f"the weights are off by {_share(off, way)} of the way that they came in the stretch"
    for name in ("method", "class_labels", "arrived", "config", "data", "stream", "plan", "position", "bad"):
        if _text(recorded[1].get(name)) != _text(json.loads(json.dumps(replayed[1].get(name)))):
            yield f"other {name}"
    before, one, two = (_spent(each[1]) for each in (began, recorded, replayed))
    if abs(one - two) > tolerance * max(two - before, 1):
        yield f"spent {one - before:,}, replayed {two - before:,} (rule real)"


def near_records(
    recorded: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]], tolerance: float
) -> Iterator[str]:
    """Counts of samples and steps are the same; accuracies are within the tolerance, as a share of all test images."""
    if len(recorded) != len(replayed):
        yield f"{len(recorded)} records, where the replay made {len(replayed)}"
    for one, two in zip(recorded, replayed, strict=False):
        same = all(one.get(key) == two.get(key) for key in ("samples", "steps", "periodic", "total"))
        near = abs(float(one["accuracy"]) - float(two["accuracy"])) <= tolerance and one["total"] == two["total"]
        if not same or not near:
            yield f"the record after {one.get('samples')} samples: accuracy {one['accuracy']:.4f}, replayed " + (
                f"{two['accuracy']:.4f}" + ("" if same else ", and other counts")
            )


def near_summaries(recorded: Mapping[str, Any], replayed: Mapping[str, Any], tolerance: float) -> Iterator[str]:
    for key in ("a_auc", "a_last"):
        if abs(float(recorded[key]) - float(replayed[key])) > tolerance:
            yield f"the summary has another {key}: {recorded[key]}, replayed {replayed[key]}"
    for key in ("samples", "iterations", "slots", "seed", "method"):
        if recorded.get(key) != replayed.get(key):
            yield f"the summary has another {key}: {recorded.get(key)}, replayed {replayed.get(key)}"
    one, two = float(recorded["spent"]["real"]), float(replayed["spent"]["real"])
    if abs(one - two) > tolerance * max(two, 1):
        yield f"the summary has another compute: {one:,.0f}, replayed {two:,.0f} (rule real)"


# -- of tensors and numbers ------------------------------------------------------------------------------------------


def _same_bits(one: Tensor | None, two: Tensor | None) -> bool:
    if one is None or two is None or one.dtype != two.dtype or one.shape != two.shape:
        return False
    # a single element may have any stride, and then cannot be viewed as bytes
    bits = [each.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8) for each in (one, two)]
    return torch.equal(*bits)


def _distance(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """Between the weights of two states; rows that the other does not have come from 0."""
    square = 0.0
    for name, tensor in one.items():
        if name.startswith("model.") and tensor.is_floating_point():
            other = two.get(name)
            apart = tensor.double()
            if other is not None and other.shape == tensor.shape:
                apart = apart - other.double()
            square += float(apart.square().sum())
    return math.sqrt(square)


def _told(numbers: Mapping[str, Any]) -> dict[str, str]:
    """What a checkpoint says of the learner, as text: by name, with the ledger's own clock taken out."""
    found = {name: value for name, value in numbers.items() if name not in _ASIDE}
    ledger = found.get("ledger")
    if isinstance(ledger, Mapping):
        found["ledger"] = {name: value for name, value in ledger.items() if name != "seconds"}
    return {name: _text(json.loads(json.dumps(value))) for name, value in found.items()}


def _spent(numbers: Mapping[str, Any]) -> int:
    return sum(int(real) for _, real in numbers["ledger"]["spent"].values())


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # nan is nan here


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3g} %" if whole > 0 else "more than nothing"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
