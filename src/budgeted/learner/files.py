"""Files of our own: whole or not there, never another's, never waited for.

A file appears under its name in one step, when all of it is on disk. What is written goes into regular files that are
in the folder themselves: a link, a FIFO or a device in the place of one is refused, so nothing beside the folder is
written or waited for. What is read may be a link to a regular file, and only so many bytes are taken.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from budgeted.errors import BudgetedError

#: Bytes of a JSON file; the largest of ours are lists of a few hundred thousand predictions.
MOST_JSON = 256 * 2**20
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}


class NotRegular(BudgetedError):
    """Something else in the place of a file."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "a device")
        super().__init__(f"{path} is {kind}, where a file of its own should be: remove it, or restore the file")


def open_own(path: Path, flags: int) -> BinaryIO:
    """Opened to be written: a regular file in this very place, made if need be; what is in it stays."""
    try:
        # looked at before it is opened, since opening a device may do something, and after, since it may be exchanged
        if not stat.S_ISREG(mode := os.lstat(path).st_mode):
            raise NotRegular(path, mode)
    except FileNotFoundError:
        pass
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotRegular(path, stat.S_IFLNK) from error
        raise
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(path, mode)
    return os.fdopen(handle, "r+b" if flags & os.O_RDWR else "wb", buffering=0)


def read_bytes(path: Path, most: int) -> bytes:
    """A regular file of at most so many bytes; one that is longer is refused unread."""
    if not stat.S_ISREG(mode := os.stat(path).st_mode):
        raise NotRegular(path, mode)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NotRegular(path, found.st_mode)
        if found.st_size > most:
            raise BudgetedError(f"{path} has {found.st_size:,} bytes, at most {most:,} are expected: it is damaged")
        return file.read(found.st_size)  # room is taken for what is asked for, whatever there is


def write_all(handle: int, content: bytes) -> None:
    """All of it, whatever the system takes at a time."""
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def part_of(path: Path) -> Path:
    """Where a file is written until it is whole; one name, so that what a killed writer left is written over."""
    return path.with_name(f".{path.name}.part")


def replace_file(path: Path, content: bytes) -> None:
    """The file has the old content or the new, never a part; it is on disk when this returns."""
    scratch = part_of(path)
    remove(scratch)
    try:
        with open_own(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            write_all(file.fileno(), content)
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        remove(scratch)
        raise
    sync_folder(path.parent)


def named(folder: Path, name: str) -> list[Path]:
    """All files of a name in a folder or below it, sorted. What another process removes meanwhile, as a run does with
    its old checkpoints, is not there; `rglob` fails over it."""
    return sorted(Path(below, name) for below, _, _ in os.walk(folder) if os.path.exists(os.path.join(below, name)))


def remove(path: Path) -> None:
    """A file, a link itself, or a folder with all that is in it; nothing where there is none."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


sync_folder = sync_file  # a folder's entries are on disk when it is synced itself


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- JSON -----------------------------------------------------------------------------------------------------------


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        return parse_json(read_bytes(path, MOST_JSON), path)
    except OSError as error:
        raise BudgetedError(f"cannot read {path}: {error.strerror}") from error


def parse_json(content: bytes, path: Path) -> dict[str, Any]:
    """A table out of a file that may be damaged in any way."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BudgetedError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise BudgetedError(f"{path} is damaged: it holds no table")
    return found


def json_digest(content: Mapping[str, Any]) -> str:
    """Of what a table says, whatever the order and the spaces."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sealed(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """With a digest of itself, by which it knows later whether it was changed."""
    open_ = {name: value for name, value in content.items() if name != key}
    return {**open_, key: json_digest(json.loads(json.dumps(open_)))}


def seal_holds(content: Mapping[str, Any], key: str) -> bool:
    return content.get(key) == json_digest({name: value for name, value in content.items() if name != key})


# -- errors of the disk ---------------------------------------------------------------------------------------------


@contextmanager
def disk_errors(path: Path, go_on: str) -> Iterator[None]:
    """A full disk, a read-only folder or a refused file in one line; what was written before stays whole."""
    try:
        yield
    except BudgetedError:
        raise
    except Exception as error:
        text = str(error)
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full or "No space left" in text or "File too large" in text:  # safetensors has errors of its own
            raise BudgetedError(f"the disk of {path} is full: free some room, then {go_on}") from error
        if isinstance(error, OSError):
            where = path if error.filename is None else error.filename
            raise BudgetedError(f"cannot work in {path}: {where}: {error.strerror or error}") from error
        raise
