"""Files that nobody vouches for: opened only if regular, read and unpacked only up to a limit."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path
from typing import BinaryIO, Protocol

from budgeted.streams.dataset import DataError

#: The most bytes that deflate, and so gzip, zlib and zip, can make of one.
DEFLATE_FACTOR = 1032
_PIECE = 1 << 20
_AGAIN = "not the right file, fetch it again"


class Readable(Protocol):
    """What `read_at_most` reads from."""

    def read(self, size: int, /) -> bytes: ...


def open_regular(path: str | Path) -> BinaryIO:
    """Opened for reading; a folder, FIFO, socket or device is refused, and none of them is waited for."""
    # Looked at before opening, since to open a device may do something, and after, since it may have been exchanged.
    _demand_regular(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _demand_regular(path, os.fstat(descriptor).st_mode)
    except DataError:
        os.close(descriptor)
        raise
    return _Bounded(io.FileIO(descriptor, "rb"))


class _Bounded(io.BufferedReader):
    """Takes room for what the file has; the usual one does for what is asked, which may be a number out of the file."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _PIECE:
            size = min(size, max(size_of(self) - self.tell(), 0))
        return super().read(size)


def size_of(file: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_regular(path: str | Path, most: int) -> bytes:
    """The whole of a small or known file, refused unread where it is longer than `most` bytes."""
    with open_regular(path) as file:
        if (size := size_of(file)) > most:
            raise DataError(f"{path}: {size:,} bytes, at most {most:,} are expected: {_AGAIN}")
        return file.read(size)


def read_at_most(file: Readable, most: int) -> bytearray:
    """What follows in `file`, at most so many bytes; room is taken as they come, not as they are announced."""
    content = bytearray()
    while len(content) < most and (piece := file.read(min(_PIECE, most - len(content)))):
        content += piece
    return content


class Capped:
    """A file that ends in a refusal, not in full memory, where it gives more than `most` bytes."""

    def __init__(self, file: Readable, most: int, where: str) -> None:
        self._file = file
        self._most = most
        self._left = most
        self._where = where

    def read(self, size: int, /) -> bytes:
        piece = self._file.read(min(size, self._left + 1))
        self._left -= len(piece)
        if self._left < 0:
            raise DataError(f"{self._where}: unpacks to more than {self._most:,} bytes: {_AGAIN}")
        return piece


def _demand_regular(path: str | Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise DataError(f"{path} is {kind}, not a regular file: put the data file itself there")
