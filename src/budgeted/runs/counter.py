"""Training steps really executed, repeated ones included: a number in a file that survives a kill at any moment.

It is written after every sample, in one call of a few bytes that the kernel keeps whole. A check beside it tells a
number that is not of this run, or is damaged; the count is then unknown for good, and the run says so.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from budgeted.errors import BudgetedError
from budgeted.learner.files import open_own, read_bytes

_LINE = re.compile(rb"(\d{20}) ([0-9a-f]{16})\n")
_UNKNOWN = b"unknown".ljust(37) + b"\n"


class StepCounter:
    """Open for one sitting; `run` is a digest that only this run's counter goes with."""

    def __init__(self, path: Path, run: str, least: int | None) -> None:
        """least: what a checkpoint knows of; None before the first, when a file that is not there counts from 0.

        Before the first checkpoint nothing but this file knows which run was begun: one of another run is refused.
        """
        self._run = run
        self._file = open_own(path, os.O_RDWR | os.O_CREAT)
        self._handle = self._file.fileno()
        content = os.pread(self._handle, len(_UNKNOWN) + 1, 0)
        found = 0 if not content and least is None else self._parsed(content)
        if found is None and least is None and content != _UNKNOWN:
            self._file.close()
            raise BudgetedError(f"{path} is not of the run that config.json tells of: restore both, or begin a new run")
        self.count: int | None = None if found is None or found < (least or 0) else found
        os.ftruncate(self._handle, len(_UNKNOWN))
        self._write()

    def add(self, steps: int) -> None:
        if self.count is not None and steps:
            self.count += steps
            self._write()

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        self._file.close()

    def _write(self) -> None:
        os.pwrite(self._handle, _UNKNOWN if self.count is None else self._line(self.count), 0)

    def _line(self, count: int) -> bytes:
        check = hashlib.sha256(f"{self._run} {count}".encode()).hexdigest()[:16]
        return f"{count:020d} {check}\n".encode()

    def _parsed(self, content: bytes) -> int | None:
        match = _LINE.fullmatch(content)
        count = None if match is None else int(match[1])
        return count if count is not None and self._line(count) == content else None


def executed_steps(path: Path) -> int:
    """As it stands in the file, for whoever looks on; 0 where there is none yet."""
    try:
        match = _LINE.fullmatch(read_bytes(path, 1000))
    except (OSError, BudgetedError):
        return 0
    return 0 if match is None else int(match[1])
