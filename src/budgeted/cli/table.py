"""`budgeted table`: what a set of runs came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.table import as_csv, draw, find_runs, group_runs, markdown


@dataclass(frozen=True)
class Table:
    """Print mean ± sd over seeds of the runs in these folders, with tests between methods.

    Runs that differ in nothing but the seed are one row. With one or two seeds a warning says how many it would take.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR")]
    """Folders of runs, or folders that hold such folders."""
    ddof: int = 1
    """Of the standard deviation: 1 for a sample (default), 0 as in the paper's tables."""
    csv: Path | None = None
    """Write one line per run here."""
    figure: Path | None = None
    """Draw accuracy over the stream into this file (png, svg, pdf)."""
    format: str = "markdown"
    """markdown, or csv to print that instead."""

    def run_(self) -> None:
        groups = group_runs(find_runs(self.folders))
        print(as_csv(groups) if self.format == "csv" else markdown(groups, self.ddof))
        if self.csv is not None:
            self.csv.write_text(as_csv(groups))
        if self.figure is not None:
            draw(groups, self.figure)
