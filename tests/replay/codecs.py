"""Small codecs for tests: trailing zeros left out, and those that later ones will be like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted.replay import CODE, Codec, Column

LENGTH = 40
SAMPLE = Column("sample", (LENGTH,), torch.uint8)


def sample(length: int, value: int) -> Tensor:
    """One that takes `length` bytes without its zeros."""
    filled = torch.zeros(LENGTH, dtype=torch.uint8)
    filled[:length] = value % 255 + 1
    return filled


class Trimmed(Codec):
    """A sample without its last zeros, and how many there were in a column beside it."""

    varying = True

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        return (Column("zeros", (), torch.int16),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        length = int(sample.count_nonzero())
        return {CODE: sample[:length], "zeros": torch.tensor(LENGTH - length, dtype=torch.int16)}

    def decode(self, stored: Mapping[str, Any]) -> Tensor:
        padded = [
            torch.cat([code, torch.zeros(int(zeros), dtype=torch.uint8)])
            for code, zeros in zip(stored[CODE], stored["zeros"], strict=True)
        ]
        return torch.stack(padded)


class Nearest(Codec):
    """The nearest of a few vectors (a codebook that the codec keeps), by its number: a byte."""

    kept = ("book",)

    def __init__(self) -> None:
        self.book = torch.arange(16.0)[:, None].repeat(1, 3)

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        return (Column("nearest", (), torch.uint8),)

    def encode(self, sample: Tensor) -> dict[str, Tensor]:
        return {"nearest": (self.book - sample).square().sum(1).argmin().to(torch.uint8)}

    def decode(self, stored: Mapping[str, Any]) -> Tensor:
        return self.book[stored["nearest"].long()]


class Shared(Codec):
    """A picture that several samples have is kept once, by the codec; slots hold its number and their own words."""

    varying = True
    kept = ("pictures", "uses")

    def __init__(self) -> None:
        self.pictures: dict[str, Tensor] = {}
        self.uses: dict[str, Tensor] = {}
        self._coming: dict[str, Tensor] = {}

    def columns(self, sample: Sequence[Column]) -> tuple[Column, ...]:
        return (Column("number", (), torch.int64), Column("words", (2,), torch.int32))

    def encode(self, sample: Mapping[str, Tensor]) -> dict[str, Tensor]:
        number = int.from_bytes(sample["picture"].numpy().tobytes()[:4], "little")
        self._coming = {str(number): sample["picture"]}
        return {"number": torch.tensor(number), "words": sample["words"]}

    def growth(self, encoded: Mapping[str, Tensor]) -> int:
        key = str(int(encoded["number"]))
        return 0 if key in self.pictures else self._coming[key].nbytes + 8

    def stored(self, encoded: Mapping[str, Tensor]) -> None:
        key = str(int(encoded["number"]))
        self.pictures.setdefault(key, self._coming.get(key, torch.empty(0)))
        self.uses[key] = self.uses.get(key, torch.tensor(0)) + 1

    def leaving(self, stored: Mapping[str, Any]) -> None:
        key = str(int(stored["number"]))
        self.uses[key] = self.uses[key] - 1
        if not self.uses[key]:
            del self.uses[key], self.pictures[key]

    def decode(self, stored: Mapping[str, Any]) -> dict[str, Tensor]:
        pictures = torch.stack([self.pictures[str(number)] for number in stored["number"].tolist()])
        return {"picture": pictures, "words": stored["words"]}


def slots(*numbers: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, np.int64)
