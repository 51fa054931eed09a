"""`budgeted compare`: two rows of a table against each other, in words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.compare import as_json, sentences, two_of
from budgeted.bench.table import group_runs
from budgeted.cli.runs_asked import asked
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Compare:
    """Say in plain sentences whether two rows of a table differ, by how much, and what each spent.

    Example: budgeted compare results/components --rows al-sar vanilla. Tests are paired by seed where both rows have
    two seeds in common, else Welch's; where they cannot tell, it says how many more seeds would.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    """Folders of runs, or folders that hold such folders; of any age."""
    rows: tuple[str, ...] = ()
    """The two rows, by their names in the first column of `budgeted table`; the only two if not given."""
    where: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE ...]")] = ()
    """Only runs for which these hold, as in dataset=cifar10 'seed<=3' method!=er; all if not given."""
    ddof: int = 1
    """Of the standard deviation: 1 for a sample, 0 as in the paper's tables."""
    json: bool = False
    """Print it as JSON for a script."""

    def run_(self) -> None:
        if not self.folders:
            raise BudgetedError("give folders of runs, as in `budgeted compare runs --rows er vanilla`")
        one, other = two_of(group_runs(asked(self.folders, self.where)), self.rows)
        if self.json:
            print(json.dumps(as_json(one, other), indent=1))
        else:
            print("\n".join(sentences(one, other, self.ddof)))
