"""Strings in a file instead of in memory: where a million samples lie, for the price of none of it.

Written once, then read at any place by any thread; the file has no name and is gone with the process.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Iterator
from typing import IO

from budgeted.streams.dataset import DataError

_FLUSH = 1 << 14


class Spool:
    """A list of byte strings that only grows; `spool[i]` reads the i-th."""

    def __init__(self) -> None:
        try:
            self._text = tempfile.TemporaryFile(buffering=1 << 16)  # noqa: SIM115  open as long as the spool is
            self._ends = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as problem:
            raise DataError(f"no temporary file can be made ({problem.strerror}): set TMPDIR to a folder") from problem
        weakref.finalize(self, _close, self._text, self._ends)
        self._recent = array("q")
        self._count = 0
        self._length = 0

    def append(self, content: bytes) -> None:
        try:
            self._text.write(content)
            self._length += len(content)
            self._recent.append(self._length)
            self._count += 1
            if len(self._recent) >= _FLUSH:
                self.seal()
        except OSError as problem:
            raise DataError(
                f"the list of samples does not fit into {tempfile.gettempdir()} ({problem.strerror}): "
                "free some room or set TMPDIR to another folder"
            ) from problem

    def extend(self, contents: Iterable[bytes]) -> None:
        for content in contents:
            self.append(content)

    def seal(self) -> None:
        """Everything appended so far can be read."""
        self._text.flush()
        self._ends.write(self._recent.tobytes())
        del self._recent[:]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < self._count:
            raise IndexError(index)
        if self._recent:
            self.seal()
        ends = self._ends.fileno()
        if index == 0:
            start, (stop,) = 0, struct.unpack("=q", os.pread(ends, 8, 0))
        else:
            start, stop = struct.unpack("=qq", os.pread(ends, 16, 8 * (index - 1)))
        return os.pread(self._text.fileno(), stop - start, start)

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))


def _close(*files: IO[bytes]) -> None:
    for file in files:
        file.close()
