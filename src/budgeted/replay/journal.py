"""Where the rows of something large were last written, so that a checkpoint writes only those that changed.

Rows are what the slots hold of their samples, and what a codec keeps that several slots share. Every row that is
written gets the next number, its place; rows that were written together are a segment. A row that changes, or goes,
leaves its old place as garbage. When more than half of all that was written is garbage, the segments with the largest
share of it are given up and what is left of them is written again: less than they free, so a checkpoint writes at
most twice what changed, and one segment more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

Places = npt.NDArray[np.int64]

UNWRITTEN = -1
MOST_SEGMENTS = 1000
"""of one journal: a checkpoint names them all"""


class Segment(NamedTuple):
    """Rows that were written together."""

    file: str
    first: int
    """place of its first row"""
    rows: int
    nbytes: int
    sha256: str


class Rows(Protocol):
    """What is written row by row."""

    def places(self) -> Places:
        """Where each row is written, in the order in which a state has them: a copy. UNWRITTEN if it changed since."""

    def settle(self, places: Places) -> None:
        """All rows are written there now."""

    def row_nbytes(self) -> float:
        """Bytes of a row, on average."""

    def content(self, rows: npt.NDArray[np.int64]) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """Copies of these rows by their names in the memory's state; a list where rows differ in length."""


@dataclass
class Journal:
    """Rows, and the segments that hold those which are written."""

    rows: Rows
    segments: tuple[Segment, ...] = ()

    def due(self) -> tuple[Places, tuple[Segment, ...]]:
        """Places of all rows, with UNWRITTEN for those to be written now, and the segments that stay."""
        places = self.rows.places()
        live = live_rows(places, self.segments)
        shares = [count / segment.rows for count, segment in zip(live, self.segments, strict=True)]
        garbage = [(1 - share) * segment.nbytes for share, segment in zip(shares, self.segments, strict=True)]
        needed = float((places == UNWRITTEN).sum()) * self.rows.row_nbytes()
        needed += sum(segment.nbytes for segment in self.segments) - sum(garbage)
        given_up: set[int] = set()
        for number in sorted(range(len(shares)), key=lambda number: shares[number]):
            left = sum(garbage) - sum(garbage[other] for other in given_up)
            if shares[number] and left <= needed and len(shares) - len(given_up) < MOST_SEGMENTS:
                break
            given_up.add(number)
        for number in given_up:
            places[in_segment(places, self.segments[number])] = UNWRITTEN
        return places, tuple(each for number, each in enumerate(self.segments) if number not in given_up)

    @property
    def next_place(self) -> int:
        return max((segment.first + segment.rows for segment in self.segments), default=0)


def in_segment(places: Places, segment: Segment) -> npt.NDArray[np.bool_]:
    return (places >= segment.first) & (places < segment.first + segment.rows)


def live_rows(places: Places, segments: Sequence[Segment]) -> list[int]:
    """Rows of each segment that still count; segments are in the order of their places."""
    firsts = np.array([segment.first for segment in segments], np.int64)
    written = places[places != UNWRITTEN]
    counts = np.bincount(firsts.searchsorted(written, "right") - 1, minlength=len(segments)) if len(written) else None
    return [0] * len(segments) if counts is None else counts.tolist()
