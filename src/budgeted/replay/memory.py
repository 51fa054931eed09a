"""The episodic memory: slots of samples in columns of exactly known size.

A slot holds a sample as its codec stores it, its label and whatever else a method keeps per sample (logits, a
frequency). Each of these is a `Column`: one contiguous tensor over all slots, allocated once; codes of varying size
lie in an arena of bytes. Occupied slots are always 0 … len - 1, so a slot number is valid until `evict` or `shrink`
moves the last slots into the gaps; replacing a sample moves nothing.

Bytes follow rule `real`, where every column counts, or rule `paper`, where the label is free as in the paper's
tables. What the codec keeps for all slots is counted too. The index of slots by class can be rebuilt from the labels,
so it is working memory and reported beside them, with the gaps of the arena.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from budgeted.budget.units import Rule
from budgeted.errors import BudgetedError
from budgeted.replay.arena import place_columns
from budgeted.replay.codec import Codec, Raw, Samples
from budgeted.replay.column import LABEL, Column, bytes_per_slot, slots_for
from budgeted.replay.journal import Journal, Places, Rows
from budgeted.replay.membership import Membership, Slots
from budgeted.replay.storage import SHARED, SLOTS, Storage, row_of

_MOST_BYTES = 2**56


@dataclass(frozen=True)
class Batch:
    """What `gather` brings, on the device of the samples."""

    slots: Slots
    samples: Samples
    """a tensor, or a dictionary of tensors where a sample has several"""
    labels: torch.Tensor
    columns: dict[str, torch.Tensor]


class Watcher(Protocol):
    """Someone who keeps sums over the memory and must hear of every change."""

    def evicting(self, memory: Memory, slot: int) -> None:
        """The sample in `slot` is about to leave."""

    def stored(self, memory: Memory, slot: int) -> None:
        """A sample has just arrived in `slot`; the columns not given are zero."""

    def moved(self, memory: Memory, old: int, new: int) -> None:
        """The sample of slot `old` is in slot `new` from now on; of the one that was there, `evicting` told."""

    def adopt(self, memory: Memory) -> None:
        """Slots were renumbered or filled in bulk: take the memory as it now is."""


class Memory:
    """Slots for samples: so many, or as many as `limit` bytes hold, or without end when neither is given."""

    def __init__(
        self,
        columns: Sequence[Column],
        capacity: int | None = None,
        device: torch.device | str = "cpu",
        *,
        codec: Codec | None = None,
        limit: int | None = None,
        alike: bool = False,
    ) -> None:
        """
        columns: those before the label describe a sample (several: a dictionary of tensors), those after it are kept
            beside it.
        limit: bytes under rule `real` that slots and codec may take; instead of `capacity`.
        alike: keep one sample for all slots, the one stored last. A rehearsal of a large memory then takes no room for
            samples; labels, columns and bytes are as they would be.
        """
        if capacity is not None and limit is not None:
            raise BudgetedError("give the memory a capacity in slots or a limit in bytes, not both")
        if capacity is not None and capacity < 1:
            raise BudgetedError(f"a memory of {capacity} slots holds nothing: give at least one slot")
        self.codec = Raw() if codec is None else codec
        self.device = torch.device(device)
        self.alike = alike
        self.membership = Membership()
        self._storage = Storage(columns, self.codec, self.device, limit, alike)
        self._at_first = self._storage.kept()
        if limit is not None:
            slots = slots_for(limit - self._at_first, self.columns)
            capacity = None if self.varying else slots
        if capacity is not None and capacity * bytes_per_slot(self.columns) > _MOST_BYTES:
            raise BudgetedError(f"{capacity:.3g} slots are more than any machine holds: give fewer, or fewer bytes")
        self._slots = capacity
        self._limit = limit if self.varying else None
        self._size = 0
        self._journals: dict[str, Journal] = {}
        self._watcher: Watcher | None = None
        self._allocate(0 if self.varying else capacity or 0)

    def __len__(self) -> int:
        return self._size

    @property
    def columns(self) -> tuple[Column, ...]:
        """What every slot holds: of the codec, where its code lies if it has one, label, and what is kept beside."""
        return self._storage.columns

    @property
    def sample_columns(self) -> tuple[Column, ...]:
        """What a sample is, before it is encoded."""
        return self._storage.sample

    @property
    def columns_beside(self) -> tuple[Column, ...]:
        """The label, and what is kept beside a sample."""
        return self._storage.beside

    @property
    def varying(self) -> bool:
        """Whether slots differ in bytes."""
        return self.codec.varying

    @property
    def capacity(self) -> int | None:
        """Slots that there is room for; where they differ in bytes, as many as of the size that they have on average
        so far. None without any limit.
        """
        if self._limit is None:
            return self._slots
        each = self.nbytes() / self._size if self._size else bytes_per_slot((*self.sample_columns, *self.columns))
        return max(1, self._size, int(self._limit / each))

    @property
    def limit(self) -> int | None:
        """Bytes that slots and codec may take, under rule `real`; None where nothing limits them."""
        return self._limit if self._slots is None or self.varying else self.nbytes()

    @property
    def smallest_limit(self) -> int:
        """Bytes that an empty slot and what the codec kept from the first take: no limit may be lower."""
        return self._at_first + self._storage.per_slot

    @property
    def full(self) -> bool:
        """Whether the next sample needs another's room, if it is of average size."""
        if self._limit is None:
            return self._size == self._slots
        return self._size > 0 and self.nbytes() * (self._size + 1) > self._limit * self._size

    @property
    def counts(self) -> Slots:
        """Stored samples of each class: a view."""
        return self.membership.counts

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Labels of the occupied slots: a view in the column's own integer type."""
        return self.host(LABEL)

    @property
    def lengths(self) -> npt.NDArray[np.integer]:
        """Bytes of the code in every occupied slot: a view."""
        arena = self._storage.arena
        return np.zeros(self._size, np.int32) if arena is None else arena.lengths[: self._size]

    def host(self, name: str) -> npt.NDArray[Any]:
        """A host column over the occupied slots: a view, valid until the memory next changes size."""
        return self._storage.hosted[name][: self._size]

    def watched_by(self, watcher: Watcher) -> bool:
        return self._watcher is watcher

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher`, and no other, of every change from now on."""
        self._watcher = watcher
        watcher.adopt(self)

    def put(self, slot: int, sample: Samples, label: int, **columns: torch.Tensor) -> None:
        """Store into the first free slot, `len(self)`, or in place of the sample in an occupied one."""
        self.put_encoded(slot, self.encode(sample), label, **columns)

    def encode(self, sample: Samples) -> dict[str, torch.Tensor]:
        """What a slot would hold of the sample; what the memory could never hold is refused. Nothing changes."""
        encoded = self._storage.encode(sample)
        if self._limit is not None:
            alone = self._at_first + self._storage.added(encoded)
            if alone > self._limit:
                raise BudgetedError(
                    f"a sample takes {alone} bytes, the whole memory has {self._limit}: raise the byte budget"
                )
        return encoded

    def fits(self, encoded: Mapping[str, torch.Tensor], slot: int) -> bool:
        """Whether there is room for it in `slot`, in place of what is there."""
        if self._limit is None:
            return True
        freed = self._storage.taken(slot) if slot < self._size else 0
        return self.nbytes() + self._storage.added(encoded) - freed <= self._limit

    def check_sample(self, sample: Samples) -> None:
        """Refuse what is no sample of this memory."""
        self._storage.check_sample(sample)

    def check(self, label: int, **columns: torch.Tensor) -> None:
        """Refuse a label or a column that cannot be stored beside a sample."""
        self._storage.check_beside(label, columns)

    def put_encoded(self, slot: int, encoded: Mapping[str, torch.Tensor], label: int, **columns: torch.Tensor) -> None:
        """Store what `encode` gave."""
        self.check(label, **columns)
        if not 0 <= slot <= self._size or slot == self._slots:
            raise IndexError(f"slot {slot} of a memory with {self._size} of {self.capacity} slots in use")
        if not self.fits(encoded, slot):
            raise self._no_room(self._storage.added(encoded))
        used = self._size
        if slot < used:
            if self._watcher is not None:
                self._watcher.evicting(self, slot)
            self.membership.remove(int(self.labels[slot]), slot)
        else:
            if slot == self.allocated:
                self._allocate(max(1024, slot + slot // 8 if self.varying else 2 * slot))
            self._size += 1
        self._storage.write(slot, encoded, label, columns, used)
        self.membership.ensure_keys(label + 1)
        self.membership.add(label, slot)
        if self._watcher is not None:
            self._watcher.stored(self, slot)

    def rewrite(self, slot: int, encoded: Mapping[str, torch.Tensor]) -> None:
        """Hold the sample of an occupied slot in another way, with fewer bytes say: what the codec has there is
        replaced, label and columns stay, and no watcher hears of it.
        """
        self._storage.check_encoded(encoded)
        if not self.fits(encoded, self._occupied(slot)):
            raise self._no_room(self._storage.added(encoded))
        self._storage.rewrite(slot, encoded)

    def shorten(self, most: int) -> None:
        """Let slots hold their samples with fewer bytes, until all take `most` or less or none can be shortened."""
        while self.codec.shortens and self.nbytes() > most:
            slots = self.codec.next_to_shorten(self._size)
            if slots is None:
                return
            start = time.perf_counter()
            shorter = self.codec.shortened(self._storage.encoded(np.array(slots, np.int64)))
            self._storage.seconds[1] += time.perf_counter() - start
            self._storage.worked[0] += len(slots)
            self._storage.worked[1] += len(slots)
            for row, slot in enumerate(slots):
                self._storage.rewrite(slot, row_of(shorter, row))

    def make_room(self, encoded: Mapping[str, torch.Tensor]) -> None:
        """For one sample more, this or one of average size, as far as what is stored can be shortened."""
        if self._limit is not None and self.codec.shortens:
            average = -(-self.nbytes() // self._size) if self._size else 0
            self.shorten(self._limit - max(average, self._storage.added(encoded)))

    def passed(self, samples: Samples) -> Samples:
        """A batch of samples as it would come back from slots, where the codec is for samples everywhere."""
        if not self.codec.everywhere:
            return samples
        found = self.codec.passed(samples)
        count = len(next(iter(found.values())) if isinstance(found, Mapping) else found)
        self._storage.worked = [done + count for done in self._storage.worked]
        return found

    def take_work(self) -> tuple[int, int]:
        """Samples that were decoded and encoded since this was last asked."""
        decoded, encoded = self._storage.worked
        self._storage.worked = [0, 0]
        return decoded, encoded

    def take_codec_seconds(self) -> tuple[float, float]:
        """Wall-clock time of decoding and of encoding (and shortening) since this was last asked."""
        decoding, encoding = self._storage.seconds
        self._storage.seconds = [0.0, 0.0]
        return decoding, encoding

    def extend(self, samples: Samples, labels: npt.NDArray[np.integer], **columns: torch.Tensor) -> None:
        """Append many samples at once; columns not given are zero."""
        first, last = self._size, self._size + len(labels)
        if self._slots is not None and last > self._slots:
            raise BudgetedError(f"{len(labels)} samples do not fit into {self._slots - first} free slots")
        if len(labels) == 0:
            return
        for label in (int(labels.min()), int(labels.max())):
            self.check(label, **{name: value[0] for name, value in columns.items()})
        encoded = self._storage.encode_batch(samples)
        if self._limit is not None:
            added = sum(self._storage.added(row_of(encoded, row)) for row in range(len(labels)))
            if self.nbytes() + added > self._limit:
                raise self._no_room(added)
        if last > self.allocated:
            self._allocate(max(last, 2 * self.allocated))
        self._storage.fill(first, encoded, labels, columns)
        self._size = last
        order = np.concatenate([self.membership.order(), np.arange(first, last, dtype=np.int32)])
        self.membership.group(order, self.labels[order], max(self.counts.size, int(labels.max()) + 1))
        if self._watcher is not None:
            self._watcher.adopt(self)

    def evict(self, slots: int | Iterable[int]) -> None:
        """Empty a slot, or several; the last occupied slots move into the gaps."""
        if isinstance(slots, Iterable):
            for slot in sorted({self._occupied(slot) for slot in slots}, reverse=True):
                self._remove(slot)  # from the last one down: no slot still to leave is moved
            if self._watcher is not None:
                self._watcher.adopt(self)
        else:
            self._remove(slots)
            if self._watcher is not None and slots < self._size:
                self._watcher.moved(self, self._size, slots)

    def shrink(self, capacity: int | None = None, given_up: Iterable[int] = (), *, limit: int | None = None) -> None:
        """Give slots back, down to a capacity or to a limit in bytes (where slots differ in bytes, to a limit): the
        samples in `given_up` leave, the others move together.
        """
        leaving = {self._occupied(slot) for slot in given_up}
        if self.varying:
            left = self.nbytes() - sum(self._storage.taken(slot) for slot in leaving)
            if limit is None or self._limit is None or not left <= limit <= self._limit:
                raise BudgetedError(
                    f"{left} of {self._limit} bytes stay in use: shrinking to {limit} needs a lower limit in bytes, "
                    "and enough samples that leave"
                )
            self._limit = limit
        else:
            if limit is not None:
                capacity = slots_for(limit - self._storage.kept(), self.columns)
            possible = self._slots is not None and capacity is not None and 1 <= capacity <= self._slots
            if not possible or capacity is None or self._size - len(leaving) > capacity:
                raise BudgetedError(
                    f"{self._size} of {self._slots} slots are in use and {len(leaving)} given up: shrinking to "
                    f"{capacity} needs a limited memory, at least one slot, and enough samples that leave"
                )
            self._slots = capacity
        for slot in sorted(leaving, reverse=True):
            self._remove(slot)
        self._allocate(self._size if self.varying else self._slots or 0)
        if self._watcher is not None:
            self._watcher.adopt(self)

    def widen(self, limit: int) -> None:
        """Take up to so many bytes, more than so far; nothing that is stored moves."""
        if self.limit is None or limit < self.limit:
            raise BudgetedError(f"the memory has {self.limit} bytes: it is widened to more, not to {limit}")
        if self.varying:
            if place_columns(limit) != place_columns(self._limit):
                raise BudgetedError(f"{limit} bytes need longer places in every slot: save, and make a larger learner")
            self._limit = limit
        else:
            self._slots = slots_for(limit - self._storage.kept(), self.columns)
            self._allocate(self._slots)
        if self._watcher is not None:
            self._watcher.adopt(self)

    def gather(self, slots: Slots) -> Batch:
        """Copies of the samples in `slots`, their labels and their columns, host columns aside."""
        index = torch.from_numpy(slots).to(self.device)
        tensors = self._storage.tensors
        picked = {
            column.name: tensors[column.name].index_select(0, index)
            for column in self._storage.beside
            if not column.host
        }
        labels = torch.from_numpy(self._storage.hosted[LABEL][slots].astype(np.int64)).to(self.device)
        return Batch(slots, self._storage.samples(slots), labels, picked)

    def encoded(self, slots: Slots) -> dict[str, Any]:
        """Copies of what these slots hold, as the codec's `decode` takes it."""
        return self._storage.encoded(slots)

    def read(self, name: str, slots: Slots) -> torch.Tensor:
        """A copy of what a column holds for some slots, without their samples."""
        tensor = self._storage.tensors[name]
        return tensor.index_select(0, torch.from_numpy(slots).to(tensor.device))

    def write(self, name: str, slots: npt.NDArray[np.integer], values: torch.Tensor) -> None:
        """Replace what a column holds for some occupied slots (renewed logits, for example)."""
        index = torch.from_numpy(slots.astype(np.int64, copy=False))
        tensor = self._storage.tensors[name]
        tensor[index.to(tensor.device)] = values

    @property
    def allocated(self) -> int:
        """Slots there is storage for: the capacity, or more than are in use when there is none."""
        return self._storage.allocated

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes of all slots of the capacity and of what the codec keeps. Where the capacity is unlimited or slots
        differ in bytes, of the slots in use, with their codes as they are stored.
        """
        per_slot = self._storage.per_slot if rule == "real" else bytes_per_slot(self.columns, rule)
        codes = 0 if self._storage.arena is None else self._storage.arena.live
        slots = self._size if self._slots is None or self.varying else self._slots
        return per_slot * slots + codes + self._storage.kept()

    def index_nbytes(self) -> int:
        """Working memory: the index by class and, where slots differ in bytes, room that holds nothing."""
        arena = self._storage.arena
        free = 0 if arena is None else arena.slack + (self.allocated - self._size) * self._storage.per_slot
        return self.membership.nbytes + free

    # -- what a checkpoint writes row by row -------------------------------------------------------------------

    @property
    def journals(self) -> dict[str, Journal]:
        """By what they are of: samples in slots, what the codec keeps for several of them; those that have rows."""
        rows: dict[str, Rows | None] = {SLOTS: self if self._size and not self.alike else None}
        rows[SHARED] = None if self.alike else self.codec.shared()
        found = {name: each for name, each in rows.items() if each is not None}
        self._journals = {name: self._journals.get(name, Journal(each)) for name, each in found.items()}
        return self._journals

    def places(self) -> Places:
        return self._storage.places()[: self._size].copy()

    def settle(self, places: Places) -> None:
        self._storage.places()[: self._size] = places

    def row_nbytes(self) -> float:
        return self._storage.logged_nbytes(self._size)

    def content(self, rows: Slots) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        return self._storage.logged(rows)

    def state(self, apart: Collection[str] = ()) -> dict[str, torch.Tensor]:
        """Everything a later `load_state` needs; the columns are views, to be written before the next
        change. Without the rows of the journals in `apart`.
        """
        state = self._storage.state(self._size, apart)
        state["capacity"] = torch.tensor(-1 if self._slots is None else self._slots)
        if self._limit is not None:
            state["limit"] = torch.tensor(self._limit)
        state["members"] = torch.from_numpy(self.membership.order())
        state["counts"] = torch.from_numpy(self.counts.copy())
        return state

    def load_state(self, state: Mapping[str, torch.Tensor], take: Collection[str] = ()) -> None:
        """Become the memory that was saved. The watcher loads its own state after this.

        take: tensors that the memory may keep as they are, since nobody else will use them.
        """
        self._storage.check_state(state)
        capacity = int(state["capacity"])
        self._slots = None if capacity < 0 else capacity
        self._limit = int(state["limit"]) if "limit" in state else None
        columns = (*self.sample_columns, *self._storage.beside)
        self._storage = Storage(columns, self.codec, self.device, self._limit, self.alike)
        self._size = 0
        self._journals = {}
        size = len(state[f"column.{LABEL}"])
        self._allocate(size if self.varying or self._slots is None else self._slots)
        self._size = size
        self._storage.load_state(state, size, take)
        self.membership.build(state["members"].numpy(), state["counts"].numpy())

    def _allocate(self, slots: int) -> None:
        self._storage.allocate(slots, self._size)
        self.membership.ensure_slots(slots)

    def _remove(self, slot: int) -> None:
        self._occupied(slot)
        if self._watcher is not None:
            self._watcher.evicting(self, slot)
        labels, last = self.labels, self._size - 1
        self.membership.remove(int(labels[slot]), slot)
        if slot != last:
            self.membership.rename(int(labels[last]), last, slot)
        self._storage.remove(slot, last)
        self._size = last

    def _occupied(self, slot: int) -> int:
        if not 0 <= slot < self._size:
            raise IndexError(f"slot {slot} of a memory with {self._size} slots in use")
        return int(slot)

    def _no_room(self, added: int) -> BudgetedError:
        return BudgetedError(
            f"{added} bytes do not fit into {self._limit} with {self.nbytes()} in use: evict samples first, as "
            "budgeted.replay.store does"
        )
