"""`budgeted demo`: the program at work on the embedded digits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from budgeted.bench.drawing import refuse_without_matplotlib
from budgeted.bench.freezing_comparison import ComparisonSettings, PolicyRun, compare, write
from budgeted.bench.multimodal_demo import MultimodalDemo
from budgeted.bench.multimodal_demo import run_demo as run_multimodal
from budgeted.bench.page import page
from budgeted.bench.page_data import page_data
from budgeted.bench.query import look
from budgeted.bench.stream_demo import SAYS, StreamDemo, draw, findings, run_demo, unwatched
from budgeted.bench.table import Group
from budgeted.budget import format_compute
from budgeted.cli.blocks import Blocks
from budgeted.cli.console import wide_console
from budgeted.errors import BudgetedError
from budgeted.learner.files import replace_file
from budgeted.runs.run import Progress as RunProgress
from budgeted.runs.statistics import format_mean_sd, summarise


@dataclass(frozen=True)
class Demo:
    """Show the program at work on the embedded digits: three learners at one budget; a table, a picture and a page.

    With --part freezing: prices, and one short training run under every freezing policy. With --part multimodal: a tiny
    LLaVA with LoRA on drawn questions over pictures, with and without freezing.
    """

    part: Literal["stream", "freezing", "multimodal"] = "stream"
    """Three learners on a stream, the freezing policies alone, or LLaVA on a stream of questions."""
    stream: StreamDemo = field(default_factory=StreamDemo)
    """The runs on the stream."""
    freezing: ComparisonSettings = field(default_factory=ComparisonSettings)
    """The run that every freezing policy makes."""
    multimodal: MultimodalDemo = field(default_factory=MultimodalDemo)
    """The runs on questions."""
    out: Path = Path("demo")
    """Folder for the runs, the records and the figures."""

    def run_(self) -> None:
        {"stream": self._stream, "freezing": self._freezing, "multimodal": self._multimodal}[self.part]()

    def _stream(self) -> None:
        refuse_without_matplotlib()
        console = wide_console()
        everything = len(self.stream.learners) * len(self.stream.seeds) * self.stream.limit
        print(f"{self.stream.limit} digits arrive once. Every learner may spend {self.stream.compute} and keep "
              f"{self.stream.memory}, its network included:")  # fmt: skip
        print("\n".join(f"{name:9} {SAYS[name]}" for name in self.stream.learners))
        with _bar(console) as bar:
            task = bar.add_task("", total=everything)

            def report(name: str, progress: RunProgress) -> None:
                bar.update(task, advance=1, description=f"{name}: accuracy {100 * progress.accuracy:.0f} %")

            with _quiet():
                groups = run_demo(self.stream, self.out, report)
        console.print(_learners(groups))
        print("\n".join(findings(groups, self.out)))
        figure = self.out / "demo.png"
        draw(groups, figure)
        print(f"picture   {figure}\npage      {self._page()}")

    def _page(self) -> str:
        """One page of all runs here, which opens offline; where its program is not installed, how to get it."""
        path = self.out / "demo.html"
        found = look([self.out])
        try:
            text = page(page_data(found, found.runs, [self.out], command="budgeted demo"))
        except BudgetedError as error:
            return str(error)
        replace_file(path, text.encode())
        return f"{path}: open it in a browser"

    def _multimodal(self) -> None:
        logging.basicConfig(level=logging.WARNING, format="budgeted: %(message)s")
        with _bar(wide_console()) as bar:
            task = bar.add_task("")

            def report(policy: str, progress: RunProgress) -> None:
                shown = f"freezing {policy}: accuracy {100 * progress.accuracy:.0f} %"
                bar.update(task, completed=progress.samples, total=progress.of_samples, description=shown)

            lines = run_multimodal(self.multimodal, self.out, report)
        print("\n".join(lines))
        print(f"runs: {self.out}")

    def _freezing(self) -> None:
        Blocks(self.freezing.model, input="1x8x8").run_()
        console = wide_console()
        with _bar(console) as progress:
            task = progress.add_task("training", total=5 * self.freezing.steps)

            def report(policy: str, step: int) -> None:
                progress.update(task, advance=1, description=f"training, freezing {policy}")

            runs = compare(self.freezing, report)
        console.print(_table(runs))
        figure = write(runs, self.freezing, self.out)
        console.print(f"figure: {figure}   record: {figure.with_suffix('.json')}", highlight=False)


def _bar(console: Console) -> Progress:
    return Progress(console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the line that a budget is spent: here that is meant to be, and the table says it."""
    log = logging.getLogger("budgeted")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _learners(groups: list[Group]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("learner", "accuracy %", "at the end %", "kept", "steps", "compute", "CPU s"):
        table.add_column(column, justify="left" if column == "learner" else "right")
    for group in groups:
        mean = [sum(group.values(key)) / len(group.runs) for key in ("stored", "iterations")]
        seconds = unwatched(group).values("train_cpu_seconds")
        table.add_row(
            f"[bold]{group.label}[/]",
            format_mean_sd(summarise(group.values("a_auc")), 1, 100, " ± "),
            format_mean_sd(summarise(group.values("a_last")), 1, 100, " ± "),
            f"{mean[0]:.0f}",
            f"{mean[1]:.0f}",
            format_compute(round(sum(group.spent("real")) / len(group.runs)), "real"),
            f"{sum(seconds) / len(seconds):.1f}" if seconds else "-",
        )
    return table


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
