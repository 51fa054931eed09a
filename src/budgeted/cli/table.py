"""`budgeted table`: what a set of runs came to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.figures import draw_against_compute, draw_over_stream
from budgeted.bench.table import as_csv, chosen, find_runs, group_runs, markdown
from budgeted.errors import BudgetedError, UnknownName


@dataclass(frozen=True)
class Table:
    """Print mean ± sd over seeds of the runs in these folders, with tests between methods.

    Runs that differ in nothing but the seed are one row; the best is first. With one or two seeds a warning says how
    many it would take.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    """Folders of runs, or folders that hold such folders."""
    ddof: int = 1
    """Of the standard deviation: 1 for a sample (default), 0 as in the paper's tables."""
    against: str | None = None
    """Test every row against this one, such as vanilla; the best row against every other if not given."""
    rows: tuple[str, ...] = ()
    """Just these rows, by their names in the first column; all if not given."""
    csv: Path | None = None
    """Write one line per run here."""
    figure: Path | None = None
    """Draw accuracy over the stream into this file (png, svg, pdf)."""
    tradeoff: Path | None = None
    """Draw A_AUC against the compute that was executed into this file."""
    format: str = "markdown"
    """Print a table (markdown), or one line per run (csv)."""

    def run_(self) -> None:
        if self.format not in ("markdown", "csv"):
            raise UnknownName("format", self.format, ("markdown", "csv"))
        groups = chosen(group_runs(find_runs(self.folders)), self.rows)
        print(as_csv(groups) if self.format == "csv" else markdown(groups, self.ddof, self.against))
        if self.csv is not None:
            _writable(self.csv).write_text(as_csv(groups))
        if self.figure is not None:
            draw_over_stream(groups, _writable(self.figure))
        if self.tradeoff is not None:
            draw_against_compute(groups, _writable(self.tradeoff))


def _writable(path: Path) -> Path:
    if not path.parent.is_dir():
        raise BudgetedError(f"cannot write {path}: there is no folder {path.parent}")
    return path
