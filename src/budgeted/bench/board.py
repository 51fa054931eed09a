"""The record board: most A_AUC at a budget. An entry is a run's records, its command, and its verification.

A folder for each track, in it a folder for each entry, which is a run folder without checkpoints and a
`verification.json`, as `budgeted verify RUN --enter` writes them. An entry counts if that file confirms this very
summary and the run kept to the track's budget; the board is then a matter of sorting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from budgeted.bench.report import command_of
from budgeted.bench.text_tables import markdown_table
from budgeted.budget import parse_bytes
from budgeted.errors import BudgetedError
from budgeted.learner.files import read_json, write_json
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG, SUMMARY, SUMMARY_SEAL, copy_records, read_summary

TRACK, VERIFICATION = "track.json", "verification.json"


@dataclass(frozen=True)
class Entry:
    """One line of the board."""

    track: str
    a_auc: float
    a_last: float
    method: str
    verified: str
    date: str
    command: str
    path: str


def read_board(folder: Path) -> list[Entry]:
    """All entries, by track, the best first; one that does not keep its track's rules is refused by name."""
    if not folder.is_dir():
        raise BudgetedError(f"{folder} is no folder: give the folder of a record board, such as records")
    found = []
    for rules in sorted(folder.glob(f"*/{TRACK}")):
        track = read_json(rules)
        entries = [_entry(place.parent, track) for place in sorted(rules.parent.glob(f"*/{CONFIG}"))]
        found += sorted(entries, key=lambda entry: -entry.a_auc)
    return found


def _entry(path: Path, track: dict[str, Any]) -> Entry:
    summary = read_summary(path / SUMMARY)
    refuse(path, summary, track)
    told = read_json(path / VERIFICATION)
    if not told.get("confirmed") or told.get("weights_sha256") != summary.get("weights_sha256"):
        raise BudgetedError(f"{path} is not confirmed by its {VERIFICATION}: verify this very run, with --enter")
    how = "bit for bit" if told["exact"] else f"within {100 * told['tolerance']:g} %"
    share = f"{told['replayed_samples']:,} of {told['samples']:,} samples"
    return Entry(
        str(track["name"]), float(summary["a_auc"]), float(summary["a_last"]), _parts(summary["config"]),
        f"{how}, {share}", path.name[:10], command_of(summary["config"], path.name), str(path),
    )  # fmt: skip


def enter(run: Path, entry: Path, told: Mapping[str, Any]) -> None:
    """Put a run and what was found on replaying it onto the board, without checkpoints and this machine's folders."""
    check_place(run, entry)
    if not told["confirmed"]:
        raise BudgetedError(f"{run} is not confirmed, and so no entry")
    config = RunConfig.from_mapping(read_summary(run / SUMMARY)["config"], str(run))
    copy_records(run, entry, replace(config, data=None))
    seal = read_json(entry / SUMMARY)[SUMMARY_SEAL]
    write_json(entry / VERIFICATION, {**told, "run": entry.name, SUMMARY_SEAL: seal})


def check_place(run: Path, entry: Path) -> None:
    """One line if the run could not be this entry, before it is replayed."""
    rules = entry.parent / TRACK
    if not rules.is_file():
        raise BudgetedError(f"{entry.parent} is no track of a record board: it has no {TRACK}")
    if entry.exists():
        raise BudgetedError(f"{entry} is there already: give the entry another name")
    refuse(run, read_summary(run / SUMMARY), read_json(rules))


def _parts(config: dict[str, Any]) -> str:
    """The method, and the parts of it that were exchanged."""
    parts = [f"{part} {config[part]}" for part in ("freezing", "retrieval", "codec") if config.get(part)]
    return ", ".join([str(config["method"]), *parts])


def refuse(path: Path, summary: dict[str, Any], track: dict[str, Any]) -> None:
    """One line if the run does not count: another task, or more than the budget."""
    config = summary["config"]
    for key, wanted in track["config"].items():
        if config.get(key) != wanted:
            raise BudgetedError(f"{path} is no entry of this track: {key} is {config.get(key)}, it must be {wanted}")
    most = int(track["compute"]["amount"])
    spent = int(summary["spent"][track["compute"]["rule"]])
    if spent > most:
        raise BudgetedError(f"{path} spent {spent:,} under rule {track['compute']['rule']}, the track allows {most:,}")
    if int(summary["bytes"]) > parse_bytes(str(track["bytes"])):
        raise BudgetedError(f"{path} keeps {summary['bytes']:,} bytes, the track allows {track['bytes']}")


def board_table(entries: Sequence[Entry]) -> str:
    """In Markdown."""
    rows = [
        (each.track, f"{100 * each.a_auc:.2f}", f"{100 * each.a_last:.2f}", each.method, each.verified,
         Path(each.path).name)
        for each in entries
    ]  # fmt: skip
    return markdown_table(("track", "A_AUC %", "A_last %", "method", "verified", "entry"), rows)
