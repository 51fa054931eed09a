"""`budgeted report`: tables, tests and figures of all runs in a folder, into one folder or one page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from budgeted.bench.board import read_board
from budgeted.bench.page import page
from budgeted.bench.page_data import page_data
from budgeted.bench.query import Found, look, where
from budgeted.bench.report import write_report
from budgeted.bench.table import RunResult
from budgeted.bench.text_tables import counted
from budgeted.cli.output import Forgiving, refuse_without_folder
from budgeted.errors import BudgetedError
from budgeted.learner.files import replace_file


@dataclass(frozen=True)
class Report:
    """Write tables (Markdown, CSV, LaTeX), tests by seed and figures of all runs below these folders into one folder.

    Example: budgeted report results --out report. One part for each experiment, data set and stream; the paper's
    printed values stand beside ours where they exist.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    """Folders of runs, or folders that hold such folders; of any age."""
    out: Path | None = None
    """Folder to write into; `report` if not given, none if --html is."""
    html: Path | None = None
    """Write one page that opens offline into this file: filters, charts, the runs behind every number."""
    records: Path | None = None
    """With --html: folder of a record board to show."""
    where: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE ...]")] = ()
    """Only runs for which these hold, as in dataset=cifar10 'seed<=3' method!=er; all if not given."""
    against: str | None = None
    """Test every row against this one; every other row against the best if not given."""
    ddof: int = 1
    """Of the standard deviation: 1 for a sample, 0 as in the paper's tables."""
    figures: Literal["svg", "pdf", "png", "none"] = "svg"
    """Kind of the figures; none leaves them out."""

    def run_(self) -> None:
        if not self.folders:
            raise BudgetedError("give folders of runs, as in `budgeted report results`")
        refuse_without_folder(self.html, example="page.html")
        found = look(self.folders)
        runs = where(found.runs, self.where)
        shown = Forgiving()
        command = shlex.join(["budgeted", "report", *sys.argv[2:]]) if sys.argv[1:2] == ["report"] else ""
        if self.html is not None:
            self._write_page(found, runs, command)
            if self.out is None:
                return
        written = write_report(
            found, runs, self.folders, self.out or Path("report"), ddof=self.ddof, against=self.against,
            figures=self.figures, command=command, said=lambda line: print(line, file=shown),
        )  # fmt: skip
        for line in written.left_out:
            print(f"left out: {line}", file=shown)
        print(f"{len(written.files)} files in {written.folder}: begin with {written.folder / 'report.md'}")

    def _write_page(self, found: Found, runs: Sequence[RunResult], command: str) -> None:
        assert self.html is not None
        board = [] if self.records is None else read_board(self.records)
        if not runs and not board:
            raise BudgetedError("there is no finished run to show: finish one, or ask for other conditions")
        text = page(page_data(found, runs, self.folders, board=board, command=command)).encode()
        replace_file(self.html, text)
        for line in found.unreadable:
            print(f"left out: {line}", file=Forgiving())
        print(f"{counted(len(runs), 'run')} in {self.html} ({len(text) / 1e6:.1f} MB): open it in a browser")
