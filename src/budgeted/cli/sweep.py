"""`budgeted sweep`: run a recipe, or go on with it."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.live import Live
from tyro.conf import Positional, arg

from budgeted.bench.measured import findings
from budgeted.bench.on_ray import RayTasks
from budgeted.bench.protocols import Recipe, at_seeds
from budgeted.bench.recipe_costs import cost_of
from budgeted.bench.recipes import recipe
from budgeted.bench.speed import measured_rate
from budgeted.bench.sweep import Place, export, places, sweep
from budgeted.bench.sweep_table import SweepTable
from budgeted.bench.table import find_runs, group_runs, markdown
from budgeted.bench.table_formats import terminal
from budgeted.bench.text_tables import counted
from budgeted.cli.commands import read
from budgeted.cli.console import logged_above, say, wide_console
from budgeted.cli.output import Forgiving
from budgeted.errors import BudgetedError, Terminated
from budgeted.learner.files import read_json
from budgeted.runs.config import RunConfig
from budgeted.runs.precision import imitated

LOCAL = "local"


@dataclass(frozen=True)
class Sweep:
    """Run all runs of a recipe, several at a time; finished ones stay, interrupted ones go on.

    Example: budgeted sweep components --data DATA --out runs --workers 2. `budgeted list recipes` names them.
    """

    recipe: Annotated[Positional[str], arg(metavar="RECIPE")]
    """Which experiment: see `budgeted list recipes`; your own as FILE.py:NAME."""
    out: Path = Path("runs")
    """Folder that holds the runs of all recipes; on a path that all nodes share, if there are several."""
    data: Path | None = None
    """Folder with the data sets; the user's cache folder if not given."""
    on: str = LOCAL
    """Where runs are executed: local, ray (the cluster of this machine), or a cluster's address as HOST:PORT."""
    workers: int = 1
    """Runs at a time, each in a process with one thread; on Ray, as many as it has cores for."""
    seeds: tuple[int, ...] = ()
    """These seeds instead of the recipe's own; what is finished of them stays."""
    part: str = "1/1"
    """Only the Ith of N parts of the runs, as I/N: for a job array, whose jobs share one folder."""
    show: bool = False
    """Run nothing: say what is finished and print the table of it."""
    accept_other_arithmetic: bool = False
    """Go on with runs that were begun on a machine whose sums come out otherwise; tables mark them."""
    export: Path | None = None
    """Copy the records of finished runs into this folder, without checkpoints and paths of this machine."""

    def run_(self) -> None:
        chosen = recipe(self.recipe, self.out)
        every = at_seeds(chosen.runs, self.seeds)
        runs = part_of(every, self.part)
        shown = Forgiving()
        logging.basicConfig(level=logging.WARNING, format="budgeted: %(message)s", stream=shown)
        say(chosen.question, shown)
        if not chosen.runs:
            return self._instead(chosen, shown)
        if not runs:  # no mistake: an array may have more jobs than there are runs
            return say(f"part {self.part} has no runs: there are {len(every)}, one for each of the first parts", shown)
        if not self.show:
            self._say_cost(chosen, runs, shown)
        try:
            failed = [] if self.show else self._sweep(runs, shown)
        except (KeyboardInterrupt, Terminated):
            say(f"{_counted(places(runs, self.out))}: the same command goes on from here", shown)
            raise
        found = places(runs, self.out)
        print(_counted(found), file=shown)
        finished = [place.folder for place in found if place.state == "finished"]
        if finished:
            groups, console = group_runs(find_runs(finished)), wide_console()
            if console.is_terminal:
                terminal(groups, console)
            else:
                print(markdown(groups))
        if self.export is not None:
            print(f"{counted(export(found, self.export), 'run')} copied to {self.export}", file=shown)
        if failed:
            for line in failed:
                say(f"failed: {line}", shown)
            raise BudgetedError(f"{counted(len(failed), 'run')} failed: mend the cause and call the same command again")

    def _instead(self, chosen: Recipe, shown: Forgiving) -> None:
        """A measurement or a calculation: no runs, and nothing to be shared out."""
        if self.show:
            print("this is no set of runs: nothing to show before it is made", file=shown)
        elif chosen.command:
            read(chosen.command).run_()
        elif chosen.measures is not None:
            path = chosen.measures(self.out, self.data)
            for line in findings(read_json(path)):
                print(line)
            print(f"{path}: `budgeted report {self.out}` draws it", file=shown)
        else:
            raise BudgetedError(f"recipe {self.recipe!r} has no runs")

    def _say_cost(self, chosen: Recipe, runs: Sequence[RunConfig], shown: Forgiving) -> None:
        """What is ahead, before it starts."""
        ahead = [place.config for place in places(runs, self.out) if place.state != "finished"]
        if chosen.prices is not None:
            for line in chosen.prices(chosen.runs):
                say(line, shown)
        elif ahead:
            say(cost_of(ahead).said(measured_rate()), shown)
            if slow := sum(map(imitated, ahead)):
                say(f"{slow} of them in bfloat16, which this processor has to imitate: up to ten times as long", shown)

    def _sweep(self, runs: Sequence[RunConfig], shown: Forgiving) -> list[str]:
        """Run them; what failed, and why."""
        workers = self.workers if self.on == LOCAL else RayTasks(self.on)
        # as every node has to find it
        data = None if self.data is None else str(self.data if self.on == LOCAL else self.data.resolve())
        failed = []
        ended = sweep(runs, self.out, data, workers, accept_other_arithmetic=self.accept_other_arithmetic)
        # whatever ends this ends the runs
        with contextlib.closing(ended), _told(places(runs, self.out), shown) as tell:
            for place, error in ended:
                tell(place, error)
                if error is not None:
                    failed.append(f"{place.folder.name}: {error}")
        return failed


def _counted(found: Sequence[Place]) -> str:
    states = Counter(place.state for place in found)
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


@contextlib.contextmanager
def _told(found: Sequence[Place], shown: Forgiving) -> Iterator[Callable[[Place, str | None], None]]:
    """On a terminal a table that lives; elsewhere a line for each run that ends."""
    table = SweepTable(found)
    if not shown.isatty():

        def tell(place: Place, error: str | None) -> None:
            table.ended(place, error)
            print(f"{place.folder.name}: {error or 'finished'} ({table.line(table.seen())})", file=shown)

        yield tell
        return
    console = Console(file=shown)
    with Live(table, console=console, refresh_per_second=1), logged_above(console, shown):
        yield table.ended


def part_of(runs: Sequence[RunConfig], part: str) -> list[RunConfig]:
    """Every Nth run from the Ith on."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", part)
    number, of = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= of:
        raise BudgetedError(f"--part {part!r} is no part: give I/N with I from 1 to N, as in --part 3/8")
    return list(runs[number - 1 :: of])
