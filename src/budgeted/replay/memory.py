"""The episodic memory: slots of samples in columns of exactly known size.

A slot holds a sample, its label and whatever else a method keeps per sample (logits, a frequency, codes).
Each of these is a `Column`: one contiguous tensor over all slots, allocated once. Occupied slots are
always 0 … len - 1, so a slot number is valid until `evict` or `shrink` moves the last slots into the gaps;
replacing a sample moves nothing.

Bytes follow rule `real`, where every column counts, or rule `paper`, where the label is free as in the
paper's tables. The index of slots by class can be rebuilt from the labels, so it is working memory and
reported beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from budgeted.errors import BudgetedError
from budgeted.replay.column import LABEL, Column, Rule, bytes_per_slot
from budgeted.replay.membership import Membership, Slots


@dataclass(frozen=True)
class Batch:
    """What `gather` brings, on the device of the samples."""

    slots: Slots
    samples: torch.Tensor
    labels: torch.Tensor
    columns: dict[str, torch.Tensor]


class Watcher(Protocol):
    """Someone who keeps sums over the memory and must hear of every change."""

    def evicting(self, memory: Memory, slot: int) -> None:
        """The sample in `slot` is about to leave."""

    def stored(self, memory: Memory, slot: int) -> None:
        """A sample has just arrived in `slot`; the columns not given are zero."""

    def adopt(self, memory: Memory) -> None:
        """Slots were renumbered or filled in bulk: take the memory as it now is."""


class Memory:
    """`capacity` slots, or slots without end when it is None (then storage doubles as needed)."""

    def __init__(self, columns: Sequence[Column], capacity: int | None, device: torch.device | str = "cpu") -> None:
        names = [column.name for column in columns]
        if len(set(names)) < len(names) or LABEL not in names or len(names) < 2:
            raise BudgetedError(f"a memory needs a sample column and a {LABEL!r} column, each name once: got {names}")
        if capacity is not None and capacity < 1:
            raise BudgetedError(f"a memory of {capacity} slots holds nothing: give at least one slot")
        self.columns = tuple(columns)
        self.capacity = capacity
        self.device = torch.device(device)
        self.sample_column = next(column for column in columns if column.name != LABEL)
        self.membership = Membership()
        self._label_limit = torch.iinfo(next(c for c in columns if c.name == LABEL).dtype).max
        self._size = 0
        self._watcher: Watcher | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._hosted: dict[str, npt.NDArray[Any]] = {}
        self._allocate(capacity or 0)

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        return self._size == self.capacity

    @property
    def counts(self) -> Slots:
        """Stored samples of each class: a view."""
        return self.membership.counts

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Labels of the occupied slots: a view in the column's own integer type."""
        return self._hosted[LABEL][: self._size]

    def host(self, name: str) -> npt.NDArray[Any]:
        """A host column over the occupied slots: a view, valid until the memory next changes size."""
        return self._hosted[name][: self._size]

    def watched_by(self, watcher: Watcher) -> bool:
        return self._watcher is watcher

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher`, and no other, of every change from now on."""
        self._watcher = watcher
        watcher.adopt(self)

    def put(self, slot: int, sample: torch.Tensor, label: int, **columns: torch.Tensor) -> None:
        """Store into the first free slot, `len(self)`, or in place of the sample in an occupied one."""
        self._check(sample, label, columns)
        if slot < self._size:
            if self._watcher is not None:
                self._watcher.evicting(self, slot)
            self.membership.remove(int(self._hosted[LABEL][slot]), slot)
        elif slot == self._size and not self.full:
            if slot == self.allocated:
                self._allocate(max(1024, 2 * slot))
            self._size += 1
        else:
            raise IndexError(f"slot {slot} of a memory with {self._size} of {self.capacity} slots in use")
        columns = {self.sample_column.name: sample, **columns}
        for name, tensor in self._tensors.items():
            tensor[slot] = columns.get(name, 0)
        self._hosted[LABEL][slot] = label
        self.membership.ensure_keys(label + 1)
        self.membership.add(label, slot)
        if self._watcher is not None:
            self._watcher.stored(self, slot)

    def extend(self, samples: torch.Tensor, labels: npt.NDArray[np.integer], **columns: torch.Tensor) -> None:
        """Append many samples at once; columns not given are zero."""
        first, last = self._size, self._size + len(labels)
        if self.capacity is not None and last > self.capacity:
            raise BudgetedError(f"{len(labels)} samples do not fit into {self.capacity - first} free slots")
        if len(labels) == 0:
            return
        for label in (int(labels.min()), int(labels.max())):
            self._check(samples[0], label, {name: value[0] for name, value in columns.items()})
        if last > self.allocated:
            self._allocate(max(last, 2 * self.allocated))
        columns = {self.sample_column.name: samples, **columns}
        for name, tensor in self._tensors.items():
            tensor[first:last] = columns.get(name, torch.zeros((), dtype=tensor.dtype))
        self._hosted[LABEL][first:last] = labels
        self._size = last
        order = np.concatenate([self.membership.order(), np.arange(first, last, dtype=np.int32)])
        self.membership.group(order, self.labels[order], max(self.counts.size, int(labels.max()) + 1))
        if self._watcher is not None:
            self._watcher.adopt(self)

    def evict(self, slot: int) -> None:
        """Empty a slot; the last occupied slot moves into it."""
        self._remove(slot)
        if self._watcher is not None:
            self._watcher.adopt(self)

    def shrink(self, capacity: int, given_up: Iterable[int] = ()) -> None:
        """Give slots back: the samples in `given_up` leave, the others move together."""
        leaving = sorted({int(slot) for slot in given_up}, reverse=True)
        possible = self.capacity is not None and 1 <= capacity <= self.capacity
        possible &= all(0 <= slot < self._size for slot in leaving)
        if not possible or self._size - len(leaving) > capacity:
            raise BudgetedError(
                f"{self._size} of {self.capacity} slots are in use and {len(leaving)} given up: shrinking to "
                f"{capacity} needs a limited memory, at least one slot, and enough samples that leave"
            )
        for slot in leaving:  # from the last one down: no slot still to leave is moved
            self._remove(slot)
        self.capacity = capacity
        self._allocate(capacity)
        if self._watcher is not None:
            self._watcher.adopt(self)

    def gather(self, slots: Slots) -> Batch:
        """Copies of the samples in `slots`, their labels and their columns, host columns aside."""
        index = torch.from_numpy(slots).to(self.device)
        picked = {
            column.name: self._tensors[column.name].index_select(0, index) for column in self.columns if not column.host
        }
        labels = torch.from_numpy(self._hosted[LABEL][slots].astype(np.int64)).to(self.device)
        return Batch(slots, picked.pop(self.sample_column.name), labels, picked)

    def write(self, name: str, slots: npt.NDArray[np.integer], values: torch.Tensor) -> None:
        """Replace what a column holds for some occupied slots (renewed logits, for example)."""
        index = torch.from_numpy(slots.astype(np.int64, copy=False))
        self._tensors[name][index.to(self._tensors[name].device)] = values

    @property
    def allocated(self) -> int:
        """Slots there is storage for: the capacity, or more than are in use when it is unlimited."""
        return self._tensors[LABEL].shape[0]

    def nbytes(self, rule: Rule = "real") -> int:
        """Bytes of all slots of the capacity; of the slots in use when it is unlimited."""
        return bytes_per_slot(self.columns, rule) * (self._size if self.capacity is None else self.capacity)

    def index_nbytes(self) -> int:
        """Working memory of the index by class."""
        return self.membership.nbytes

    def state(self) -> dict[str, torch.Tensor]:
        """Everything a later `load_state` needs; the columns are views, to be written before the next
        change.
        """
        state = {f"column.{name}": tensor[: self._size] for name, tensor in self._tensors.items()}
        state["capacity"] = torch.tensor(-1 if self.capacity is None else self.capacity)
        state["members"] = torch.from_numpy(self.membership.order())
        state["counts"] = torch.from_numpy(self.counts.copy())
        return state

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Become the memory that was saved. The watcher loads its own state after this."""
        for column in self.columns:
            saved = state.get(f"column.{column.name}")
            if saved is None or saved.dtype != column.dtype or tuple(saved.shape[1:]) != column.shape:
                raise BudgetedError(f"the saved memory has no {column}: load it with the columns it was saved with")
        capacity = int(state["capacity"])
        self.capacity = None if capacity < 0 else capacity
        self._size = 0
        size = len(state[f"column.{LABEL}"])
        self._allocate(size if self.capacity is None else self.capacity)
        self._size = size
        for name, tensor in self._tensors.items():
            tensor[:size] = state[f"column.{name}"]
        self.membership.build(state["members"].numpy(), state["counts"].numpy())

    def _allocate(self, slots: int) -> None:
        for column in self.columns:
            tensor = torch.zeros(
                (slots, *column.shape), dtype=column.dtype, device="cpu" if column.host else self.device
            )
            if self._size:
                tensor[: self._size] = self._tensors[column.name][: self._size]
            self._tensors[column.name] = tensor
            if column.host:
                self._hosted[column.name] = tensor.numpy()
        self.membership.ensure_slots(slots)

    def _remove(self, slot: int) -> None:
        if not 0 <= slot < self._size:
            raise IndexError(f"slot {slot} of a memory with {self._size} slots in use")
        if self._watcher is not None:
            self._watcher.evicting(self, slot)
        labels, last = self._hosted[LABEL], self._size - 1
        self.membership.remove(int(labels[slot]), slot)
        if slot != last:
            self.membership.rename(int(labels[last]), last, slot)
            for tensor in self._tensors.values():
                tensor[slot] = tensor[last]
        self._size = last

    def _check(self, sample: torch.Tensor, label: int, columns: Mapping[str, torch.Tensor]) -> None:
        """Refuse what a column could keep only by bending it: a float as a byte, another shape."""
        if not 0 <= label <= self._label_limit:
            raise BudgetedError(f"label {label} is not in 0 … {self._label_limit}: declare more classes for the memory")
        known = {column.name: column for column in self.columns}
        for name, value in ((self.sample_column.name, sample), *columns.items()):
            if name not in known or name == LABEL:
                raise BudgetedError(f"the memory has no column {name!r}: declare it when the memory is made")
            column = known[name]
            if tuple(value.shape) != column.shape or value.dtype != column.dtype:
                raise BudgetedError(
                    f"column {name!r} keeps {column.dtype} of shape {column.shape}, not {value.dtype} of "
                    f"shape {tuple(value.shape)}: convert it first"
                )
