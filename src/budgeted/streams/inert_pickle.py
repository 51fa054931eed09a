"""Reads the pickles of CIFAR's python version without running anything that a pickle names.

The official batches are pickles of one dict of strings, lists, numbers and byte arrays. A pickle may name any
function and have it called; here the three names that those batches hold map to inert stand-ins which only
keep the bytes, and every other name is refused. Not even numpy's own rebuilding code runs.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError


class _ByteType:
    """Stands for numpy.dtype: only one-byte unsigned integers exist."""

    def __init__(self, code: object = None, *_: object) -> None:
        if code not in (b"u1", "u1"):
            raise pickle.UnpicklingError(f"an array of {code!r} instead of bytes")

    def __setstate__(self, _: object) -> None:
        """Byte order and alignment mean nothing for single bytes."""


class _ByteArray:
    """Stands for numpy.ndarray: keeps the shape and the raw bytes of the pickled state."""

    array: NDArray[np.uint8] | None = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _ByteType(), bool() | int() as by_columns, bytes(raw)):
                sides = [side for side in shape if isinstance(side, int) and side >= 0]
                if len(sides) != len(shape) or math.prod(sides) != len(raw):
                    raise pickle.UnpicklingError(f"an array of shape {shape} in {len(raw)} bytes")
                self.array = np.frombuffer(raw, np.uint8).reshape(sides, order="F" if by_columns else "C")
            case _:
                raise pickle.UnpicklingError("an array in an unknown form")


def _reconstruct(*_: object) -> _ByteArray:
    """Stands for numpy's function of this name: an empty array that its state will fill."""
    return _ByteArray()


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _ByteArray,
    ("numpy", "dtype"): _ByteType,
}


class _InertUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no CIFAR batch does") from None


def read_inert(raw: bytes, where: str) -> dict[bytes, Any]:
    """The dict in `raw` with byte-string keys and numpy uint8 arrays; `where` names the file in errors."""
    try:
        content = _InertUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except Exception as problem:  # a damaged pickle can fail in any way at all
        raise DataError(
            f"{where}: refused, not a CIFAR batch or damaged ({len(raw):,} bytes; {problem}): "
            "fetch the official archive again, or use the binary version"
        ) from problem
    if not isinstance(content, dict):
        raise DataError(f"{where}: holds a {type(content).__name__} instead of a CIFAR batch: fetch it again")
    return {
        key if isinstance(key, bytes) else str(key).encode(): value.array if isinstance(value, _ByteArray) else value
        for key, value in content.items()
    }
