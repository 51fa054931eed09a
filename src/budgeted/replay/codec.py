"""A codec: what a slot of the memory holds of a sample, and how a batch of samples comes back from it.

A sample is a tensor, or a dictionary of named tensors (a picture and its tokens). The memory describes it by columns;
the codec answers with the columns that a slot holds, turns one sample into them (`encode`) and a batch of them back
into samples (`decode`). Where samples differ in the bytes that they take, `varying` is true, and under the name `CODE`
a sample's bytes stand beside the columns, of any length.

    @dataclass
    class Packed(Codec):
        varying = True

        def encode(self, sample):
            return {CODE: torch.frombuffer(bytearray(zlib.compress(sample.numpy())), dtype=torch.uint8)}

        def decode(self, stored):
            return torch.stack([... for code in stored[CODE]])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from budgeted.budget.kept import Keeps
from budgeted.registry import MadeByName, Registry
from budgeted.replay.column import Column
from budgeted.replay.journal import Rows

CODE = "code"
"""The name under which `encode` gives, and `decode` gets, bytes of any length."""

Samples = Any
"""One sample, or a batch of them: a tensor, or a dictionary of named tensors."""

Stored = Mapping[str, Any]
"""What slots hold: a tensor for every column of the codec; under `CODE` a uint8 tensor, in a batch a list of them."""


class SharedRows(Rows, Protocol):
    """Rows that a codec keeps; their content goes by the names of the codec's state."""

    def state_apart(self) -> dict[str, Tensor]:
        """The codec's state without the rows."""


class Codec(MadeByName, Keeps, ABC):
    """How samples are stored. The fields of one that is a dataclass are its settings (`--set codec.NAME=VALUE`).

    What a codec keeps for all slots together (a codebook, tables) it names in `kept`: it is counted, saved and loaded
    with the memory.
    """

    varying: bool = False
    """Whether samples differ in the bytes that they take: then a memory is limited by bytes, not by slots. It may
    depend on the samples: it is looked at when `columns` has been asked."""

    shortens: ClassVar[bool] = False
    """Whether it can hold a sample with fewer bytes than at first: then no sample leaves while that gives room."""

    everywhere: bool = False
    """Whether samples of the stream and test samples pass through it too, before the model sees them."""

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        """The columns that a slot holds of such a sample, beside its `CODE`. Asked when the memory is made: remember
        here what `decode` must know (a shape, a name). One column describes a tensor, several a dictionary.
        """
        return ()

    @abstractmethod
    def encode(self, sample: Samples) -> dict[str, Tensor]:
        """What a slot holds of one sample. It changes nothing: the sample may not be stored after all."""

    @abstractmethod
    def decode(self, stored: Stored) -> Samples:
        """A batch of samples, in the shape and type that went in, from what slots hold: columns have the slots as
        their first dimension, codes come as a list.
        """

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        """What slots hold of a batch of samples, as `decode` takes it."""
        if isinstance(samples, Mapping):
            count = len(next(iter(samples.values())))
            each = [self.encode({name: part[row] for name, part in samples.items()}) for row in range(count)]
        else:
            each = [self.encode(sample) for sample in samples]
        return {
            name: [code[name] for code in each] if name == CODE else torch.stack([code[name] for code in each])
            for name in each[0]
        }

    def operations(self, decoded: int, encoded: int = 0) -> int:
        """Operations of decoding, and of encoding, so many samples, charged under rule `real`: by the codec's
        documented price, since no dispatcher sees what a library runs.
        """
        return 0

    def growth(self, encoded: Mapping[str, Tensor]) -> int:
        """Bytes that the codec itself will keep more when this is stored; for one that keeps parts which several
        slots share. Such a codec is `varying`.
        """
        return 0

    def next_to_shorten(self, slots: int) -> Sequence[int] | None:
        """Where so many slots are in use, those that are shortened next; None when all are as short as they may be."""
        return None

    def shortened(self, stored: Stored) -> dict[str, Any]:
        """What these slots hold, with fewer bytes: as `encode_batch` gives it."""
        raise NotImplementedError

    def passed(self, samples: Samples) -> Samples:
        """A batch of samples as it would come back from slots."""
        return self.decode(self.encode_batch(samples))

    def shared(self) -> SharedRows | None:
        """What it keeps that several slots share, if that is large: checkpoints write it row by row, once."""
        return None

    def stored(self, encoded: Mapping[str, Tensor]) -> None:
        """This has come into a slot."""

    def leaving(self, stored: Stored) -> None:
        """What one slot holds (a batch of one) is about to leave."""


CODECS: Registry[type[Codec]] = Registry("codec", "codecs", lambda: Codec)


@CODECS.register("raw")
class Raw(Codec):
    """Samples as they are."""

    def __init__(self) -> None:
        self._alone: str | None = None

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        self._alone = sample[0].name if len(sample) == 1 else None
        return tuple(sample)

    def encode(self, sample: Samples) -> dict[str, Tensor]:
        return sample if self._alone is None else {self._alone: sample}

    def encode_batch(self, samples: Samples) -> dict[str, Any]:
        return self.encode(samples)

    def decode(self, stored: Stored) -> Samples:
        return stored if self._alone is None else stored[self._alone]
