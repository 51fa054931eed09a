"""Where the files in a tar lie, so that each can be read at its place without unpacking anything."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

from budgeted.streams.dataset import DataError
from budgeted.streams.files import read_at_most

Member = tuple[str, int, int]
"""name, first byte, bytes"""
#: Bytes behind the last member that are looked at: tar fills its last record, of 10 KiB or, on a tape, of a few MiB.
_MOST_FILLING = 1 << 24


class Window(io.RawIOBase):
    """A stretch of a file as a file of its own: a tar inside a tar."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._at = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), max(0, self._size - self._at))
        self._file.seek(self._start + self._at)
        piece = self._file.read(length)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def members(file: BinaryIO, where: str, size: int) -> Iterator[Member]:
    """Every plain file of an uncompressed tar of `size` bytes, in its order; anything else in it is refused."""
    try:
        if file.read(2) == b"\x1f\x8b":
            raise DataError(f"{where} is packed with gzip: unpack it, since no sample could be reached by its place")
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                # tarfile keeps all members it has met: a million of them
                tar.members.clear()  # type: ignore[attr-defined]
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise DataError(f"{where}: {member.name} is no plain file: write the tar anew")
                if member.size < 0 or member.offset_data + member.size > size:
                    raise DataError(f"{where}: cut inside {member.name}: restore it")
                yield member.name, member.offset_data, member.size
            _demand_end(file, where, tar.offset, size)
    except DataError:
        raise
    except Exception as problem:  # tarfile fails on damaged files in many ways
        raise DataError(f"{where}: cut or damaged ({problem}): restore it") from problem


def _demand_end(file: BinaryIO, where: str, end: int, size: int) -> None:
    """A block of zeros at `end` and no more than zeros behind it: tarfile takes a cut or damage there for the end."""
    file.seek(end)
    mark = read_at_most(file, tarfile.BLOCKSIZE)
    if len(mark) < tarfile.BLOCKSIZE:
        raise DataError(f"{where}: cut at byte {end + len(mark):,}, a tar ends with a block of zeros: restore it")
    if any(mark):
        raise DataError(f"{where}: damaged at byte {end:,}, no header of a file is there: restore it")
    filling = read_at_most(file, _MOST_FILLING)
    if filling.count(0) != len(filling):
        raise DataError(
            f"{where}: more behind its end at byte {end:,}, as where two tars were put into one file: "
            f"give each a file of its own"
        )
    if end + len(mark) + len(filling) < size:
        raise DataError(f"{where}: zeros from byte {end:,} on, as of a download that never ended: restore it")
