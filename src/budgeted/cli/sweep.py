"""`budgeted sweep`: run a recipe, or go on with it."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.recipes import recipe
from budgeted.bench.sweep import export, places, sweep
from budgeted.bench.table import find_runs, group_runs, markdown
from budgeted.cli.output import Forgiving
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Sweep:
    """Run all runs of a recipe, several at a time; finished ones stay, interrupted ones go on.

    Example: budgeted sweep components --data DATA --out runs --workers 2. `budgeted list recipes` names them.
    """

    recipe: Annotated[Positional[str], arg(metavar="RECIPE")]
    """Which experiment: see `budgeted list recipes`."""
    out: Path = Path("runs")
    """Folder that holds the runs of all recipes."""
    data: Path | None = None
    """Folder with the data sets; the user's cache folder if not given."""
    workers: int = 1
    """Runs at a time, each in a process with one thread."""
    seeds: tuple[int, ...] = ()
    """Only these seeds of the recipe."""
    show: bool = False
    """Run nothing: say what is finished and print the table of it."""
    accept_other_arithmetic: bool = False
    """Go on with runs that were begun on a machine whose sums come out otherwise; tables mark them."""
    export: Path | None = None
    """Copy the records of finished runs into this folder, without checkpoints and paths of this machine."""

    def run_(self) -> None:
        chosen = recipe(self.recipe, self.out)
        runs = [run for run in chosen.runs if not self.seeds or run.seed in self.seeds]
        if not runs:
            known = sorted({run.seed for run in chosen.runs})
            raise BudgetedError(f"recipe {self.recipe!r} has no seed among {self.seeds}: it has {known}")
        shown = Forgiving()
        logging.basicConfig(level=logging.WARNING, format="budgeted: %(message)s", stream=shown)
        print(chosen.question, file=shown)
        if chosen.prices is not None and not self.show:
            for line in chosen.prices(chosen.runs):
                print(line, file=shown)
        failed = 0
        if not self.show:
            data = None if self.data is None else str(self.data)
            accept = self.accept_other_arithmetic
            ended = sweep(runs, self.out, data, self.workers, accept_other_arithmetic=accept)
            with contextlib.closing(ended):  # whatever ends this ends the runs
                for place, error in ended:
                    failed += error is not None
                    print(f"{place.folder.name}: {error or 'finished'}", file=shown)
        found = places(runs, self.out)
        states = Counter(place.state for place in found)
        print(", ".join(f"{count} {state}" for state, count in sorted(states.items())), file=shown)
        finished = [place.folder for place in found if place.state == "finished"]
        if finished:
            print(markdown(group_runs(find_runs(finished))))
        if self.export is not None:
            print(f"{export(found, self.export)} runs copied to {self.export}", file=shown)
        if failed:
            raise BudgetedError(f"{failed} runs failed: mend the cause and call the same command again")
