"""`budgeted verify`: replay stretches of a run, and say whether it was made as it says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.board import check_place, enter
from budgeted.cli.output import refuse_without_folder
from budgeted.errors import BudgetedError
from budgeted.learner.files import write_json
from budgeted.runs.verify import STRETCHES, TOLERANCE, Looked, Verification, verify


@dataclass(frozen=True)
class Verify:
    """Replay stretches of a run from its checkpoints and confirm weights, ledger and records bit for bit.

    Example: budgeted verify runs/first --stretches all. The first stretch and the last are always replayed, others are
    drawn; a run made with --keep-checkpoints all has the shortest. On another arithmetic than the run's it confirms
    within a tolerance, and says so. The folder is read and not changed.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run; one without checkpoints is replayed whole."""
    stretches: int | str = STRETCHES
    """Stretches to draw between the first and the last: a number or all."""
    draw: int | None = None
    """Seed of the draw, to repeat it; by lot if not given."""
    tolerance: float = TOLERANCE
    """Where sums come out otherwise: the share of the weights' way, of the compute and of the test images."""
    data: Path | None = None
    """Folder with the data sets; as the run has it if not given."""
    out: Path | None = None
    """Write what was found into this JSON file too."""
    enter: Annotated[Path | None, arg(metavar="TRACK/DATE-NAME")] = None
    """If it is confirmed, put it onto a record board (records/README.md) as this new folder of a track."""
    json: bool = False
    """Print what was found as JSON for a script."""

    def run_(self) -> None:
        refuse_without_folder(self.out)
        if self.enter is not None:
            check_place(self.run, self.enter)
        shown = None if self.json else lambda looked: print(_line(looked), flush=True)
        found = verify(
            self.run,
            stretches=self.stretches,
            draw=self.draw,
            tolerance=self.tolerance,
            data=None if self.data is None else str(self.data),
            report=shown,
        )
        if self.out is not None:
            write_json(self.out, found.to_json())
        print(json.dumps(found.to_json(), indent=1) if self.json else "\n".join(_closing(found)))
        if not found.confirmed:
            raise BudgetedError(f"{self.run} is not confirmed: {_first(found)}")
        if self.enter is not None:
            enter(self.run, self.enter, found.to_json())


def _line(looked: Looked) -> str:
    how = "the same bits" if looked.exact else "within the tolerance"
    where = f"stretch {looked.number}, samples {looked.begin} to {looked.end}"
    return f"{where}: {'; '.join(looked.findings) if looked.findings else how}"


def _closing(found: Verification) -> list[str]:
    lines = [f"the folder contradicts itself: {each}" for each in found.contradictions]
    if lines:
        return lines
    share = f"{len(found.looked)} of {found.stretches} stretches, {found.replayed} of {found.samples} samples"
    if not found.exact:
        lines.append(
            f"other arithmetic than the run's: compared within {100 * found.tolerance:g} % of the weights' way, of the "
            "compute and of the test images, not bit for bit"
        )
    if found.confirmed:
        how = "bit for bit" if found.exact else "within the tolerance"
        lines.append(f"confirmed {how}: {share} (draw {found.draw})")
        if found.missed:
            lines.append(f"a forgery in a single one of the others was missed with chance {found.missed:.2g}")
        if not found.finished:
            lines.append("the run is not finished: there is no summary to confirm")
        lines.append("confirmed by no replay: seconds, peak memory, number of sittings")
    return lines


def _first(found: Verification) -> str:
    if found.contradictions:
        return found.contradictions[0]
    looked = next(each for each in found.looked if each.findings)
    advice = "" if looked.exact else "; verify it where sums come out as there to know whether it was forged"
    return f"stretch {looked.number}, samples {looked.begin} to {looked.end}: {looked.findings[0]}{advice}"
