"""Runs as rows to ask for: found under folders, flattened, chosen by conditions, gathered into tables that compare.

Everything that shows results (tables, the report, the page) asks here, so that all of them see the same runs. A folder
of any age is read: what a run did not record yet is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budgeted.bench.table import Group, RunResult, group_runs
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner.files import named
from budgeted.registry import short
from budgeted.runs.folder import CONFIG, SUMMARY, read_summary
from budgeted.runs.run import DEFAULT_SLOTS

if TYPE_CHECKING:
    from budgeted.bench.database import Database

RESULTS = (
    "a_auc", "a_last", "f_last", "klr", "kgr", "frozen_share", "iterations", "samples", "slots", "bytes",
    "train_seconds", "eval_seconds",
)  # fmt: skip
_CONDITION = re.compile(r"([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Found:
    """Finished runs, those that are not finished yet, and folders that cannot be read, each with its reason."""

    runs: tuple[RunResult, ...]
    unfinished: tuple[Path, ...]
    unreadable: tuple[str, ...]


def look(folders: Sequence[Path]) -> Found:
    """All runs in these folders or below them, in the order of their paths; one that is damaged hides no other."""
    runs: dict[Path, RunResult] = {}
    unfinished, unreadable = [], []
    for folder in folders:
        if not folder.is_dir():
            raise BudgetedError(f"{folder} is no folder: give folders of runs")
        for config in named(folder, CONFIG):
            place = config.parent
            if place.resolve() in runs:
                continue
            if not (place / SUMMARY).exists():
                unfinished.append(place)
                continue
            try:
                runs[place.resolve()] = RunResult(place, read_summary(place / SUMMARY))
            except BudgetedError as error:
                unreadable.append(str(error))
    return Found(tuple(runs.values()), tuple(unfinished), tuple(unreadable))


def row(run: RunResult) -> dict[str, Any]:
    """One run as a flat row: its configuration, its settings by name, and what came of it."""
    config, summary = run.config, run.summary
    flat = {key: value for key, value in config.items() if key not in ("settings", "sources", "usual")}
    flat |= dict(config.get("settings") or {})
    flat |= {key: summary.get(key) for key in RESULTS}
    flat |= {"spent_paper": summary["spent"]["paper"], "spent_real": summary["spent"]["real"]}
    return {"path": str(run.path), **flat, "budget": budget_of(config), "machines": run.machines}


def budget_of(config: Mapping[str, Any]) -> str:
    """Compute and memory in words: what a run was allowed."""
    iterations = config.get("iterations")
    compute = config.get("compute") or f"{1 if iterations is None else iterations:g} it/sample"
    slots = "all stored" if config.get("unlimited") else f"{config.get('slots') or DEFAULT_SLOTS} slots"
    return f"{compute}, {config.get('memory') or slots}"


def where(runs: Sequence[RunResult], conditions: Sequence[str]) -> list[RunResult]:
    """Those for which all conditions hold: `dataset=cifar10`, `seed<=3`, `retrieval.temperature=0.5`."""
    if not conditions:
        return list(runs)
    database = database_of(runs)
    parsed = []
    for text in conditions:
        match = _CONDITION.fullmatch(text.strip())
        if match is None:
            raise BudgetedError(f"{text!r} is no condition: write KEY=VALUE, or another of != < <= > >=")
        key, sign, value = match.groups()
        if key not in database.columns:
            raise UnknownName("key of a run", key, database.columns)
        parsed.append((key, sign, value))
    return [runs[place] for place in database.where(parsed)]


def database_of(runs: Sequence[RunResult]) -> Database:
    """For SQL over these runs and their records."""
    from budgeted.bench.database import Database  # a tenth of a second, for whoever asks

    return Database([row(run) for run in runs])


# -- tables that compare --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """Runs that can stand in one table: of one experiment, on one data set, in one order."""

    name: str
    """a folder's name for it"""
    title: str
    groups: tuple[Group, ...]

    @property
    def config(self) -> dict[str, Any]:
        """Of the first run: for what all have in common."""
        return self.groups[0].runs[0].config


def sections(runs: Sequence[RunResult], folders: Sequence[Path]) -> list[Section]:
    """An experiment is a folder that holds runs; data set and stream part it further."""
    apart: dict[tuple[str, str, str], list[RunResult]] = {}
    for run in runs:
        key = (experiment_of(run.path, folders), short(str(run.config["dataset"])), str(run.config["stream"]))
        apart.setdefault(key, []).append(run)
    found: list[Section] = []
    for experiment, dataset, stream in sorted(apart):
        title = f"{experiment + ': ' if experiment else ''}{dataset}, {stream} stream"
        name = _plain("-".join(part for part in (experiment, dataset, stream) if part))
        taken = {section.name for section in found}
        unique = next(each for each in (name, *(f"{name}-{n}" for n in range(2, 10**6))) if each not in taken)
        found.append(Section(unique, title, tuple(group_runs(apart[experiment, dataset, stream]))))
    return found


def experiment_of(path: Path, folders: Sequence[Path]) -> str:
    """The folder around the run, as seen from the folder that was asked for; of several, as seen from around them."""
    roots = list(dict.fromkeys(folder.resolve() for folder in folders))
    for root in roots:
        try:
            inside = path.resolve().parent.relative_to(root)
        except ValueError:
            continue
        parts = (*(_apart(root, roots) if len(roots) > 1 else ()), *inside.parts)
        return "/".join(parts)
    return ""


def _apart(root: Path, roots: Sequence[Path]) -> tuple[str, ...]:
    """The folder's name, with as many of those around it as tell it from others of the same name."""
    alike = [other.parts for other in roots if other.name == root.name and other != root]
    length = next(n for n in range(1, len(root.parts) + 1) if all(other[-n:] != root.parts[-n:] for other in alike))
    return root.parts[-length:]


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "runs"
