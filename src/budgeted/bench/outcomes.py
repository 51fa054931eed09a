"""What our own runs came to, one row for every configuration: what `budgeted plan --recommend` is fitted to.

The rows are in `outcomes.json` beside this file, so that an installed package has them. `benchmarks/gather_outcomes.py`
writes the file from the runs in `results/`; more runs there make better recommendations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from budgeted import streams
from budgeted.bench import query
from budgeted.bench.table import RunResult
from budgeted.errors import BudgetedError
from budgeted.learner.settings import LearnerSettings
from budgeted.methods import METHODS
from budgeted.replay import CODECS

FILE = "outcomes.json"
LEARNER = ("learning_rate", "optimizer", "average", "average_decay")
HELD_OUT = ("recommended-sweep",)
"""experiments that recommendations are tested on, and so are not made from"""
CHOSEN = ("method", "model", "retrieval", "freezing", "codec", "spend_savings")
"""of a run's configuration: what is chosen, beside batch size and settings; the rest is given"""


@dataclass(frozen=True)
class Outcome:
    """One configuration, over its seeds; means where seeds differ."""

    dataset: str
    classes: int
    shape: tuple[int, ...]
    stream: str
    samples: int
    choice: Mapping[str, Any]
    """what was chosen and is no default"""
    parts: Mapping[str, str]
    """retrieval, freezing and codec by name, the method's own where none was chosen"""
    learner: Mapping[str, str | float]
    """settings of it that matter most, as they were"""
    batch_size: int
    steps: float
    slots: float
    fixed_bytes: float
    """beside the memory"""
    slot_bytes: float
    step_paper: float
    """operations of a step, with everything that was run beside it"""
    step_real: float
    a_auc: tuple[float, ...]
    """of every seed, in points"""
    a_last: tuple[float, ...]
    runs: tuple[str, ...]


def gather(folder: Path) -> list[Outcome]:
    """From all finished runs below a folder that learn classes within bytes as we count them."""
    groups: dict[str, list[RunResult]] = {}
    for run in query.look([folder]).runs:
        config, summary = run.config, run.summary
        if not set(HELD_OUT).isdisjoint(run.path.resolve().relative_to(folder.resolve()).parts):
            continue
        known = streams.known_info(str(config["dataset"]))
        if known is None or known.problem != "classification" or config.get("byte_rule", "real") != "real":
            continue
        if not summary.get("iterations") or not summary.get("bytes_by_item", {}).get("memory"):
            continue
        given = [str(config["dataset"]), str(config["stream"]), summary["samples"], config.get("memory")]
        allowed = [config.get("compute"), config.get("iterations"), config.get("slots"), config.get("unlimited")]
        key = json.dumps([*given, *allowed, _choice(config), _batch(config), config.get("usual")], sort_keys=True)
        groups.setdefault(key, []).append(run)
    return [_row(runs, folder) for _, runs in sorted(groups.items())]


def shipped() -> list[Outcome]:
    """Those that the package brings."""
    rows: list[dict[str, Any]] = json.loads((resources.files("budgeted.bench") / FILE).read_text())
    lists = ("shape", "a_auc", "a_last", "runs")  # which JSON has of tuples
    return [Outcome(**row | {name: tuple(row[name]) for name in lists}) for row in rows]


def as_json(rows: Sequence[Outcome]) -> str:
    """A row a line, so that changes can be read."""
    return "[\n" + ",\n".join(json.dumps(asdict(row), sort_keys=True) for row in rows) + "\n]\n"


def _choice(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {key: value for key, value in (config.get("settings") or {}).items() if key != "learner.batch_size"}
    found = {name: config[name] for name in CHOSEN if config.get(name)}
    return found | ({"settings": settings} if settings else {})


def _batch(config: Mapping[str, Any]) -> int:
    return int((config.get("settings") or {}).get("learner.batch_size", config.get("batch_size", 16)))


def _parts(config: Mapping[str, Any]) -> dict[str, str]:
    method = METHODS[str(config["method"])]
    return {name: str(config.get(name) or getattr(method, name)) for name in ("retrieval", "freezing", "codec")}


def _learner(config: Mapping[str, Any]) -> dict[str, str | float]:
    """As the run had them: said, usual for its method, or the default."""
    said = {**(config.get("usual") or {}), **(config.get("settings") or {})}
    found: dict[str, str | float] = {}
    for name in LEARNER:
        usual = getattr(LearnerSettings(), name)
        found[name] = type(usual)(said.get(f"learner.{name}", usual))
    return found


def _row(runs: Sequence[RunResult], folder: Path) -> Outcome:
    config = runs[0].config
    info = streams.known_info(str(config["dataset"]))
    if info is None:
        raise BudgetedError(f"{config['dataset']} has no facts that are known without its data")
    of_seeds = {int(run.config["seed"]): run for run in reversed(runs)}  # one run may be in several experiments
    by_seed = [of_seeds[seed] for seed in sorted(of_seeds)]
    summaries = [run.summary for run in by_seed]

    def mean(values: Sequence[float]) -> float:
        return round(sum(values) / len(values), 4)

    memory = [each["bytes_by_item"]["memory"] for each in summaries]
    slots = [each["slots"] or each["samples"] for each in summaries]
    parts = _parts(config)
    # slots that differ in bytes take none before they are filled
    taken_by = [
        min(n, each["samples"]) if CODECS[parts["codec"]].varying else n
        for n, each in zip(slots, summaries, strict=True)
    ]
    return Outcome(
        dataset=str(config["dataset"]),
        classes=info.classes,
        shape=tuple(info.input_shape),
        stream=str(config["stream"]),
        samples=int(summaries[0]["samples"]),
        choice=_choice(config),
        parts=parts,
        learner=_learner(config),
        batch_size=_batch(config),
        steps=mean([each["iterations"] for each in summaries]),
        slots=mean(slots),
        fixed_bytes=mean([each["bytes"] - taken for each, taken in zip(summaries, memory, strict=True)]),
        slot_bytes=mean([taken / many for taken, many in zip(memory, taken_by, strict=True)]),
        step_paper=mean([each["spent"]["paper"] / each["iterations"] for each in summaries]),
        step_real=mean([each["spent"]["real"] / each["iterations"] for each in summaries]),
        a_auc=tuple(round(100 * each["a_auc"], 3) for each in summaries),
        a_last=tuple(round(100 * each["a_last"], 3) for each in summaries),
        runs=tuple(run.path.relative_to(folder).as_posix() for run in by_seed),
    )
