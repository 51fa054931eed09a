"""Downloads that survive a cut connection: resumed, checked, and only then given their name.

A file grows as NAME.part; a later call asks the server for the rest only. NAME itself appears in one step,
after its checksum was found right, so a file of that name is always whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from budgeted.errors import BudgetedError

#: Called with the bytes at hand and the bytes in all (None where the server does not say).
Progress = Callable[[int, int | None], None]

_CHUNK = 1 << 18
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class DownloadError(BudgetedError):
    """A download that did not come to its end."""


class DownloadGone(DownloadError):
    """The address holds no such file."""


class _ConnectionCut(Exception):
    """The server stopped before the end."""


@dataclass(frozen=True)
class Source:
    """One file at its official address."""

    url: str
    md5: str
    #: Path below the data folder.
    path: str


def fetch(
    source: Source,
    data_dir: Path,
    *,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 4,
    pause: float = 1.0,
) -> Path:
    """The whole, verified file on disk; downloads what is missing of it.

    After `attempts` tries in a row that brought nothing, gives up and leaves what there is for the next call.
    `pause` is the wait in seconds before the second try; it doubles with each further one.
    """
    target = data_dir / source.path
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _opened_alone(part) as file:
            if target.exists():
                part.unlink()
                if (found := _md5(target)) != source.md5:
                    raise DownloadError(f"{target} has md5 {found} instead of {source.md5}: remove it and try again")
                return target
            _download(source, file, part, progress, timeout, attempts, pause)
            os.fsync(file.fileno())
            if (found := _md5(part)) != source.md5:
                aside = target.with_name(target.name + ".bad")
                os.replace(part, aside)
                raise DownloadError(
                    f"{source.url}: md5 {found} instead of {source.md5}; "
                    f"what came is kept aside as {aside}: try again, the next download starts anew"
                )
            os.replace(part, target)
    except OSError as problem:
        raise _disk_error(part, problem) from problem
    return target


def _download(
    source: Source,
    file: BinaryIO,
    part: Path,
    progress: Progress | None,
    timeout: float,
    attempts: int,
    pause: float,
) -> None:
    failures = 0
    while True:
        before = _size(file)
        try:
            _receive(source, file, part, progress, timeout)
            return
        except urllib.error.HTTPError as answer:
            problem = f"the server answered {answer.code} {answer.reason}"
            answer.close()
            if answer.code in (404, 410):
                raise DownloadGone(f"{source.url}: {problem}: fetch the file by hand into {part.parent}") from answer
            if answer.code < 500 and answer.code not in (408, 429):
                raise DownloadError(f"{source.url}: {problem}: fetch the file by hand into {part.parent}") from answer
        except urllib.error.URLError as trouble:
            problem = f"no connection ({trouble.reason})"
        except (_ConnectionCut, http.client.HTTPException, ConnectionError, TimeoutError) as trouble:
            problem = str(trouble) or type(trouble).__name__
        failures = 0 if _size(file) > before else failures + 1
        if failures >= attempts:
            raise DownloadError(
                f"{source.url}: {problem}; {_size(file):,} bytes are kept in {part}: "
                "check the network and run the same again to resume"
            )
        time.sleep(pause * 2 ** max(failures - 1, 0))


def _receive(source: Source, file: BinaryIO, part: Path, progress: Progress | None, timeout: float) -> None:
    """One connection: appends what the server sends, from where the file ends if the server can do that."""
    have = _size(file)
    request = urllib.request.Request(source.url, headers={"Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as answer:
        if answer.code == 416 and have:  # nothing follows: either all is here, or the file at hand is another one
            answer.close()
            if _total(answer.headers.get("Content-Range")) != have:
                _restart(file)
                raise _ConnectionCut("the server has another file than the part at hand") from answer
            return
        raise
    with response:
        if response.status == 206:
            content_range = response.headers.get("Content-Range")
            if not (content_range or "").startswith(f"bytes {have}-"):
                _restart(file)
                raise _ConnectionCut("the server sent another range than asked for")
            total = _total(content_range)
        else:
            if have:
                _restart(file)
                have = 0
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdecimal() else None
        _check_room(part, total, have)
        while chunk := response.read(_CHUNK):
            _append(file, part, chunk)
            have += len(chunk)
            if progress is not None:
                progress(have, total)
    if total is not None and have < total:
        raise _ConnectionCut(f"the connection was cut at {have:,} of {total:,} bytes")


def _append(file: BinaryIO, part: Path, chunk: bytes) -> None:
    try:
        file.write(chunk)
        file.flush()
    except OSError as problem:  # caught here: further out it would look like trouble with the network
        raise _disk_error(part, problem) from problem


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
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DownloadError(f"{part} is being downloaded by another process: wait for it") from None
        yield file


def _restart(file: BinaryIO) -> None:
    file.truncate(0)


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _total(content_range: str | None) -> int | None:
    match = re.fullmatch(r"bytes .*/(\d+)", content_range or "")
    return int(match[1]) if match else None


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
