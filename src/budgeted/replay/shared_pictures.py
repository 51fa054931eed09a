"""Pictures that several samples share are kept once and counted once; slots hold which they are, and the text.

Questions over pictures use the same ones again and again: Bongard-HOI's P/N questions have 36,040 places for 6,027
pictures. A picture is known by a digest of its bytes (128 bits of BLAKE2b), whatever it is called. A slot holds the
digests and the text without the zeros behind it; the codec keeps the pictures, how many slots show each, and lets one
go with the last of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay.codec import CODE, CODECS, Codec, Stored
from budgeted.replay.column import Column
from budgeted.replay.journal import UNWRITTEN, Places

SHOWN = "shown"
DIGEST = 16
"""bytes by which a picture is known"""
_COUNT = 8  # bytes of the number of slots that show it


@CODECS.register("pictures")
class SharedPictures(Codec):
    """Pictures of questions once each, however many samples show them; texts as long as they are."""

    varying = True
    kept = ("pictures", "uses")

    def __init__(self) -> None:
        self.pictures: dict[bytes, Tensor] = {}
        self.uses: dict[bytes, int] = {}
        self._places: dict[bytes, int] = {}  # of pictures that are in a checkpoint
        self._coming: dict[bytes, Tensor] = {}  # of what was encoded last: it may not be stored after all
        self._sample: tuple[Column, Column] = (Column(""), Column(""))

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        pictures = [column for column in sample if column.dtype == torch.uint8 and len(column.shape) == 4]
        texts = [column for column in sample if column.dtype == torch.uint8 and len(column.shape) == 1]
        if len(sample) != 2 or len(pictures) != 1 or len(texts) != 1:
            raise BudgetedError(
                "codec pictures stores samples of several pictures and a text (problem questions): use another codec"
            )
        self._sample = pictures[0], texts[0]
        return (Column(SHOWN, (pictures[0].shape[0], DIGEST), torch.uint8),)

    # -- one sample --------------------------------------------------------------------------------------------

    def encode(self, sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._coming = {}
        return self._encode(sample)

    def encode_batch(self, samples: Mapping[str, Tensor]) -> dict[str, Any]:
        self._coming = {}
        count = len(next(iter(samples.values())))
        each = [self._encode({name: part[row] for name, part in samples.items()}) for row in range(count)]
        return {SHOWN: torch.stack([one[SHOWN] for one in each]), CODE: [one[CODE] for one in each]}

    def _encode(self, sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        pictures, text = self._sample
        keys = [_digest(picture) for picture in sample[pictures.name]]
        self._coming |= dict(zip(keys, sample[pictures.name], strict=True))
        words = sample[text.name]
        length = int(words.nonzero().max()) + 1 if bool(words.any()) else 0
        return {SHOWN: _as_rows(keys), CODE: words[:length].cpu()}

    def decode(self, stored: Stored) -> dict[str, Tensor]:
        pictures, text = self._sample
        shown = torch.stack([torch.stack([self.pictures[key] for key in _keys(row)]) for row in stored[SHOWN]])
        words = torch.zeros((len(shown), *text.shape), dtype=torch.uint8)
        for row, code in enumerate(stored[CODE]):
            words[row, : len(code)] = code
        return {pictures.name: shown, text.name: words}

    # -- what is shared ----------------------------------------------------------------------------------------

    def growth(self, encoded: Mapping[str, Tensor]) -> int:
        return sum(self._each for key in set(_keys(encoded[SHOWN])) if key not in self.pictures)

    def stored(self, encoded: Mapping[str, Tensor]) -> None:
        for key in _keys(encoded[SHOWN]):
            if key not in self.pictures:
                self.pictures[key] = self._coming[key].clone()
            self.uses[key] = self.uses.get(key, 0) + 1

    def leaving(self, stored: Stored) -> None:
        for key in _keys(stored[SHOWN][0]):
            self.uses[key] -= 1
            if not self.uses[key]:
                del self.uses[key], self.pictures[key]
                self._places.pop(key, None)

    @property
    def _each(self) -> int:
        """Bytes of one more picture."""
        pictures = self._sample[0]
        return pictures.nbytes // pictures.shape[0] + DIGEST + _COUNT

    def nbytes(self) -> int:
        return self._each * len(self.pictures) if self.pictures else 0

    def state(self) -> dict[str, Tensor]:
        """Three tensors, however many pictures there are."""
        if not self.pictures:
            return {}
        return {"pictures": torch.stack(list(self.pictures.values())), **self.state_apart()}

    # -- pictures as rows that a checkpoint writes once --------------------------------------------------------

    def shared(self) -> SharedPictures | None:
        return self if self.pictures else None

    def state_apart(self) -> dict[str, Tensor]:
        return {
            "digests": _as_rows(self.pictures),
            "uses": torch.tensor([self.uses[key] for key in self.pictures]),
        }

    def places(self) -> Places:
        return np.array([self._places.get(key, UNWRITTEN) for key in self.pictures], np.int64)

    def settle(self, places: Places) -> None:
        self._places = dict(zip(self.pictures, places.tolist(), strict=True))

    def row_nbytes(self) -> float:
        return self._each

    def content(self, rows: Places) -> dict[str, Tensor | list[Tensor]]:
        pictures = list(self.pictures.values())
        return {"codec.pictures": torch.stack([pictures[row] for row in rows.tolist()]).cpu()}

    def load_state(self, state: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        keys = _keys(state["digests"]) if "digests" in state else []
        self.pictures = {key: picture.clone() for key, picture in zip(keys, state.get("pictures", ()), strict=True)}
        self.uses = {key: int(count) for key, count in zip(keys, state.get("uses", ()), strict=True)}
        self._places = {}


def _digest(picture: Tensor) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(picture.cpu().numpy()).tobytes(), digest_size=DIGEST).digest()


def _as_rows(keys: Iterable[bytes]) -> Tensor:
    """Digests as uint8, one in a row."""
    return torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).reshape(-1, DIGEST)


def _keys(rows: Tensor) -> list[bytes]:
    return [bytes(row) for row in rows.cpu().numpy()]
