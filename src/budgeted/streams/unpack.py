"""Archives of pictures onto the disk, without trust: nothing lands outside its folder, and a half never looks whole."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from budgeted.streams.dataset import DataError

#: An archive of pictures, which are packed already, may unpack to so many times its size.
MOST_TIMES = 8
_PIECE = 1 << 20
_DAMAGE = (OSError, zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, NotImplementedError)
_AGAIN = "not the official archive, fetch it again"


def unpack(archive: Path, into: Path, whole: Path) -> None:
    """The archive's files below `into`; `whole`, a folder of its top level, appears in one step at the end.

    Unpacked beside its place first: a process that is killed leaves a `.unpacking` that the next one begins anew.
    """
    if whole.exists():
        return
    work = into / f".{archive.name}.unpacking"
    shutil.rmtree(work, ignore_errors=True)
    try:
        left = MOST_TIMES * archive.stat().st_size + _PIECE
        for name, file in _members(archive):
            target = _inside(work, name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as out:
                while piece := file.read(_PIECE):
                    left -= len(piece)
                    if left < 0:
                        raise DataError(f"{archive}: unpacks to more than {MOST_TIMES} times its size: {_AGAIN}")
                    out.write(piece)
        top = work / whole.relative_to(into)
        if not top.is_dir():
            raise DataError(f"{archive}: holds no {whole.relative_to(into)}/: {_AGAIN}")
        os.replace(top, whole)
    except _DAMAGE as problem:
        raise DataError(
            f"{archive} cannot be unpacked into {into} ({problem}): free some room or fetch it again"
        ) from problem
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for each in packed.infolist():
                if each.is_dir():
                    continue
                if stat.S_ISLNK(each.external_attr >> 16):
                    raise DataError(f"{archive}: {each.filename} is a link: {_AGAIN}")
                with packed.open(each) as file:
                    yield each.filename, file
        return
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            if member.isdir():
                continue
            plain = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if plain is None:
                raise DataError(f"{archive}: {member.name} is no plain file: {_AGAIN}")
            yield member.name, plain


def _inside(root: Path, name: str, archive: Path) -> Path:
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise DataError(f"{archive}: the member {name!r} leads out of its folder: {_AGAIN}")
    return root.joinpath(*parts)
