"""What the page shows, as plain JSON: rows (a configuration over its seeds), runs, curves, and the record board.

Curves are whole numbers, hundredths of a percent, over grids of samples that many runs share: a thousand runs of fifty
evaluations are half a megabyte.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from budgeted import __version__
from budgeted.bench.board import Entry
from budgeted.bench.published_accuracy import printed_for, printed_row
from budgeted.bench.query import Found, Section, budget_of, experiment_of, sections
from budgeted.bench.report import command_of
from budgeted.bench.row_labels import row_labels
from budgeted.bench.table import Group, RunResult, rests
from budgeted.bench.text_tables import counted
from budgeted.errors import BudgetedError
from budgeted.registry import short
from budgeted.runs.folder import CONFIG, RECORDS, read_config
from budgeted.runs.records import read_records
from budgeted.runs.statistics import rank

_NOT_SHOWN = ("seed", "data", "download", "settings", "sources", "usual")


class _Pool:
    """Equal things once, by their number."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[str, int] = {}

    def number(self, item: Any) -> int:
        key = json.dumps(item)
        if key not in self._known:
            self._known[key] = len(self.items)
            self.items.append(item)
        return self._known[key]


def page_data(
    found: Found,
    runs: Sequence[RunResult],
    folders: Sequence[Path],
    *,
    board: Sequence[Entry] = (),
    command: str = "",
    live: bool = False,
) -> dict[str, Any]:
    """Everything; with `live` also runs that are not finished, as far as they are."""
    grids, configs = _Pool(), _Pool()
    rows: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for section in sections(runs, folders):
        marks = _marks(section)
        for group in section.groups:
            first = group.runs[0]
            places = range(len(shown), len(shown) + len(group.runs))
            shown += [_finished(run, grids) for run in group.runs]
            rows.append(
                {
                    **_row(first.path, first.config, folders, configs),
                    "label": group.label,
                    "runs": list(places),
                    "marks": {metric: marks[metric].get(group.label, "") for metric in marks},
                    "printed": _printed(group),
                    "rests": rests(group),
                    "running": None,
                }
            )
    under_way = [(path, one) for path in found.unfinished if live and (one := _unfinished(path, grids)) is not None]
    labels = _labels_beside(runs, [(path, config) for path, (_, _, config) in under_way], folders)
    for label, (path, (row, run, config)) in zip(labels, under_way, strict=True):
        rows.append(row | {**_row(path, config, folders, configs), "label": label, "runs": [len(shown)]})
        shown.append(run)
    more = f", {len(found.unfinished)} not finished" if found.unfinished else ""
    damaged = f", {len(found.unreadable)} that cannot be read" if found.unreadable else ""
    return {
        "about": f"{counted(len(runs), 'finished run')}{more}{damaged}.",
        "made": f"Made by budgeted {__version__}{f': {command}' if command else ''}. Everything here follows "
        "from the run folders alone.",
        "live": live,
        "rows": rows,
        "runs": shown,
        "grids": grids.items,
        "configs": configs.items,
        "board": [asdict(entry) for entry in board],
    }


def _row(path: Path, config: Mapping[str, Any], folders: Sequence[Path], configs: _Pool) -> dict[str, Any]:
    told = {key: value for key, value in config.items() if key not in _NOT_SHOWN and value not in (None, "", False)}
    return {
        "experiment": experiment_of(path, folders),
        "method": short(str(config["method"])),
        "dataset": short(str(config["dataset"])),
        "stream": config["stream"],
        "model": config.get("model") or "",
        "budget": budget_of(config),
        "config": configs.number({**told, **(config.get("settings") or {})}),
    }


def _finished(run: RunResult, grids: _Pool) -> dict[str, Any]:
    summary = run.summary
    try:
        records = run.periodic_records()
    except BudgetedError:  # its numbers stand in the summary; its curve cannot be trusted
        records = []
    return {
        "path": str(run.path),
        "seed": int(run.config["seed"]),
        **{key: summary[key] for key in ("a_auc", "a_last", "f_last", "bytes")},
        "steps": summary["iterations"],
        "paper": summary["spent"]["paper"],
        "real": summary["spent"]["real"],
        "frozen": summary["frozen_share"],
        "seconds": summary["train_seconds"],
        "machines": run.machines,
        "spent_on": {name: cost[1] for name, cost in summary.get("spent_on", {}).items()},
        "bytes_by_item": summary.get("bytes_by_item", {}),
        "command": command_of(run.config, run.path.name),
        **_curve(records, grids),
    }


def _unfinished(path: Path, grids: _Pool) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
    """A run as far as it is: a row without a name, its numbers so far, and its configuration; None before the first."""
    try:
        config = read_config(path / CONFIG)
        records = [record for record in read_records(path / RECORDS) if record["periodic"]]
    except (BudgetedError, KeyError):
        return None
    if not records:
        return None
    last = records[-1]
    run = {
        "path": str(path),
        "seed": int(config["seed"]),
        "a_auc": sum(record["accuracy"] for record in records) / len(records),
        "a_last": last["accuracy"],
        "f_last": None,
        "bytes": last["bytes"],
        "steps": last["steps"],
        "paper": last["spent"]["paper"],
        "real": last["spent"]["real"],
        "frozen": last["frozen_share"],
        "seconds": last["seconds"]["train"],
        "machines": 1,
        "spent_on": {name: cost[1] for name, cost in last["spent_on"].items()},
        "bytes_by_item": {},
        "command": command_of(config, path.name),
        **_curve(records, grids),
    }
    row = {
        "marks": {"a_auc": "", "a_last": ""},
        "printed": None,
        "rests": "",
        "running": f"{last['samples']:,} samples so far",
    }
    return row, run, config


def _labels_beside(
    runs: Sequence[RunResult], under_way: Sequence[tuple[Path, dict[str, Any]]], folders: Sequence[Path]
) -> list[str]:
    """Names of rows that are under way: what tells them from one another and from the finished ones of their table."""
    configs = [(run.path, run.config) for run in runs] + list(under_way)
    tables = [(experiment_of(path, folders), str(config["dataset"]), str(config["stream"])) for path, config in configs]
    labels = [""] * len(configs)
    for table in set(tables):
        places = [place for place, other in enumerate(tables) if other == table]
        for place, label in zip(places, row_labels([configs[place][1] for place in places]), strict=True):
            labels[place] = label
    return labels[len(runs) :]


def _curve(records: Sequence[Mapping[str, Any]], grids: _Pool) -> dict[str, Any]:
    return {
        "grid": grids.number([int(record["samples"]) for record in records]),
        "curve": [round(10_000 * float(record["accuracy"])) for record in records],
    }


def _marks(section: Section) -> dict[str, dict[str, str]]:
    """Best, and not significantly worse, as in the tables."""
    found = {}
    for metric in ("a_auc", "a_last"):
        ranked = rank({group.label: group.values(metric) for group in section.groups})
        found[metric] = {row.method: row.mark if row.mark in ("best", "tied") else "" for row in ranked}
    return found


def _printed(group: Group) -> dict[str, Any] | None:
    config = group.runs[0].config
    table, row = printed_for(config), printed_row(config)
    if table is None or row is None:
        return None
    return {**asdict(row), "source": table.source, "same_size": table.same_size(config)}
