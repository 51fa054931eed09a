"""Reads the pickles of CIFAR's python version without running anything that a pickle names.

The official batches are pickles of one dict of strings, lists, numbers and byte arrays. A pickle is a program for
a small machine, which may call any function. The machine here knows only the steps that make those values; the
three names that the batches hold stand for byte arrays, and every other name or step is refused. Nothing in it
recurses, a number in the file never reserves memory, and the steps are counted: what a file can cost is bounded
by its length.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError

#: Steps that a pickle of a few names may take.
FEW_STEPS = 10_000
_NEWEST_PROTOCOL = 5
_LONGEST_NUMBER = 1000  # digits; far above any label, far below what takes time to convert
_MOST_AXES = 4
_MARK = object()


class _Refused(Exception):
    """Why a pickle is no CIFAR batch."""


class _Name(Enum):
    """The global names of a batch."""

    RECONSTRUCT = "_reconstruct"
    ARRAY = "ndarray"
    TYPE = "dtype"


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _Name.RECONSTRUCT,
    ("numpy", "ndarray"): _Name.ARRAY,
    ("numpy", "dtype"): _Name.TYPE,
}


class _ByteType:
    """Stands for numpy.dtype: only one-byte unsigned integers exist."""


class _ByteArray:
    """Stands for numpy.ndarray; filled by its state."""

    array: NDArray[np.uint8] | None = None


class _Tape:
    """The bytes of a pickle and how far they are read."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def block(self, length: int) -> bytes:
        if not 0 <= length <= len(self._raw) - self._at:
            raise _Refused(f"{length:,} bytes announced at byte {self._at:,}, {len(self._raw) - self._at:,} there")
        self._at += length
        return self._raw[self._at - length : self._at]

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.block(struct.calcsize(form)))[0])

    def counted(self, form: str) -> bytes:
        """A block whose length comes before it."""
        return self.block(self.number(form))

    def line(self) -> bytes:
        end = self._raw.find(b"\n", self._at)
        if end < 0:
            raise _Refused(f"no end of the line at byte {self._at:,}")
        line = self._raw[self._at : end]
        self._at = end + 1
        return line

    def line_number(self) -> int:
        line = self.line()
        if len(line) > _LONGEST_NUMBER:
            raise _Refused(f"a number of {len(line):,} digits")
        return int(line.removesuffix(b"L"))

    def line_truth_or_number(self) -> int | bool:
        if self._raw[self._at : self._at + 3] in (b"00\n", b"01\n"):
            return self.line() == b"01"
        return self.line_number()

    def quoted(self) -> bytes:
        """A string of protocol 0; no batch was ever written so, and none of its escapes is known here."""
        line = self.line()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"') or b"\\" in line:
            raise _Refused("a string without its quotes or with escapes")
        return line[1:-1]


#: Steps that put one value on the stack. Python 2's strings are bytes, as in the official files.
_VALUES: dict[bytes, Callable[[_Tape], Any]] = {
    pickle.NONE: lambda tape: None,
    pickle.NEWTRUE: lambda tape: True,
    pickle.NEWFALSE: lambda tape: False,
    pickle.INT: _Tape.line_truth_or_number,
    pickle.LONG: _Tape.line_number,
    pickle.BININT: lambda tape: tape.number("<i"),
    pickle.BININT1: lambda tape: tape.number("<B"),
    pickle.BININT2: lambda tape: tape.number("<H"),
    pickle.LONG1: lambda tape: int.from_bytes(tape.counted("<B"), "little", signed=True),
    pickle.STRING: _Tape.quoted,
    pickle.BINSTRING: lambda tape: tape.counted("<i"),
    pickle.SHORT_BINSTRING: lambda tape: tape.counted("<B"),
    pickle.BINBYTES: lambda tape: tape.counted("<I"),
    pickle.SHORT_BINBYTES: lambda tape: tape.counted("<B"),
    pickle.BINBYTES8: lambda tape: tape.counted("<Q"),
    pickle.UNICODE: lambda tape: tape.line().decode("raw-unicode-escape"),
    pickle.BINUNICODE: lambda tape: tape.counted("<I").decode(),
    pickle.SHORT_BINUNICODE: lambda tape: tape.counted("<B").decode(),
    pickle.BINUNICODE8: lambda tape: tape.counted("<Q").decode(),
    pickle.EMPTY_LIST: lambda tape: [],
    pickle.EMPTY_DICT: lambda tape: {},
    pickle.EMPTY_TUPLE: lambda tape: (),
}
_TUPLES = {pickle.TUPLE1: 1, pickle.TUPLE2: 2, pickle.TUPLE3: 3}
_PUTS: dict[bytes, Callable[[_Tape], int]] = {
    pickle.PUT: _Tape.line_number,
    pickle.BINPUT: lambda tape: tape.number("<B"),
    pickle.LONG_BINPUT: lambda tape: tape.number("<I"),
}
_GETS: dict[bytes, Callable[[_Tape], int]] = {
    pickle.GET: _Tape.line_number,
    pickle.BINGET: lambda tape: tape.number("<B"),
    pickle.LONG_BINGET: lambda tape: tape.number("<I"),
}


class _Machine:
    def __init__(self, raw: bytes) -> None:
        self._tape = _Tape(raw)
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self, most_steps: int) -> Any:
        for _ in range(most_steps):
            step = self._tape.block(1)
            if step == pickle.STOP:
                return self._pop()
            if value := _VALUES.get(step):
                self._stack.append(value(self._tape))
            elif put := _PUTS.get(step):
                self._memo[put(self._tape)] = self._top()
            elif get := _GETS.get(step):
                self._recall(get(self._tape))
            elif length := _TUPLES.get(step):
                self._stack.append(tuple(reversed([self._pop() for _ in range(length)])))
            else:
                self._other(step)
        raise _Refused(f"more than the {most_steps:,} steps that a batch of this size takes")

    def _other(self, step: bytes) -> None:
        match step:
            case pickle.PROTO:
                if (protocol := self._tape.number("<B")) > _NEWEST_PROTOCOL:
                    raise _Refused(f"protocol {protocol}")
            case pickle.FRAME:
                self._tape.block(8)  # frames only help those who read piece by piece
            case pickle.MARK:
                self._stack.append(_MARK)
            case pickle.POP:
                self._stack.pop()
            case pickle.MEMOIZE:
                self._memo[len(self._memo)] = self._top()
            case pickle.APPEND:
                self._extend([self._pop()])
            case pickle.APPENDS:
                self._extend(self._since_mark())
            case pickle.LIST:
                self._stack.append(self._since_mark())
            case pickle.TUPLE:
                self._stack.append(tuple(self._since_mark()))
            case pickle.DICT:
                items = self._since_mark()
                self._stack.append({})
                self._set_items(items)
            case pickle.SETITEM:
                value, key = self._pop(), self._pop()
                self._set_items([key, value])
            case pickle.SETITEMS:
                self._set_items(self._since_mark())
            case pickle.GLOBAL | pickle.INST:
                self._name(self._tape.line().decode("latin-1"), self._tape.line().decode("latin-1"))
                if step == pickle.INST:
                    raise _Refused("it makes an instance")
            case pickle.STACK_GLOBAL:
                name, module = self._pop(), self._pop()
                self._name(module, name)
            case pickle.REDUCE:
                given, called = self._pop(), self._pop()
                self._stack.append(_call(called, given))
            case pickle.BUILD:
                state = self._pop()
                _fill(self._top(), state)
            case _:
                raise _Refused(f"step {step!r}, which no CIFAR batch takes")

    def _top(self) -> Any:
        if not self._stack or self._stack[-1] is _MARK:
            raise _Refused("a step without its value")
        return self._stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        del self._stack[-1]
        return value

    def _since_mark(self) -> list[Any]:
        for start in range(len(self._stack) - 1, -1, -1):
            if self._stack[start] is _MARK:
                values = self._stack[start + 1 :]
                del self._stack[start:]
                return values
        raise _Refused("a step without its mark")

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise _Refused(f"value {index:,} is recalled but was never kept")
        self._stack.append(self._memo[index])

    def _extend(self, values: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, list):
            raise _Refused(f"values appended to a {type(target).__name__}")
        target.extend(values)

    def _set_items(self, items: list[Any]) -> None:
        target = self._top()
        if not isinstance(target, dict) or len(items) % 2:
            raise _Refused("keys and values that do not fit")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, bytes | str | int):  # to hash a nested key can take for ever
                raise _Refused(f"a key that is a {type(key).__name__}")
            target[key] = value

    def _name(self, module: object, name: object) -> None:
        known = _NAMES.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            shown = ".".join(part if isinstance(part, str) else type(part).__name__ for part in (module, name))
            raise _Refused(f"it names {shown}, which no CIFAR batch does")
        self._stack.append(known)


def _call(called: object, given: object) -> _ByteArray | _ByteType:
    if called is _Name.RECONSTRUCT:
        return _ByteArray()
    if called is not _Name.TYPE or not isinstance(given, tuple):
        raise _Refused("a call that no CIFAR batch makes")
    code = given[0] if given else None
    if code not in (b"u1", "u1"):
        shown = repr(code) if isinstance(code, bytes | str) else type(code).__name__
        raise _Refused(f"an array of {shown} instead of bytes")
    return _ByteType()


def _fill(target: object, state: object) -> None:
    if isinstance(target, _ByteType):
        return  # byte order and alignment mean nothing for single bytes
    match state:
        case (int(), tuple(shape), _ByteType(), int(by_columns), bytes(raw)) if isinstance(target, _ByteArray):
            sides = [side for side in shape[: _MOST_AXES + 1] if isinstance(side, int) and side >= 0]
            if len(sides) != len(shape) or len(sides) > _MOST_AXES or math.prod(sides) != len(raw):
                raise _Refused(f"an array of shape {tuple(sides)} in {len(raw)} bytes")
            target.array = np.frombuffer(raw, np.uint8).reshape(sides, order="F" if by_columns else "C")
        case _:
            raise _Refused("an array in an unknown form")


def _plain(value: Any) -> Any:
    return value.array if isinstance(value, _ByteArray) else value


def read_inert(raw: bytes, where: str, most_steps: int = FEW_STEPS) -> dict[bytes, Any]:
    """The dict in `raw` with byte-string keys and numpy uint8 arrays; `where` names the file in errors."""
    try:
        content = _Machine(raw).run(most_steps)
        if not isinstance(content, dict):
            raise _Refused(f"a {type(content).__name__} instead of a batch")
        return {key if isinstance(key, bytes) else str(key).encode(): _plain(value) for key, value in content.items()}
    except (_Refused, ValueError, IndexError) as problem:  # ValueError: text that is no number or not UTF-8
        raise DataError(
            f"{where}: refused, not a CIFAR batch or damaged ({len(raw):,} bytes; {problem}): "
            "fetch the official archive again, or use the binary version"
        ) from problem
