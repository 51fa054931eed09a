"""What the slots of a memory hold: a tensor over all slots for every column, and an arena for codes of any length.

Which slots are in use is the memory's business; here a slot is a row.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from budgeted.budget.kept import prefixed, without_prefix
from budgeted.errors import BudgetedError
from budgeted.replay.arena import AlikeArena, Arena, place_columns
from budgeted.replay.codec import CODE, Codec, Samples
from budgeted.replay.column import LABEL, Column, bytes_per_slot
from budgeted.replay.journal import UNWRITTEN, Places
from budgeted.replay.membership import Slots

CODES = "arena.codes"
SLOTS, SHARED = "slots", "shared"
"""what is written row by row: samples in slots, and what the codec keeps that several of them share"""


class Storage:
    """Samples as `codec` holds them, and the columns beside them, which begin with the label."""

    def __init__(
        self,
        columns: Sequence[Column],
        codec: Codec,
        device: torch.device,
        limit: int | None = None,
        alike: bool = False,
    ) -> None:
        names = [column.name for column in columns]
        if len(set(names)) < len(names) or LABEL not in names or names[0] == LABEL:
            raise BudgetedError(
                f"a memory needs the columns of a sample, then a {LABEL!r} column, each name once: got {names}"
            )
        self.codec = codec
        self.sample = tuple(columns[: names.index(LABEL)])
        self.held = codec.columns(self.sample)
        self.beside = tuple(columns[len(self.sample) :])
        self.arena: Arena | None = None
        places: tuple[Column, ...] = ()
        if codec.varying:
            self.arena, places = (AlikeArena if alike else Arena)(limit), place_columns(limit)
        self.columns = (*self.held, *places, *self.beside)
        taken = [column.name for column in self.columns]
        if len(set(taken)) < len(taken) or CODE in taken or not (self.held or codec.varying):
            raise BudgetedError(f"a slot would hold {taken}: a codec needs columns, with names that nobody else has")
        self.per_slot = bytes_per_slot(self.columns)
        self.tensors: dict[str, torch.Tensor] = {}
        self.hosted: dict[str, npt.NDArray[Any]] = {}
        self._device = device
        self._alike = {column.name for column in self.held} if alike else set()
        self._known = {column.name: column for column in self.beside[1:]}
        self._label_limit = torch.iinfo(self.beside[0].dtype).max
        self._codec_keeps = bool(codec.kept_names()) or type(codec).nbytes is not Codec.nbytes
        self.worked = [0, 0]  # samples decoded and encoded
        self.seconds = [0.0, 0.0]  # that this took
        self._repeats = alike and not codec.shortens  # a rehearsal stores one sample over and over
        self._last: tuple[Samples, dict[str, torch.Tensor]] | None = None
        self._codec_listens = type(codec).stored is not Codec.stored or type(codec).leaving is not Codec.leaving
        self._logged = () if alike else tuple(column.name for column in self.held if not column.host)
        self._places: Places | None = None  # of every slot's sample in a journal; nobody asked for one yet

    @property
    def allocated(self) -> int:
        return self.tensors[LABEL].shape[0]

    def allocate(self, slots: int, used: int) -> None:
        """Room for so many slots; the first `used` keep what they hold."""
        for column in (*self.held, *self.beside):
            rows = 1 if column.name in self._alike else slots
            tensor = _zeros(rows, column, torch.device("cpu") if column.host else self._device)
            if used:
                kept = min(rows, used)
                tensor[:kept] = self.tensors[column.name][:kept]
            self.tensors[column.name] = tensor if rows == slots else tensor.expand(slots, *column.shape)
            if column.host:
                self.hosted[column.name] = self.tensors[column.name].numpy()
        if self.arena is not None:
            self.arena.ensure_slots(slots)
        if self._places is not None:
            kept = min(slots, used)
            self._places = np.concatenate([self._places[:kept], np.full(slots - kept, UNWRITTEN, np.int64)])

    def encode(self, sample: Samples) -> dict[str, torch.Tensor]:
        """What a slot would hold of it."""
        self.check_sample(sample)
        self.worked[1] += 1
        if self._last is not None and self._last[0] is sample:
            return self._last[1]
        start = time.perf_counter()
        encoded = self.codec.encode(sample)
        self.seconds[1] += time.perf_counter() - start
        if encoded is not sample:
            self.check_encoded(encoded)
        if self._repeats:
            self._last = sample, encoded
        return encoded

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        self.check_sample(row_of(samples, 0))
        encoded = self.codec.encode_batch(samples)
        self.worked[1] += len(next(iter(encoded.values())))
        self.check_encoded(row_of(encoded, 0))
        return encoded

    def added(self, encoded: Mapping[str, torch.Tensor]) -> int:
        """Bytes of one more slot that holds this, and of what the codec keeps for it."""
        if self.arena is None:
            return self.per_slot
        code = encoded.get(CODE)
        return self.per_slot + (0 if code is None else code.numel()) + self.codec.growth(encoded)

    def kept(self) -> int:
        """Bytes that the codec keeps for all slots."""
        return self.codec.nbytes() if self._codec_keeps else 0

    def taken(self, slot: int) -> int:
        """Bytes of what a slot holds; what the codec keeps for it may be others' too."""
        return self.per_slot + (0 if self.arena is None else int(self.arena.lengths[slot]))

    def write(
        self, slot: int, encoded: Mapping[str, torch.Tensor], label: int, columns: Mapping[str, torch.Tensor], used: int
    ) -> None:
        """Everything in a slot, of which the first `used` are occupied; columns not given are zero."""
        self._tell_codec(encoded, slot if slot < used else None)
        self._changed(slot)
        for name, tensor in self.tensors.items():
            value = encoded.get(name, columns.get(name))
            if value is not None:
                tensor[slot] = value
            elif name in self.hosted:
                self.hosted[name][slot] = 0
            else:
                tensor[slot] = 0
        self.hosted[LABEL][slot] = label
        if self.arena is not None:
            self.arena.write(slot, code_of(encoded))

    def rewrite(self, slot: int, encoded: Mapping[str, torch.Tensor]) -> None:
        """What the codec has in an occupied slot."""
        self._tell_codec(encoded, slot)
        self._changed(slot)
        for column in self.held:
            self.tensors[column.name][slot] = encoded[column.name]
        if self.arena is not None:
            self.arena.write(slot, code_of(encoded))

    def fill(
        self,
        first: int,
        encoded: Mapping[str, Any],
        labels: npt.NDArray[np.integer],
        columns: Mapping[str, torch.Tensor],
    ) -> None:
        """Free slots from `first` on; columns not given are zero."""
        last = first + len(labels)
        self._changed(slice(first, last))
        values = {**encoded, **columns}
        for name, tensor in self.tensors.items():
            if name in self._alike:
                tensor[first] = values[name][-1]
            else:
                tensor[first:last] = values.get(name, 0)
        self.hosted[LABEL][first:last] = labels
        for row in range(len(labels)) if self.arena is not None or self._codec_listens else ():
            one = row_of(encoded, row)
            self._tell_codec(one, None)
            if self.arena is not None:
                self.arena.write(first + row, code_of(one))

    def remove(self, slot: int, last: int) -> None:
        """Empty a slot; what the slot `last` holds moves there."""
        if self._codec_listens:
            self.codec.leaving(self.encoded(np.array([slot])))
        if self.arena is not None:
            self.arena.clear(slot)
        if slot == last:
            return
        if self._places is not None:
            self._places[slot] = self._places[last]
        for name, tensor in self.tensors.items():
            if name in self.hosted:
                self.hosted[name][slot] = self.hosted[name][last]
            else:
                tensor[slot] = tensor[last]
        if self.arena is not None:
            self.arena.move(last, slot)

    def encoded(self, slots: Slots) -> dict[str, Any]:
        """Copies of what the codec has in these slots, as it decodes it."""
        held: dict[str, Any] = {}
        for column in self.held:
            tensor = self.tensors[column.name]
            held[column.name] = tensor.index_select(0, torch.from_numpy(slots).to(tensor.device))
        if self.arena is not None:
            held[CODE] = self.arena.read(slots)
        return held

    def samples(self, slots: Slots) -> Samples:
        """The samples in these slots; a codec need not know what a batch of none is."""
        if len(slots) == 0:
            nothing = {each.name: torch.zeros((0, *each.shape), dtype=each.dtype) for each in self.sample}
            return self._there(nothing if len(nothing) > 1 else nothing[self.sample[0].name])
        stored, start = self.encoded(slots), time.perf_counter()
        samples = self.codec.decode(stored)
        self.seconds[0] += time.perf_counter() - start
        self.worked[0] += len(slots)
        self._check_samples(samples, f"codec {type(self.codec).__name__} decodes", (len(slots),))
        return self._there(samples)

    def _there(self, samples: Samples) -> Samples:
        if isinstance(samples, Mapping):
            return {name: part.to(self._device) for name, part in samples.items()}
        return samples.to(self._device)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def _changed(self, slots: int | slice) -> None:
        if self._places is not None:
            self._places[slots] = UNWRITTEN

    def places(self) -> Places:
        """Where the sample in every slot was last written."""
        if self._places is None:
            self._places = np.full(self.allocated, UNWRITTEN, np.int64)
        return self._places

    def logged_nbytes(self, used: int) -> float:
        """Bytes of what a slot holds of its sample, on average."""
        fixed = sum(column.nbytes for column in self.held if column.name in self._logged)
        return fixed + (0 if self.arena is None else self.arena.live / max(1, used))

    def logged(self, slots: Slots) -> dict[str, Any]:
        """Copies of what these slots hold of their samples, by the names that it has in `state`."""
        held = {
            f"column.{name}": self.tensors[name].index_select(0, torch.from_numpy(slots).to(self._device)).cpu()
            for name in self._logged
        }
        return held if self.arena is None else {**held, CODES: self.arena.read(slots)}

    def state(self, used: int, apart: Collection[str] = ()) -> dict[str, torch.Tensor]:
        """What the slots in use hold; the columns are views. Without what is written apart."""
        state = {
            f"column.{name}": tensor[: min(used, 1) if name in self._alike else used]
            for name, tensor in self.tensors.items()
            if SLOTS not in apart or name not in self._logged
        }
        if self.arena is not None:
            codes = self.arena.lengths_only(used) if SLOTS in apart else self.arena.state(used)
            state |= prefixed("arena", codes)
        shared = self.codec.shared()
        of_codec = self.codec.state() if SHARED not in apart or shared is None else shared.state_apart()
        return state | prefixed("codec", of_codec)

    def check_state(self, state: Mapping[str, torch.Tensor]) -> None:
        used = len(state.get(f"column.{LABEL}", ()))
        for column in (*self.held, *self.beside):
            saved = state.get(f"column.{column.name}")
            wanted = (min(used, 1) if column.name in self._alike else used, *column.shape)
            if column.name in self._alike and saved is not None and len(saved) == used:
                wanted = (used, *column.shape)
            if saved is None or saved.dtype != column.dtype or saved.shape != wanted:
                raise BudgetedError(f"the saved memory has no {column}: load it with the columns it was saved with")
        if ("arena.codes" in state) != (self.arena is not None):
            raise BudgetedError("the memory was saved with another codec: load it with that one")

    def load_state(self, state: Mapping[str, torch.Tensor], used: int, take: Collection[str] = ()) -> None:
        """Into allocated slots. The tensors named in `take` are nobody else's: where all slots are in use they become
        the columns themselves, and no second copy is made.
        """
        for name, tensor in self.tensors.items():
            saved = state[f"column.{name}"]
            fits = name not in self.hosted and saved.shape == tensor.shape and saved.device == tensor.device
            if fits and f"column.{name}" in take:
                self.tensors[name] = saved
            elif name not in self._alike:
                tensor[:used] = saved
            elif used:
                tensor[0] = saved[-1]
        if self.arena is not None:
            self.arena.load_state(without_prefix("arena", state))
        self.codec.load_state(without_prefix("codec", state), self._device)

    def check_sample(self, sample: Samples) -> None:
        self._check_samples(sample, "the memory keeps")

    def check_beside(self, label: int, columns: Mapping[str, torch.Tensor]) -> None:
        if not 0 <= label <= self._label_limit:
            raise BudgetedError(f"label {label} is not in 0 … {self._label_limit}: declare more classes for the memory")
        for name, value in columns.items():
            if name not in self._known:
                raise BudgetedError(f"the memory has no column {name!r}: declare it when the memory is made")
            self._known[name].check(value, "the memory keeps")

    def _check_samples(self, samples: Samples, who: str, batch: tuple[int, ...] = ()) -> None:
        if len(self.sample) == 1 and isinstance(samples, torch.Tensor):
            self.sample[0].check(samples, who, batch)
            return
        names = [column.name for column in self.sample]
        if len(names) == 1 or not isinstance(samples, Mapping) or set(samples) != set(names):
            wanted = "a tensor" if len(names) == 1 else f"a dictionary of tensors named {', '.join(names)}"
            given = sorted(samples) if isinstance(samples, Mapping) else type(samples).__name__
            raise BudgetedError(f"{who} {wanted} for a sample, not {given}")
        for column in self.sample:
            column.check(samples[column.name], who, batch)

    def check_encoded(self, encoded: Mapping[str, torch.Tensor]) -> None:
        who = f"codec {type(self.codec).__name__} holds"
        if set(encoded) - {CODE} != {column.name for column in self.held} or (self.arena is None and CODE in encoded):
            raise BudgetedError(f"{who} {[column.name for column in self.held]} in a slot, but encodes {list(encoded)}")
        for column in self.held:
            column.check(encoded[column.name], who)
        code = encoded.get(CODE)
        if code is not None and (code.dtype != torch.uint8 or code.ndim != 1):
            raise BudgetedError(f"{who} bytes: give {CODE!r} as a uint8 tensor of one dimension, not {code.dtype}")

    def _tell_codec(self, encoded: Mapping[str, torch.Tensor], replaced: int | None) -> None:
        """First of what comes, so that what it shares with the one that leaves stays."""
        if self._codec_listens:
            self.codec.stored(encoded)
            if replaced is not None:
                self.codec.leaving(self.encoded(np.array([replaced])))


def _zeros(rows: int, column: Column, device: torch.device) -> torch.Tensor:
    """Of the system, which gives a page when it is first written: slots that are not in use take no room."""
    if device.type != "cpu" or not rows * column.nbytes:
        return torch.zeros((rows, *column.shape), dtype=column.dtype, device=device)
    room = torch.from_numpy(np.zeros(rows * column.nbytes, np.uint8))
    return room.view(column.dtype).reshape(rows, *column.shape)


def code_of(encoded: Mapping[str, torch.Tensor]) -> npt.NDArray[np.uint8]:
    code = encoded.get(CODE)
    return np.empty(0, np.uint8) if code is None else code.cpu().numpy()


def row_of(batch: Any, row: int) -> Any:
    """One of a batch: of a tensor, or of every entry of a dictionary."""
    return {name: part[row] for name, part in batch.items()} if isinstance(batch, Mapping) else batch[row]
