"""`budgeted demo`: the program at work on the embedded digits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.progress import Progress
from rich.table import Table

from budgeted.bench.freezing_comparison import ComparisonSettings, PolicyRun, compare, write
from budgeted.budget import format_compute
from budgeted.cli.blocks import Blocks
from budgeted.cli.console import wide_console


@dataclass(frozen=True)
class Demo:
    """Show prices, then train on the embedded digits with every freezing policy: table and plot of what was spent."""

    settings: ComparisonSettings = field(default_factory=ComparisonSettings)
    """The run that every policy makes."""
    out: Path = Path("demo")
    """Folder for the record and the figure."""

    def run(self) -> None:
        Blocks(self.settings.model, input="1x8x8").run()
        console = wide_console()
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("training", total=5 * self.settings.steps)

            def report(policy: str, step: int) -> None:
                progress.update(task, advance=1, description=f"training, freezing {policy}")

            runs = compare(self.settings, report)
        console.print(_table(runs))
        figure = write(runs, self.settings, self.out)
        console.print(f"figure: {figure}   record: {figure.with_suffix('.json')}", highlight=False)


def _table(runs: list[PolicyRun]) -> Table:
    table = Table(
        title="The same run under every freezing policy", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for column in ("freezing", "accuracy", "rule paper", "rule real", "executed / charged", "CPU seconds"):
        table.add_column(column, justify="left" if column == "freezing" else "right")
    full = runs[0]
    for run in runs:
        table.add_row(
            run.policy,
            f"{100 * run.accuracy:.1f} %",
            format_compute(run.paper, "paper"),
            f"{format_compute(run.real, 'real')} ({100 * run.real / full.real:.0f} %)",
            f"{run.executed_over_charged:.4f}",
            f"{run.seconds:.2f} ({100 * run.seconds / full.seconds:.0f} %)",
        )
    return table
