"""Downloads that survive a cut connection and end: resumed, checked, and only then given their name.

A file grows as NAME.part; a later call asks the server for the rest only. NAME itself appears in one step,
after its checksum was found right, so a file of that name is always whole.

What was received is kept until the server is seen to send something else. A try counts as fruitful only where it
brings the file further than it ever was, and by more than a trifle; so the number of connections is bounded by the
length of the file, and that by what is known of it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from budgeted.errors import BudgetedError
from budgeted.streams.connection import Answer, Broken, Pace, get, number
from budgeted.streams.one_line import one_line

#: Called with the bytes at hand and the bytes in all (None where the server does not say).
Progress = Callable[[int, int | None], None]

#: Bytes of a file of unknown size; the largest official one has 0.2 GiB.
MOST_BYTES = 2**30
_CHUNK = 1 << 18
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DownloadError(BudgetedError):
    """A download that did not come to its end."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))  # some of it is the server's


class DownloadGone(DownloadError):
    """The address holds no such file."""


class _Fruitless(Exception):
    """A try that ended before the file did."""


class _WrongFile(Exception):
    """What comes is not the file."""


@dataclass(frozen=True)
class Source:
    """One file at its official address."""

    url: str
    #: "" where none is published: then its length, and the checksums inside the archive, have to do.
    md5: str
    #: Path below the data folder.
    path: str
    #: In bytes; None where it is not known.
    size: int | None = None
    #: The folder, below the data folder, that an archive of pictures is unpacked to.
    unpacked: str = ""


def fetch(
    source: Source,
    data_dir: Path,
    *,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 4,
    pause: float = 1.0,
    stall: float = 120.0,
    least: int = 1 << 16,
    most: int = MOST_BYTES,
) -> Path:
    """The whole, verified file on disk; downloads what is missing of it.

    After `attempts` tries in a row that brought less than `least` bytes each, gives up and leaves what there is for
    the next call. `pause` is the wait in seconds before the second try; it doubles with each further one. A connection
    that brings nothing for `timeout` seconds, or less than `least` bytes in `stall` seconds, is closed. Of a file whose
    size is not known, `most` bytes are taken.
    """
    target = data_dir / source.path
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _opened_alone(part) as file:
            if os.path.lexists(target):
                part.unlink()
                return _checked(source, target)
            download = _Download(source, file, part, progress, Pace(timeout, stall, least), most)
            try:
                download.run(attempts, pause)
                os.fsync(file.fileno())
                if (found := _md5(file)) != source.md5 and source.md5:
                    raise _WrongFile(f"md5 {found} instead of {source.md5}")
            except _WrongFile as problem:
                aside = target.with_name(target.name + ".bad")
                os.replace(part, aside)
                raise DownloadError(
                    f"{source.url}: {problem}; "
                    f"what came is kept aside as {aside}: try again, the next download starts anew"
                ) from problem
            os.replace(part, target)
    except OSError as problem:
        raise _disk_error(part, problem) from problem
    return target


def _checked(source: Source, target: Path) -> Path:
    """A file that is there already, if it is the right one."""
    if not target.is_file():
        raise DownloadError(f"{target} is no regular file: remove it and try again")
    with open(target, "rb") as there:
        found = _md5(there) if source.md5 else ""
        if not source.md5 and source.size not in (None, os.fstat(there.fileno()).st_size):
            raise DownloadError(f"{target} has another length than {source.size:,} bytes: remove it and try again")
    if found != source.md5:
        raise DownloadError(f"{target} has md5 {found} instead of {source.md5}: remove it and try again")
    return target


class _Download:
    """Tries, one after the other, to complete the part of a file."""

    def __init__(
        self, source: Source, file: BinaryIO, part: Path, progress: Progress | None, pace: Pace, most: int
    ) -> None:
        self._source = source
        self._file = file
        self._part = part
        self._progress = progress
        self._pace = pace
        self._most = most if source.size is None else source.size
        #: Whether the next try asks for the whole file: the server has shown that it does not know ranges.
        self._from_start = False

    def run(self, attempts: int, pause: float) -> None:
        failures, furthest = 0, _size(self._file)
        while True:
            try:
                self._try()
                return
            except urllib.error.HTTPError as answer:
                problem = f"the server answered {answer.code} {answer.reason}"
                answer.close()
                if answer.code in (404, 410):
                    raise DownloadGone(self._by_hand(problem)) from answer
                if answer.code < 500 and answer.code not in (408, 429):
                    raise DownloadError(self._by_hand(problem)) from answer
            except (Broken, _Fruitless) as trouble:
                problem = str(trouble)
            fruitful = _size(self._file) >= furthest + self._pace.least
            furthest = max(furthest, _size(self._file))
            failures = 0 if fruitful else failures + 1
            if failures >= attempts:
                raise DownloadError(
                    f"{self._source.url}: {problem}; {_size(self._file):,} bytes are kept in {self._part}: "
                    "check the network and run the same again to resume"
                )
            time.sleep(pause * 2 ** max(failures - 1, 0))

    def _by_hand(self, problem: str) -> str:
        return f"{self._source.url}: {problem}: fetch the file by hand into {self._part.parent}"

    def _try(self) -> None:
        """One connection: appends what the server sends, from where the file ends if the server can do that."""
        if _size(self._file) == self._source.size:
            return  # whole, as far as its length tells
        first = 0 if self._from_start else _size(self._file)
        try:
            with get(self._source.url, first, self._pace) as answer:
                self._receive(answer, first)
        except urllib.error.HTTPError as answer:
            if answer.code != 416 or not first:
                raise
            answer.close()  # nothing follows: either all is here, or the file at hand is another one
            if _total(answer.headers.get("Content-Range")) != first:
                self._from_start = True
                raise _Fruitless("the server has another file than the part at hand") from answer

    def _receive(self, answer: Answer, first: int) -> None:
        if answer.is_page:  # a log-in or an error, which must not take the place of what came before
            raise _Fruitless("the server sent a page instead of the file")
        if answer.status == 206:
            if not (answer.content_range or "").startswith(f"bytes {first}-"):
                self._from_start = True
                raise _Fruitless("the server sent another range than asked for")
            total = _total(answer.content_range)
        elif answer.status == 200:
            self._from_start = False  # the file at hand is compared with what comes, and its rest can be asked for
            first, total = 0, answer.length
        else:
            raise _Fruitless(f"the server answered {answer.status}")
        if total is not None and total > self._most:
            problem = f"the server announces {total:,} bytes, at most {self._most:,} are taken"
            raise DownloadError(self._by_hand(problem))
        if total is not None and self._source.size not in (None, total):
            raise _Fruitless(f"the server announces {total:,} bytes instead of {self._source.size:,}")
        _check_room(self._part, total, _size(self._file))
        have = first
        for piece in answer.pieces():
            if have + len(piece) > self._most:
                raise _WrongFile(f"more than {self._most:,} bytes came")
            self._keep(have, piece)
            have += len(piece)
            if self._progress is not None:
                self._progress(have, total)
        # Where nobody says how long the file is, it is at least as long as what came of it before.
        expected = next((each for each in (total, self._source.size) if each is not None), _size(self._file))
        if have < expected:
            raise _Fruitless(f"the connection was cut at {have:,} of {expected:,} bytes")
        self._file.truncate(have)  # a part may be longer than the file

    def _keep(self, at: int, piece: bytes) -> None:
        """`piece` at its place: what is there already stays unless it is something else."""
        try:
            there = os.pread(self._file.fileno(), len(piece), at)
            if not piece.startswith(there):
                self._file.truncate(at)
                there = b""
            self._file.write(piece[len(there) :])
            self._file.flush()
        except OSError as problem:
            raise _disk_error(self._part, problem) from problem


def _check_room(part: Path, total: int | None, have: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - have > free:
        raise DownloadError(
            f"disk full: {total - have:,} bytes to come, {free:,} free in {part.parent}: "
            "free some room and run the same again to resume, or choose another data folder"
        )


def _disk_error(part: Path, problem: OSError) -> DownloadError:
    if problem.errno in _DISK_FULL:
        return DownloadError(f"disk full in {part.parent}: free some room and run the same again to resume")
    return DownloadError(f"{part} cannot be written ({problem.strerror}): choose another data folder")


@contextlib.contextmanager
def _opened_alone(part: Path) -> Iterator[BinaryIO]:
    """The part file opened for appending, locked against a second download into it."""
    # Not through a link, which may lead anywhere, and without waiting for the other end of a FIFO.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o666), "a+b") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DownloadError(f"{part} is no regular file: remove it and try again")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"{part} is being downloaded by another process: wait for it") from None
        yield file


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _total(content_range: str | None) -> int | None:
    match = re.fullmatch(r"bytes .{1,40}/([0-9]+)", content_range or "")
    return number(match[1]) if match else None


def md5_of(path: Path) -> str:
    """The checksum of a file, as its source states it."""
    with open(path, "rb") as file:
        return _md5(file)


def _md5(file: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()
