"""The index behind fast retrieval: slots of each class in narrow bands of use frequency.

In one band scores differ by a few temperatures at most, so a proposal from it is accepted with a fair
chance. Bands are kept in terms of the *stored* frequency, which forgetting leaves alone: only a slot that
is used changes its band. Where the frequency of a sample hardly matters (everything divided by |M|), one
band is enough and the memory's own index serves.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from budgeted.replay.membership import Membership, Slots
from budgeted.replay.memory import Memory

Floats = npt.NDArray[np.float64]

_MOST_BANDS = 64


class Bands:
    """Slots by class and band; the last band has no upper end."""

    def __init__(self, edges: Floats, memory: Memory, own: Membership | None) -> None:
        self.edges = edges
        self._memory = memory
        self._own = own

    @classmethod
    def over(cls, memory: Memory, stored: npt.NDArray[np.float32], width: float) -> Bands:
        """Bands of this width over what is stored now, with room above for what grows until the next fold."""
        lowest, highest = float(stored.min()), float(stored.max())
        if highest <= width:
            return cls(np.zeros(1), memory, None)
        reach = min(_MOST_BANDS, int((2.0 * highest - lowest) / width) + 1)
        edges: Floats = lowest + width * np.arange(reach, dtype=np.float64)
        if lowest > 0.0:
            edges = np.concatenate([np.zeros(1), edges])
        bands = cls(edges, memory, Membership(slots=memory.allocated))
        everything = np.arange(len(memory), dtype=np.int32)
        keys = bands._keys(memory.labels, stored)
        bands._membership.group(everything, keys, memory.counts.size * edges.size)
        return bands

    @property
    def _membership(self) -> Membership:
        return self._memory.membership if self._own is None else self._own

    @property
    def counts(self) -> Slots:
        return self._membership.counts.reshape(-1, self.edges.size)

    def pick(self, keys: Slots, positions: Slots) -> Slots:
        return self._membership.pick(keys, positions)

    def _keys(self, labels: npt.NDArray[np.integer], stored: npt.NDArray[np.float32]) -> Slots:
        band = self.edges.searchsorted(stored, "right") - 1
        return labels.astype(np.int64) * self.edges.size + band

    def add(self, label: int, slot: int) -> None:
        """A new sample, never used."""
        if self._own is not None:
            self._own.ensure_keys(self._memory.counts.size * self.edges.size)
            self._own.ensure_slots(self._memory.allocated)
            self._own.add(label * self.edges.size, slot)

    def remove(self, label: int, slot: int, stored: np.float32) -> None:
        if self._own is not None:
            self._own.remove(int(self._keys(np.array([label]), np.array([stored]))[0]), slot)

    def rename(self, label: int, stored: np.float32, slot: int, new: int) -> None:
        """The sample of `slot` is in slot `new` from now on."""
        if self._own is not None:
            self._own.rename(int(self._keys(np.array([label]), np.array([stored]))[0]), slot, new)

    def move(
        self, labels: Slots, slots: Slots, before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]
    ) -> None:
        """Samples of which the stored frequency has changed."""
        if self._own is None:
            return
        old, new = self._keys(labels, before), self._keys(labels, after)
        for moved in np.flatnonzero(old != new).tolist():
            self._own.remove(int(old[moved]), int(slots[moved]))
            self._own.add(int(new[moved]), int(slots[moved]))

    @property
    def nbytes(self) -> int:
        return 0 if self._own is None else self._own.nbytes

    def state(self) -> dict[str, torch.Tensor]:
        state = {"edges": torch.from_numpy(self.edges.copy())}
        if self._own is not None:
            state["members"] = torch.from_numpy(self._own.order())
            state["counts"] = torch.from_numpy(self._own.counts.copy())
        return state

    @classmethod
    def from_state(cls, memory: Memory, state: Mapping[str, torch.Tensor]) -> Bands:
        own = None
        if "members" in state:
            own = Membership(slots=memory.allocated)
            own.build(state["members"].numpy(), state["counts"].numpy())
        return cls(state["edges"].numpy().copy(), memory, own)
