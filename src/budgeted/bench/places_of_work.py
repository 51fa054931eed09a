"""Where the runs of a sweep are executed: a place of work takes an order and says how it ended.

The local one starts a process for each run. Whoever started the process holds the other end of its standard input for
as long as it lives, so that a run ends with whoever asked for it (see `worker`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from typing import Protocol

from budgeted.runs.config import RunConfig


class PlaceOfWork(Protocol):
    """Something that executes runs."""

    stopped: threading.Event
    """set once nothing is to be started any more"""

    def at_a_time(self, waiting: int) -> int:
        """How many of so many runs are asked of it at once."""

    def run(self, order: str, config: RunConfig) -> tuple[int, str]:
        """One run from its start to its end: its exit code, and the last line of its error stream. Below zero: it was
        ended from outside, and may be begun again."""

    def stop(self) -> None:
        """End what is at work, and start no more."""


class LocalProcesses:
    """Processes of this machine."""

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()

    def at_a_time(self, waiting: int) -> int:
        return min(self.workers, waiting)

    def run(self, order: str, config: RunConfig) -> tuple[int, str]:
        return self.run_with(order, config.threads)

    def run_with(self, order: str, threads: int) -> tuple[int, str]:
        command = [sys.executable, "-m", "budgeted.bench.worker"]
        # One thread a process: more would only get in each other's way.
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with self._lock:
            if self.stopped.is_set():
                return 1, "stopped"
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=environment, errors="replace",
            )  # fmt: skip
            self._processes.add(process)
        assert process.stdin is not None
        assert process.stderr is not None
        with process:  # its standard input stays open until it has ended: by it it knows that this process lives
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(order)
                process.stdin.flush()
            errors = process.stderr.read()
            code = process.wait()
        with self._lock:
            self._processes.discard(process)
        return code, (errors.strip().splitlines() or [f"ended with code {code}"])[-1]

    def stop(self) -> None:
        with self._lock:
            self.stopped.set()
            for process in self._processes:
                process.terminate()
