"""Codes of any length, one for every slot, in one buffer of bytes.

A code is written behind the last one; what it replaces is left as a gap. When the buffer is full, the codes move
together over the gaps, run by run (codes that lie side by side move as one). Gaps and free room are at most a quarter
of the bytes in use (and 8 KiB): a buffer is made an eighth larger than its content, packed again while that leaves at
least a sixteenth free, and made anew, larger or smaller, otherwise. So between two packings at least a sixteenth of
the content is written or given up, and storing n bytes costs O(n) on average, however long it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from budgeted.replay.column import Column

Bytes = npt.NDArray[np.uint8]

_FLOOR = 4096
_PIECE = 1 << 20  # bytes moved at once: what numpy sets aside where source and target overlap
_SHORT = 1 << 30  # up to this limit places fit 32 bits, gaps included


def place_columns(limit: int | None) -> tuple[Column, Column]:
    """Where a slot's code begins and how long it is: bytes of every slot as well."""
    place = torch.int32 if limit is not None and limit <= _SHORT else torch.int64
    return Column("start", (), place, host=True), Column("length", (), torch.int32, host=True)


class Arena:
    """The codes of slots 0, 1, …; a slot without a code has length 0."""

    def __init__(self, limit: int | None = None) -> None:
        """limit: the bytes that codes will take at most, None if nobody knows."""
        start, length = (torch.zeros(0, dtype=column.dtype).numpy() for column in place_columns(limit))
        self._starts: npt.NDArray[np.integer] = start
        self.lengths: npt.NDArray[np.integer] = length
        self.live = 0
        """bytes of all codes"""
        self._end = 0
        self._buffer: Bytes = np.empty(0, np.uint8)

    @property
    def slack(self) -> int:
        """Bytes of the buffer that hold no code: working memory."""
        return self._buffer.size - self.live

    def ensure_slots(self, slots: int) -> None:
        """Room for the places of exactly so many slots; those beyond must be empty."""
        for name in ("_starts", "lengths"):
            old = getattr(self, name)
            new = np.zeros(slots, old.dtype)
            kept = min(slots, old.size)
            new[:kept] = old[:kept]
            setattr(self, name, new)

    def write(self, slot: int, code: Bytes) -> None:
        """In place of what the slot holds."""
        before, size = int(self.lengths[slot]), code.size
        if size > before:
            self.live -= before
            self.lengths[slot] = 0
            if self._end + size > self._buffer.size:
                self._make_room(size)
            start = self._starts[slot] = self._end
            self._end += size
            before = 0
        else:
            start = int(self._starts[slot])
        self._buffer[start : start + size] = code
        self.lengths[slot] = size
        self.live += size - before
        self._tidy()

    def clear(self, slot: int) -> None:
        self.live -= int(self.lengths[slot])
        self.lengths[slot] = 0
        self._tidy()

    def move(self, slot: int, target: int) -> None:
        """What `slot` holds is that of the empty slot `target` from now on."""
        self._starts[target] = self._starts[slot]
        self.lengths[target] = self.lengths[slot]
        self.lengths[slot] = 0

    def read(self, slots: npt.NDArray[np.integer]) -> list[torch.Tensor]:
        """Copies of the codes in these slots."""
        starts, lengths = self._starts[slots].tolist(), self.lengths[slots].tolist()
        return [
            torch.from_numpy(self._buffer[start : start + length].copy())
            for start, length in zip(starts, lengths, strict=True)
        ]

    def state(self, slots: int) -> dict[str, torch.Tensor]:
        """The codes of the first `slots` slots, one after another, and how long each is."""
        packed = np.empty(self.live, np.uint8)
        end = 0
        for start, length in zip(self._starts[:slots].tolist(), self.lengths[:slots].tolist(), strict=True):
            packed[end : end + length] = self._buffer[start : start + length]
            end += length
        return {"codes": torch.from_numpy(packed), **self.lengths_only(slots)}

    def lengths_only(self, slots: int) -> dict[str, torch.Tensor]:
        return {"lengths": torch.from_numpy(self.lengths[:slots].copy())}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        lengths = state["lengths"].numpy()
        self.ensure_slots(max(lengths.size, self.lengths.size))
        self.lengths[:] = 0
        self.lengths[: lengths.size] = lengths
        self._starts[: lengths.size] = np.cumsum(lengths, dtype=np.int64) - lengths
        self._buffer = state["codes"].numpy().copy()
        self._end = self.live = self._buffer.size

    def _make_room(self, size: int) -> None:
        needed = self.live + size
        if self._buffer.size - needed >= needed // 16 + _FLOOR // 4:
            self._pack(self._buffer)
        else:
            self._pack(np.empty(needed + needed // 8 + _FLOOR, np.uint8))

    def _tidy(self) -> None:
        if self.slack > self.live // 4 + 2 * _FLOOR:
            self._pack(np.empty(self.live + self.live // 8 + _FLOOR, np.uint8))

    def _pack(self, target: Bytes) -> None:
        """Move all codes together to the beginning of `target`, which may be the buffer itself."""
        slots = np.flatnonzero(self.lengths)
        slots = slots[np.argsort(self._starts[slots])]
        lengths = self.lengths[slots].astype(np.int64)
        starts = self._starts[slots].astype(np.int64)
        places = np.cumsum(lengths) - lengths
        begins = np.flatnonzero(np.diff(starts - places, prepend=-1))  # a run ends where the distance to move changes
        run_lengths = np.diff(places[begins], append=lengths.sum())
        for start, place, length in zip(
            starts[begins].tolist(), places[begins].tolist(), run_lengths.tolist(), strict=True
        ):
            if target is self._buffer and start == place:
                continue
            for done in range(0, length, _PIECE):
                piece = min(_PIECE, length - done)
                source = self._buffer[start + done : start + done + piece]
                target[place + done : place + done + piece] = source
        self._starts[slots] = places
        self._buffer = target
        self._end = self.live


class AlikeArena(Arena):
    """Keeps the code written last, for all slots, and their true lengths: what a rehearsal needs."""

    def write(self, slot: int, code: Bytes) -> None:
        self.live += code.size - int(self.lengths[slot])
        self.lengths[slot] = code.size
        self._buffer = code.copy()

    def read(self, slots: npt.NDArray[np.integer]) -> list[torch.Tensor]:
        return [torch.from_numpy(self._buffer)] * len(slots)

    @property
    def slack(self) -> int:
        return 0

    def _tidy(self) -> None:
        pass

    def state(self, slots: int) -> dict[str, torch.Tensor]:
        return {"codes": torch.from_numpy(self._buffer.copy()), **self.lengths_only(slots)}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        super().load_state(state)
        self.live = int(self.lengths.sum())
        if self.live and self._buffer.size == self.live:  # all codes, of a memory that kept them
            self._buffer = self._buffer[-int(state["lengths"][-1]) :].copy()
