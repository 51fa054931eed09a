"""Structs of words and numbers in .mat files of version 5, the form of ImageNet's list of synsets.

Like `mat`, it believes nothing: the file and what it unpacks to are limited, every length is compared with what is
there, and nesting ends after a few levels.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from budgeted.streams.mat import MatError

MOST_UNPACKED = 32 * 2**20
_MATRIX, _COMPRESSED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXTS = {16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_STRUCT, _CHAR = 2, 4
_DEEPEST = 4


def read_structs(content: bytes, name: str) -> list[dict[str, Any]]:
    """The variable `name`, an array of structs, as dictionaries; fields are words, numbers, or lists of numbers."""
    if content[124:128] != b"\0\1IM":
        raise MatError("no .mat file of version 5 (little endian)")
    at = 128
    while at < len(content):
        kind, body, at = _element(content, at)
        if kind == _COMPRESSED:
            kind, body, _ = _element(_inflated(body), 0)
        if kind != _MATRIX:
            raise MatError(f"an element of kind {kind}")
        found, value = _matrix(body, 0)
        if found == name:
            if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
                raise MatError(f"{name} holds no structs")
            return value
    raise MatError(f"no {name} in it")


def _inflated(packed: bytes) -> bytes:
    machine = zlib.decompressobj()
    try:
        content = machine.decompress(packed, MOST_UNPACKED)
    except zlib.error as problem:
        raise MatError(str(problem)) from problem
    if not machine.eof:
        raise MatError(f"a compressed variable is cut or unpacks to more than {MOST_UNPACKED:,} bytes")
    return content


def _element(content: bytes, at: int) -> tuple[int, bytes, int]:
    """Kind and bytes of the element at `at`, and where the next begins."""
    if at + 8 > len(content):
        raise MatError("it is cut")
    kind = int.from_bytes(content[at : at + 4], "little")
    if small := kind >> 16:
        if small > 4:
            raise MatError(f"a small element of {small} bytes")
        return kind & 0xFFFF, content[at + 4 : at + 4 + small], at + 8
    length = int.from_bytes(content[at + 4 : at + 8], "little")
    if length > len(content) - at - 8:
        raise MatError(f"{length:,} bytes announced, {len(content) - at - 8:,} there")
    padded = length if kind == _COMPRESSED else length + -length % 8
    return kind, content[at + 8 : at + 8 + length], at + 8 + padded


def _numbers(kind: int, body: bytes) -> Any:
    if kind not in _NUMBERS:
        raise MatError(f"an element of kind {kind}")
    dtype = np.dtype("<" + _NUMBERS[kind])
    if len(body) % dtype.itemsize:
        raise MatError("half a number")
    return np.frombuffer(body, dtype)


def _matrix(body: bytes, depth: int) -> tuple[str, Any]:
    if depth > _DEEPEST:
        raise MatError(f"nested more than {_DEEPEST} deep")
    if not body:
        return "", []
    kind, flags, at = _element(body, 0)
    shape_kind, shape, at = _element(body, at)
    _, name, at = _element(body, at)
    what = int(_numbers(kind, flags)[0]) & 0xFF if flags else 0
    sides = [int(side) for side in _numbers(shape_kind, shape)]
    count = math.prod(sides) if sides and min(sides) >= 0 else 0
    if what == _STRUCT:
        return name.decode("latin-1"), _structs(body, at, count, depth)
    kind, values, _ = _element(body, at) if at < len(body) else (1, b"", at)
    if what == _CHAR:
        return name.decode("latin-1"), _text(kind, values)
    numbers = _numbers(kind, values).tolist()
    return name.decode("latin-1"), numbers[0] if len(numbers) == 1 else numbers


def _structs(body: bytes, at: int, count: int, depth: int) -> list[dict[str, Any]]:
    kind, length, at = _element(body, at)
    names_kind, names, at = _element(body, at)
    width = int(_numbers(kind, length)[0]) if length else 0
    if width < 1 or len(names) % width or names_kind not in (1, 2):
        raise MatError("structs without names of fields")
    fields = [names[i : i + width].split(b"\0")[0].decode("latin-1") for i in range(0, len(names), width)]
    if count * len(fields) * 8 > len(body):
        raise MatError(f"{count:,} structs announced, fewer there")
    found = []
    for _ in range(count):
        each = {}
        for field in fields:
            kind, inner, at = _element(body, at)
            if kind != _MATRIX:
                raise MatError(f"a field of kind {kind}")
            each[field] = _matrix(inner, depth + 1)[1]
        found.append(each)
    return found


def _text(kind: int, values: bytes) -> str:
    if kind in _TEXTS:
        return values.decode(_TEXTS[kind], "replace")
    return "".join(chr(int(number)) for number in _numbers(kind, values) if 0 <= int(number) < 0xD800)
