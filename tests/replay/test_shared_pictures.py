"""The codec that keeps pictures once: what comes back, what is counted, what stays and goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay import CODECS, Column, Memory, SharedPictures, label_column

SIDE, PLACES, TEXT = 3, 2, 20
PICTURE = 3 * SIDE * SIDE
COLUMNS = (
    Column("pictures", (PLACES, 3, SIDE, SIDE), torch.uint8),
    Column("text", (TEXT,), torch.uint8),
    label_column(4),
)


def sample(first: int, second: int, words: str) -> dict[str, Tensor]:
    """Two pictures by number, and a text."""
    pictures = torch.stack([torch.full((3, SIDE, SIDE), number, dtype=torch.uint8) for number in (first, second)])
    text = torch.zeros(TEXT, dtype=torch.uint8)
    text[: len(words)] = torch.tensor(list(words.encode()), dtype=torch.uint8)
    return {"pictures": pictures, "text": text}


def counted(held: list[tuple[int, int, str]]) -> int:
    """Bytes by hand: every picture once with its digest and count, slots with digests, place, label and text."""
    different = {number for one in held for number in one[:2]}
    return len(different) * (PICTURE + 16 + 8) + sum(PLACES * 16 + 4 + 4 + 1 + len(one[2]) for one in held)


def test_a_memory_of_questions_holds_pictures_once() -> None:
    draw = np.random.default_rng(3)
    memory = Memory(COLUMNS, codec=SharedPictures(), limit=900)
    held: list[tuple[int, int, str]] = []
    for step in range(200):
        one = (int(draw.integers(9)), int(draw.integers(9)), "x" * int(draw.integers(TEXT)))
        encoded = memory.encode(sample(*one))
        while not memory.fits(encoded, len(memory)):
            gone = int(draw.integers(len(memory)))
            memory.evict(gone)
            held[gone] = held[-1]
            held.pop()
        memory.put_encoded(len(memory), encoded, step % 4)
        held.append(one)
        assert memory.nbytes() == counted(held) <= 900
    found = memory.gather(np.arange(len(memory))).samples
    for row, one in enumerate(held):
        for name, tensor in sample(*one).items():
            assert torch.equal(found[name][row], tensor)
    again = Memory(COLUMNS, codec=SharedPictures(), limit=900)
    again.load_state({name: tensor.clone() for name, tensor in memory.state().items()})
    assert again.nbytes() == memory.nbytes()
    for gone in range(len(memory) - 1, -1, -1):
        assert torch.equal(again.gather(np.array([0])).samples["pictures"][0], sample(*held[0])["pictures"])
        again.evict(gone)
    assert again.nbytes() == 0
    assert not again.codec.kept_names() or not again.codec.state()


def test_a_place_taken_over_keeps_what_both_show() -> None:
    memory = Memory(COLUMNS, codec=CODECS["pictures"](), limit=900)
    memory.put(0, sample(1, 2, "ab"), 0)
    memory.put(0, sample(2, 3, "c"), 1)
    assert memory.nbytes() == counted([(2, 3, "c")])
    both = {name: torch.stack([sample(3, 3, "de")[name], sample(4, 5, "")[name]]) for name in ("pictures", "text")}
    memory.extend(both, np.array([2, 3]))
    assert memory.nbytes() == counted([(2, 3, "c"), (3, 3, "de"), (4, 5, "")])
    assert torch.equal(memory.gather(np.array([2])).samples["pictures"][0], sample(4, 5, "")["pictures"])


def test_other_samples_are_refused() -> None:
    with pytest.raises(BudgetedError, match="several pictures and a text"):
        Memory((Column("sample", (3, 8, 8), torch.uint8), label_column(4)), codec=SharedPictures(), limit=900)
