"""Bits of several codes, read and written side by side.

Every code is a row of bits with a place of its own. One call reads or writes the next so many bits of each, as one
array in which the codes follow one another, so that a batch of codes of differing lengths takes no loop over them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint8]


class BitReader:
    """Reads what a `BitWriter` wrote, in the same order of calls."""

    def __init__(self, codes: Sequence[bytes]) -> None:
        self._longest = max(map(len, codes))
        together = b"".join(code.ljust(self._longest, b"\0") for code in codes)
        self._bits: Bits = np.unpackbits(np.frombuffer(together, np.uint8))
        self._starts = np.arange(len(codes), dtype=np.int64) * 8 * self._longest
        self._places = self._starts.copy()

    def take(self, counts: Integers) -> Bits:
        """The next `counts[row]` bits of every row."""
        found = self._bits.take(_spread(self._places, counts), mode="clip")  # what is damaged may point anywhere
        self._places = self._places + counts
        return found

    def numbers(self, counts: Integers, widths: Integers) -> Integers:
        """The next `counts[row]` numbers of every row, each of its own width in bits, the highest bit first."""
        bits = self.take(_per_row(counts, widths))
        ends = np.cumsum(widths)
        owner = np.repeat(np.arange(len(widths)), widths)
        weights = np.left_shift(bits.astype(np.int64), ends[owner] - 1 - np.arange(len(bits)))
        return np.bincount(owner, weights, minlength=len(widths)).astype(np.int64)  # exact below 2^53

    def matrix(self, count: int, width: int) -> Integers:
        """The next `count` numbers of every row, all of one width: [rows, count]."""
        places = self._places[:, None] + np.arange(count * width)
        bits = self._bits.take(places, mode="clip").reshape(-1, count, width)
        self._places = self._places + count * width
        return bits.astype(np.int64) @ (1 << np.arange(width - 1, -1, -1))

    def lengths(self) -> Integers:
        """Bytes that were read of every row."""
        return -(-(self._places - self._starts) // 8)


class BitWriter:
    """Collects bits of so many rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces: list[tuple[Integers, Bits]] = []

    def put(self, counts: Integers, bits: npt.NDArray[np.bool_] | Bits) -> None:
        """`counts[row]` bits more for every row; those of the first row come first."""
        self._pieces.append((counts, bits.view(np.uint8)))

    def put_numbers(self, counts: Integers, values: Integers, widths: Integers) -> None:
        """`counts[row]` numbers more for every row, each of its own width in bits."""
        ends = np.cumsum(widths)
        owner = np.repeat(np.arange(len(widths)), widths)
        bits = np.right_shift(values[owner], ends[owner] - 1 - np.arange(len(owner))) & 1
        self.put(_per_row(counts, widths), bits.astype(np.uint8))

    def put_matrix(self, values: Integers, width: int) -> None:
        """[rows, count] numbers more, all of one width."""
        bits = (values[:, :, None] >> np.arange(width - 1, -1, -1)) & 1
        self.put(np.full(len(values), values.shape[1] * width), bits.astype(np.uint8).ravel())

    def codes(self) -> list[bytes]:
        """Every row, filled up with zeros to whole bytes."""
        lengths = np.sum([counts for counts, _ in self._pieces], axis=0)
        width = 8 * -(-int(lengths.max()) // 8)
        bits = np.zeros(self._rows * width, np.uint8)
        places = np.arange(self._rows, dtype=np.int64) * width
        for counts, piece in self._pieces:
            bits[_spread(places, counts)] = piece
            places = places + counts
        packed = np.packbits(bits.reshape(self._rows, width), axis=1)
        return [packed[row, :length].tobytes() for row, length in enumerate((-(-lengths // 8)).tolist())]


def _spread(places: Integers, counts: Integers) -> Integers:
    """Where the next `counts[row]` bits from `places[row]` on lie, for all rows."""
    ends = np.cumsum(counts)
    return np.repeat(places - ends + counts, counts) + np.arange(int(ends[-1]))


def _per_row(counts: Integers, widths: Integers) -> Integers:
    """Bits of each row, of which each has `counts[row]` numbers of these widths."""
    ends = np.concatenate([[0], np.cumsum(widths)])
    last = np.cumsum(counts)
    return np.asarray(ends[last] - ends[last - counts], np.int64)
