"""Questions over pictures as samples: pictures (uint8, places x 3 x height x width) and a text, by name.

The text is that of the question, then of the answer, in UTF-8, with a zero between them and zeros behind: whatever
reads it has a tokenizer of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.bongard.problem import Item, Picture
from budgeted.streams.records import Records

PICTURES, TEXT = "pictures", "text"


class Questions:
    """Questions whose pictures are looked up by name each time they are asked for; they stand where images stand."""

    def __init__(self, items: Sequence[Item], picture: Callable[[str], Picture], pixels: int, text: int) -> None:
        """pixels: of a picture's side. text: bytes that a question and its answer have at most."""
        self.items = list(items)
        self._picture, self._pixels, self._text = picture, pixels, text
        self._places = len(self.items[0].pictures) if self.items else 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def shape(self) -> tuple[int, int]:
        """How many there are, and the bytes of one."""
        return len(self), self._places * 3 * self._pixels**2 + self._text

    def __getitem__(self, index: Any, /) -> Any:
        if isinstance(index, int | np.integer):
            return self._one(int(index))
        chosen = np.arange(len(self))[index]
        rows = [self._one(int(row)) for row in chosen]
        return Records(
            {
                PICTURES: np.stack([row[PICTURES] for row in rows])
                if rows
                else np.empty((0, self._places, 3, self._pixels, self._pixels), np.uint8),
                TEXT: np.stack([row[TEXT] for row in rows]) if rows else np.empty((0, self._text), np.uint8),
            }
        )

    def digest(self, shown: NDArray[np.integer], looked_into: int = 1000) -> str:
        """Of what is asked and over which pictures, and all bytes of the pictures of some, spread evenly."""
        found = hashlib.blake2b(repr((len(shown), self._pixels)).encode(), digest_size=32)
        for index in shown:
            item = self.items[int(index)]
            found.update(repr((item.id, item.question, item.answer, item.pictures)).encode())
        for which in np.linspace(0, len(shown) - 1, min(len(shown), looked_into)).astype(int):
            found.update(self._one(int(shown[which]))[PICTURES].tobytes())
        return found.hexdigest()

    def _one(self, index: int) -> dict[str, NDArray[np.uint8]]:
        item = self.items[index]
        pictures = np.stack([self._picture(name).transpose(2, 0, 1) for name in item.pictures])
        return {PICTURES: pictures, TEXT: written(item.question, item.answer, self._text)}


def held(items: Sequence[Item], picture: Callable[[str], Picture], pixels: int, text: int) -> Records:
    """The questions with their pictures in memory, each looked up once."""
    found = Questions(items, cache(picture), pixels, text)[:]
    assert isinstance(found, Records)
    return found


def words_of(item: Item) -> str:
    """The text of a question and its answer, as `written` takes it apart again."""
    return f"{item.question}\0{item.answer}"


def written(question: str, answer: str, length: int) -> NDArray[np.uint8]:
    """As bytes of this length."""
    code = f"{question}\0{answer}".encode()
    found = np.zeros(length, np.uint8)
    found[: len(code)] = np.frombuffer(code, np.uint8)
    return found


def read(text: NDArray[np.uint8]) -> tuple[str, str]:
    """Question and answer, from their bytes."""
    question, _, answer = text.tobytes().decode(errors="replace").rstrip("\0").partition("\0")
    return question, answer
