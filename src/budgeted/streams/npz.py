""".npz files: a zip of arrays, each checked against the bytes that are really there before any room is taken for it."""

from __future__ import annotations

import math
import re
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError
from budgeted.streams.files import open_regular, read_at_most, size_of

#: A file may unpack to so many bytes, or to so many times its own size if that is more. Photographs shrink by less
#: than 2 and drawings by about 10; what shrinks by 1,000 is blank.
MOST_UNPACKED = 256 * 2**20
MOST_TIMES = 64
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_MOST_AXES = 8
_ENCRYPTED = 0x1
_TYPE = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?[a-zA-Z]\d{0,9})['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([\d\sL,]*)\)""")


class _Odd(Exception):
    """Why a member is no plain array."""


def read_npz(path: Path, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, NDArray[np.generic]]:
    """The arrays of these names; without a required one, or with one that is no plain array, refused."""
    remedy = f"save with numpy.savez({', '.join(required)})"
    try:
        with open_regular(path) as file:
            size = size_of(file)
            if file.read(len(_MAGIC)) == _MAGIC:
                raise DataError(f"{path}: a single array; {remedy}")
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, path, required, optional, remedy)
                unpacked, most = sum(each.file_size for each in members.values()), max(MOST_UNPACKED, MOST_TIMES * size)
                if unpacked > most:
                    raise _Odd(f"unpacks to {unpacked:,} bytes, at most {most:,} are taken")
                return {name: _array(archive, member) for name, member in members.items()}
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist: check the path") from None
    except Exception as problem:  # zipfile fails on damaged files in many ways
        raise DataError(
            f"{path}: cut, damaged or not plain arrays ({_size(path):,} bytes; {problem}): save with numpy.savez"
        ) from problem


def _members(
    archive: zipfile.ZipFile, path: Path, required: Iterable[str], optional: Iterable[str], remedy: str
) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    wanted = {*required, *optional}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name not in wanted:
            continue
        if name in found:
            raise _Odd(f"{name} is in it twice")
        if member.flag_bits & _ENCRYPTED:
            raise _Odd(f"{name} is encrypted")
        if member.compress_type not in _METHODS:
            raise _Odd(f"{name} is packed in a way that numpy does not use")
        found[name] = member
    if missing := [name for name in required if name not in found]:
        raise DataError(f"{path}: no {missing[0]} in it; {remedy}")
    return found


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[np.generic]:
    with archive.open(member) as file:
        start = file.read(8)
        if start[:6] != _MAGIC or start[6:7] not in (b"\1", b"\2"):
            raise _Odd(f"{member.filename} is no array")
        form = "<H" if start[6:7] == b"\1" else "<I"
        (length,) = struct.unpack(form, file.read(struct.calcsize(form)))
        if length > _LONGEST_HEADER:
            raise _Odd(f"{member.filename} has a header of {length:,} bytes")
        kind, by_columns, shape = _header(file, length, member.filename)
        declared, there = math.prod(shape) * kind.itemsize, member.file_size - 8 - struct.calcsize(form) - length
        if declared != there:
            raise _Odd(f"{member.filename} declares {declared:,} bytes of values, {there:,} are there")
        content = read_at_most(file, declared + 1)  # one more than there is: at its end the checksum is looked at
    if len(content) != declared:
        raise _Odd(f"{member.filename} is cut")
    return np.frombuffer(content, kind).reshape(shape, order="F" if by_columns else "C")


def _header(file: IO[bytes], length: int, name: str) -> tuple[np.dtype[np.generic], bool, tuple[int, ...]]:
    """Type, order and shape; taken from the text by patterns, so that nothing in it is evaluated."""
    text = file.read(length).decode("latin-1")
    kind, order, shape = _TYPE.search(text), _ORDER.search(text), _SHAPE.search(text)
    if kind is None or order is None or shape is None:
        raise _Odd(f"{name} is no plain array")
    sides = tuple(int(side.rstrip("L")) for side in shape[1].replace(" ", "").split(",") if side)
    dtype: np.dtype[np.generic] = np.dtype(kind[1])
    if dtype.hasobject or dtype.itemsize == 0 or len(sides) > _MOST_AXES:
        raise _Odd(f"{name} is no plain array")
    return dtype, order[1] == "True", sides


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0
