"""`budgeted table`: what a set of runs came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from budgeted.bench.codec_figure import codec_table, draw_codecs
from budgeted.bench.figures import draw_against_compute, draw_dots, draw_over_stream, refuse_undrawable
from budgeted.bench.steps import markdown_steps
from budgeted.bench.table import Group, as_csv, chosen, group_runs, markdown
from budgeted.bench.table_formats import latex, terminal
from budgeted.cli.console import wide_console
from budgeted.cli.output import refuse_without_folder
from budgeted.cli.runs_asked import asked
from budgeted.errors import BudgetedError


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
    where: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE ...]")] = ()
    """Only runs for which these hold, as in dataset=cifar10 'seed<=3' method!=er; all if not given."""
    rows: tuple[str, ...] = ()
    """Just these rows, by their names in the first column; all if not given."""
    steps: bool = False
    """Print below the table how many training steps fell into each fifth of the stream."""
    csv: Path | None = None
    """Write one line per run here."""
    figure: Path | None = None
    """Draw accuracy over the stream into this file (png, svg, pdf): one panel for up to five rows, a panel for each
    of more."""
    dots: Path | None = None
    """Draw A_AUC and A_last of every row, with intervals over its seeds, into this file."""
    tradeoff: Path | None = None
    """Draw A_AUC against the compute that was executed into this file."""
    codecs: Path | None = None
    """Draw where codecs of the memory pay, over bytes and lengths of the stream, into this file, and print their
    table."""
    format: Literal["auto", "terminal", "markdown", "latex", "csv"] = "auto"
    """A table for the terminal, for Markdown, for LaTeX (booktabs), or one line per run; auto: terminal where there is
    one, Markdown elsewhere."""

    def run_(self) -> None:
        if not self.folders:
            raise BudgetedError("give folders of runs, as in `budgeted table runs`")
        figures = (
            (self.figure, draw_over_stream),
            (self.dots, draw_dots),
            (self.tradeoff, draw_against_compute),
            (self.codecs, draw_codecs),
        )
        refuse_without_folder(self.csv, *(path for path, _ in figures))
        for path, _ in figures:
            if path is not None:
                refuse_undrawable(path)
        groups = chosen(group_runs(asked(self.folders, self.where)), self.rows)
        if self.steps and self.format in ("latex", "csv"):
            raise BudgetedError(f"--steps is printed in a terminal and as Markdown: leave --format {self.format} out")
        self._print(groups)
        if self.steps:
            print(f"\n{markdown_steps(groups)}")
        if self.csv is not None:
            self.csv.write_text(as_csv(groups))
        for path, draw in figures:
            if path is not None:
                draw(groups, path)
        if self.codecs is not None:
            print(codec_table(groups))

    def _print(self, groups: Sequence[Group]) -> None:
        console = wide_console()
        wanted = self.format
        if wanted == "auto":
            wanted = "terminal" if console.is_terminal else "markdown"
        if wanted == "terminal":
            terminal(groups, console, self.ddof, self.against)
        elif wanted == "latex":
            print(latex(groups, self.ddof, self.against))
        else:
            print(as_csv(groups) if wanted == "csv" else markdown(groups, self.ddof, self.against))
