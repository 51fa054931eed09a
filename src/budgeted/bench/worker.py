"""One run of a sweep, in a process of its own: what to do comes by the standard input, which is also its lifeline.

The sweep keeps the other end of that pipe open for as long as it lives. When it is closed, however the sweep ended,
the run ends too; it has checkpoints, and the next sweep goes on with it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.runs.allocation import keep_freed_memory
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import Taken
from budgeted.runs.run import resume, start

#: Exit codes: a mistake, as of the command; another process at work on the run, or quicker to begin it.
MISTAKE, TAKEN = 2, 3


def order(config: dict[str, Any] | None, folder: Path, accept_other_arithmetic: bool = False) -> str:
    """The line that a worker waits for: a run to begin, or without a configuration one to go on with."""
    return json.dumps({"config": config, "folder": str(folder), "accept": accept_other_arithmetic}) + "\n"


def main() -> int:
    given = json.loads(_line())
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    keep_freed_memory()
    folder = Path(given["folder"])
    try:
        if given["config"] is None:
            resume(folder, accept_other_arithmetic=given["accept"])
        else:
            start(RunConfig.from_mapping(given["config"], "the recipe"), folder)
    except Taken as error:
        print(error, file=sys.stderr)
        return TAKEN
    except BudgetedError as error:
        print(error, file=sys.stderr)
        return MISTAKE
    return 0


def _line() -> bytes:
    """Read from the descriptor itself: nothing of the standard input may wait in a buffer."""
    content = b""
    while not content.endswith(b"\n"):
        if not (piece := os.read(0, 65536)):
            raise SystemExit(MISTAKE)  # the sweep is gone already
        content += piece
    return content


def _end_with_the_sweep() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
