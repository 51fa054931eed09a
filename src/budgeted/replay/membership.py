"""Slots grouped under keys, with constant-time moves and a uniform choice within any group.

Every key owns a segment of one pool of slot numbers; a slot remembers its position in its segment, so
leaving is one swap with the segment's last member. A full segment moves to the end of the pool with twice
the room; a full pool is repacked. Both are paid for by the additions since the last one, so an update
costs O(1) on average, and a vector of (key, position) pairs is looked up in one gather.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]
"""Slot numbers, as every draw returns them."""

_SPARE = 4


class Membership:
    """Which slots belong to which key; the caller knows the key of a slot and passes it in."""

    counts: Slots
    """How many slots each key has."""

    def __init__(self, keys: int = 0, slots: int = 0) -> None:
        self._position = np.zeros(slots, np.int32)
        self.build(np.zeros(0, np.int32), np.zeros(keys, np.int64))

    def build(self, order: npt.NDArray[np.integer], counts: npt.NDArray[np.integer]) -> None:
        """Take `order`, the slots of key 0, then of key 1, …, as the content; the order within a key is
        kept.
        """
        self.counts = counts.astype(np.int64)
        self._room = self.counts + np.maximum(_SPARE, self.counts // 2)
        self._start = np.cumsum(self._room) - self._room
        self._end = int(self._room.sum())
        self._pool = np.zeros(self._end + self._end // 2 + 16, np.int32)
        rank = self._rank()
        self._pool[np.repeat(self._start, self.counts) + rank] = order
        if order.size:
            self.ensure_slots(int(order.max()) + 1)
            self._position[order] = rank

    def group(self, slots: npt.NDArray[np.integer], keys: npt.NDArray[np.integer], count: int) -> None:
        """Take `slots`, each under its key out of `count` keys, as the content."""
        if count <= np.iinfo(np.int16).max:
            keys = keys.astype(np.int16)  # numpy sorts 16-bit integers by radix, in linear time
        order = np.argsort(keys, kind="stable")
        self.build(slots[order], np.bincount(keys, minlength=count))

    def order(self) -> npt.NDArray[np.int32]:
        """The content as `build` takes it."""
        return self._pool[np.repeat(self._start, self.counts) + self._rank()]

    def _rank(self) -> Slots:
        first = np.cumsum(self.counts) - self.counts
        return np.arange(int(self.counts.sum())) - np.repeat(first, self.counts)

    def ensure_keys(self, keys: int) -> None:
        missing = keys - self.counts.size
        if missing > 0:
            nothing = np.zeros(missing, np.int64)
            self.counts = np.concatenate([self.counts, nothing])
            self._room = np.concatenate([self._room, nothing])
            self._start = np.concatenate([self._start, nothing])

    def ensure_slots(self, slots: int) -> None:
        missing = slots - self._position.size
        if missing > 0:
            self._position = np.concatenate([self._position, np.zeros(missing, np.int32)])

    def add(self, key: int, slot: int) -> None:
        count = int(self.counts[key])
        if count == self._room[key]:
            self._widen(key, count)
        self._pool[self._start[key] + count] = slot
        self._position[slot] = count
        self.counts[key] = count + 1

    def remove(self, key: int, slot: int) -> None:
        last = int(self.counts[key]) - 1
        start = int(self._start[key])
        position = int(self._position[slot])
        mover = self._pool[start + last]
        self._pool[start + position] = mover
        self._position[mover] = position
        self.counts[key] = last

    def rename(self, key: int, slot: int, new: int) -> None:
        """The member `slot` is called `new` from now on and keeps its place."""
        position = self._position[slot]
        self._pool[self._start[key] + position] = new
        self._position[new] = position

    def _widen(self, key: int, count: int) -> None:
        room = max(2 * _SPARE, 2 * count)
        if self._end + room > self._pool.size:
            self.build(self.order(), self.counts)
            return
        start = int(self._start[key])
        self._pool[self._end : self._end + count] = self._pool[start : start + count]
        self._start[key] = self._end
        self._room[key] = room
        self._end += room

    def members(self, key: int) -> npt.NDArray[np.int32]:
        """The slots of one key: a view, valid until the next change."""
        start = int(self._start[key])
        return self._pool[start : start + int(self.counts[key])]

    def pick(self, keys: npt.NDArray[np.integer], positions: npt.NDArray[np.integer]) -> Slots:
        """The slot at each position of each key; a position is below the count of its key."""
        slots: Slots = self._pool[self._start[keys] + positions].astype(np.int64)
        return slots

    @property
    def nbytes(self) -> int:
        """Bytes of the index itself: working memory, since the grouping follows from what the slots hold."""
        arrays = (self._pool, self._position, self.counts, self._room, self._start)
        return sum(array.nbytes for array in arrays)
