"""Numeric arrays in .mat files of version 5, the form that SVHN comes in.

A small reader of its own, since a general one believes what a file says: sizes are compared with what may be there
before any room is taken, compressed variables are unpacked piece by piece, and nothing nests.

    header of 128 bytes, then elements: kind (4 bytes), length (4 bytes), content; a small one keeps its content in
    the second 4. A variable is an element MATRIX of elements: flags, sides, name, values; or that, compressed.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.files import open_regular, read_at_most, size_of

_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
#: Classes of plain numbers: double, single and the integers.
_NUMBERS = range(6, 16)
_COMPLEX = 0x0800
_MOST_VARIABLES = 64
_LONGEST_NAME = 64
_MOST_AXES = 8
_PIECE = 1 << 16


class MatError(Exception):
    """Why a file is no .mat file with the arrays that are wanted."""


class _Inflated:
    """What the next bytes of a file unpack to, as far as it is asked for."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file = file
        self._left = length
        self._packed = b""
        self._machine = zlib.decompressobj()

    def read(self, size: int, /) -> bytes:
        content = b""
        while not content and not self._machine.eof:
            if not self._packed:
                self._packed = self._file.read(min(_PIECE, self._left))
                self._left -= len(self._packed)
            last = not self._packed
            content = self._machine.decompress(self._packed, size)
            self._packed = self._machine.unconsumed_tail
            if last:
                break
        return content

    def demand_end(self) -> None:
        """Reads up to the checksum, which zlib looks at only at the end."""
        if self.read(1) or not self._machine.eof:
            raise MatError("a compressed variable is cut or too long")


def read_mat(path: Path, most: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
    """The arrays named in `most`, each of at most so many bytes."""
    found: dict[str, NDArray[np.generic]] = {}
    with open_regular(path) as file:
        order = _byte_order(file)
        for _ in range(_MOST_VARIABLES):
            start = file.read(8)
            if not start:
                return found
            kind, length = (int(each) for each in np.frombuffer(_whole(start, 8), order + "u4"))
            here = file.tell()
            if length > size_of(file) - here:
                raise MatError(f"{length:,} bytes announced, {size_of(file) - here:,} there")
            variable = _variable(file, kind, length, order, most)
            if variable is not None:
                name, values = variable
                if name in found:
                    raise MatError(f"{name} is in it twice")
                found[name] = values
            file.seek(here + length)
    raise MatError(f"more than {_MOST_VARIABLES} variables")


def _byte_order(file: BinaryIO) -> str:
    header = _whole(file.read(_HEADER), _HEADER)
    for order, mark in (("<", b"\0\1IM"), (">", b"\1\0MI")):
        if header[124:128] == mark:
            return order
    raise MatError("no .mat file of version 5")


def _variable(
    file: BinaryIO, kind: int, length: int, order: str, most: Mapping[str, int]
) -> tuple[str, NDArray[np.generic]] | None:
    """Name and values of one variable, or None for one that is not wanted."""
    if kind == _MATRIX:
        return _matrix(file, length, order, most)
    if kind != _COMPRESSED:
        raise MatError(f"an element of kind {kind}")
    inflated = _Inflated(file, length)
    inner, inner_length = (int(each) for each in np.frombuffer(_whole(read_at_most(inflated, 8), 8), order + "u4"))
    if inner != _MATRIX:
        raise MatError(f"a compressed element of kind {inner}")
    variable = _matrix(inflated, inner_length, order, most)
    if variable is not None:
        inflated.demand_end()
    return variable


def _matrix(
    file: BinaryIO | _Inflated, length: int, order: str, most: Mapping[str, int]
) -> tuple[str, NDArray[np.generic]] | None:
    elements = _Elements(file, length, order)
    flags = elements.array(8)
    if flags.dtype.kind != "u" or flags.dtype.itemsize != 4 or len(flags) != 2:
        raise MatError("a variable without its flags")
    sides = [int(side) for side in elements.array(4 * _MOST_AXES)]
    name = elements.array(_LONGEST_NAME).tobytes().decode("latin-1")
    if name not in most:
        return None
    if int(flags[0]) & 0xFF not in _NUMBERS or int(flags[0]) & _COMPLEX:
        raise MatError(f"{name} holds no plain numbers")
    values = elements.array(most[name])
    if min(sides, default=-1) < 0 or math.prod(sides) != len(values):
        raise MatError(f"{name} declares {' x '.join(map(str, sides))} values, {len(values):,} are there")
    elements.demand_end()
    return name, values.reshape(sides, order="F")


class _Elements:
    """The elements inside a variable, one after the other."""

    def __init__(self, file: BinaryIO | _Inflated, length: int, order: str) -> None:
        self._file = file
        self._left = length
        self._order = order

    def array(self, most: int) -> NDArray[np.generic]:
        """The numbers of the next element, which may have at most so many bytes."""
        tag = self._take(8)
        kind, length = (int(each) for each in np.frombuffer(tag, self._order + "u4"))
        small = kind >> 16
        if small:
            kind, length = kind & 0xFFFF, small
        if kind not in _TYPES or length > (4 if small else most):
            raise MatError(f"an element of kind {kind} and {length:,} bytes")
        content = tag[4 : 4 + length] if small else self._take(length)
        if not small:
            self._take(min(-length % 8, self._left))  # filled up to 8, but not by everyone at the very end
        dtype = np.dtype(self._order + _TYPES[kind])
        if length % dtype.itemsize:
            raise MatError("half a number")
        return np.frombuffer(content, dtype)

    def demand_end(self) -> None:
        if self._left:
            raise MatError(f"{self._left:,} bytes after the values")

    def _take(self, length: int) -> bytes | bytearray:
        if length > self._left:
            raise MatError(f"{length:,} bytes announced, {self._left:,} there")
        self._left -= length
        return _whole(read_at_most(self._file, length), length)


def _whole(content: bytes | bytearray, length: int) -> bytes | bytearray:
    if len(content) != length:
        raise MatError("it is cut")
    return content
