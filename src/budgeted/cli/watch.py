"""`budgeted watch`: the page of runs, live, while they are made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from budgeted.bench.board import read_board
from budgeted.bench.watch import LOOPBACK, Watched, server
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Watch:
    """Serve the page of the runs in these folders to this machine alone, live while they are made.

    Example: budgeted watch runs, then open the address that it prints. For a single run give its folder. Ctrl-C ends
    it; the runs do not notice.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    """Folders of runs, or folders that hold such folders."""
    port: int = 8765
    """Port on the loopback address; 0 for any that is free."""
    records: Path | None = None
    """Folder of a record board to show; none if not given."""

    def run_(self) -> None:
        if not self.folders:
            raise BudgetedError("give folders of runs, as in `budgeted watch runs`")
        watched = Watched(self.folders, [] if self.records is None else read_board(self.records))
        watched.answer()  # a mistake is said before anything is served
        with server(watched, self.port) as serving:
            print(
                f"http://{LOOPBACK}:{serving.server_address[1]}/ shows {', '.join(map(str, self.folders))}", flush=True
            )
            serving.serve_forever()
