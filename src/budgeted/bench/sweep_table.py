"""One live table of a sweep: what is at work, how far it is, what it has come to, and how long it may take yet.

Everything is read from the run folders, so that it says the same of runs on this machine, on a cluster, or of another
sweep.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table

from budgeted import streams
from budgeted.bench.sweep import Place
from budgeted.bench.text_tables import counted
from budgeted.budget import format_compute
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import RECORDS, SUMMARY, RunFolder
from budgeted.runs.records import read_records

_ORDER = ("at work", "failed", "finished", "waiting")


@dataclass(frozen=True)
class Seen:
    """One run as its folder shows it."""

    name: str
    state: str
    samples: int
    of: int | None
    """samples of its stream, where that is known without its data"""
    a_auc: float | None = None
    """so far"""
    spent: int | None = None

    @property
    def share(self) -> float:
        if self.state == "finished":
            return 1.0
        return min(1.0, self.samples / self.of) if self.of else 0.0

    def cells(self) -> Iterator[str]:
        yield from (self.name, self.state, f"{self.samples:,}" if self.of is None else f"{self.share:.0%}")
        yield "" if self.a_auc is None else f"{100 * self.a_auc:.1f}"
        yield "" if self.spent is None else format_compute(self.spent, "real")


class SweepTable:
    """Rendered anew whenever it is drawn."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._failed: set[Path] = set()
        self._done: dict[Path, Seen] = {}  # which do not change any more
        self._lengths = {place.folder: length(place.config) for place in places}
        self._began = time.monotonic()
        self._share_then = self._share(self.seen())

    def ended(self, place: Place, error: str | None) -> None:
        if error is not None:
            self._failed.add(place.folder)

    def seen(self) -> list[Seen]:
        found = [self._look(place.folder) for place in self._places]
        return sorted(found, key=lambda run: (_ORDER.index(run.state), -run.share, run.name))

    def seconds_left(self, seen: Sequence[Seen]) -> float | None:
        """At the pace of this sweep so far; None while nothing has moved, and when nothing is left."""
        now, ahead = self._share(seen), sum(1 - run.share for run in seen if run.state != "failed")
        if now <= self._share_then or not ahead:
            return None
        return (time.monotonic() - self._began) * ahead / (now - self._share_then)

    def _share(self, seen: Sequence[Seen]) -> float:
        return sum(run.share for run in seen)

    def _look(self, folder: Path) -> Seen:
        if folder in self._done:
            return self._done[folder]
        state = "waiting"
        if (folder / SUMMARY).exists():
            state = "finished"
        elif folder in self._failed:
            state = "failed"
        elif RunFolder(folder).busy():
            state = "at work"
        of = self._lengths[folder]
        try:
            records = [record for record in read_records(folder / RECORDS) if record["periodic"]]
        except (BudgetedError, KeyError):  # not begun, or just being written
            records = []
        if not records:
            return Seen(folder.name, state, 0, of)
        a_auc = sum(record["accuracy"] for record in records) / len(records)
        found = Seen(folder.name, state, records[-1]["samples"], of, a_auc, records[-1]["spent"]["real"])
        if state == "finished":
            self._done[folder] = found
        return found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seen = self.seen()
        line = self.line(seen)
        room = max(8, options.max_height - 2)  # lines; what is higher than the terminal would lose the last ones
        rows = min(len(seen), room)
        while rows > 1 and len(console.render_lines(_drawn(seen, rows, line), options)) > room:
            rows -= 1
        yield _drawn(seen, rows, line)

    def line(self, seen: Sequence[Seen]) -> str:
        states = Counter(run.state for run in seen)
        left = self.seconds_left(seen)
        counts = ", ".join(f"{states[state]} {state}" for state in _ORDER if states[state])
        spent = sum(run.spent or 0 for run in seen)
        ahead = "" if left is None else f"; about {said_time(left)} left"
        return f"{counted(len(seen), 'run')}: {counts}; {format_compute(spent, 'real')} spent{ahead}"


def _drawn(seen: Sequence[Seen], rows: int, line: str) -> Group:
    """So many rows, how many more there are, and what they come to."""
    # all of it fits 80 columns with names of up to 42 letters; longer ones take a second line
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("run", overflow="fold")
    for heading in ("state", "seen", "so far\nA_AUC, %", "spent\n(rule real)"):
        table.add_column(heading, no_wrap=True)
    for run in seen[:rows]:
        table.add_row(*run.cells())
    left_out = Counter(run.state for run in seen[rows:])
    if not left_out:
        return Group(table, line)
    more = ", ".join(f"{left_out[state]} {state}" for state in _ORDER if left_out[state])
    return Group(table, f"(not shown: {more})", line)


def length(config: RunConfig) -> int | None:
    """Samples of a run's stream, as far as that is known without its data."""
    known = streams.known_info(config.dataset)
    whole = None if known is None else known.train_size
    if config.limit is None or whole is None:
        return config.limit or whole
    return min(config.limit, whole)


def said_time(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
