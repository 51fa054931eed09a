"""What is declared is counted, saved and taken up again; whatever kind of thing it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.budget.kept import Keeps
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Pair:
    first: int = 1
    second: float = 0.5


class Inner(Keeps):
    kept = ("weights",)

    def __init__(self) -> None:
        self.weights = np.arange(3, dtype=np.float32)


class Outer(Keeps):
    kept: ClassVar[tuple[str, ...]] = (
        "tensor",
        "table",
        "number",
        "numbers",
        "pair",
        "inner",
        "recent",
        "nothing",
        "text",
        "where",
    )

    def __init__(self, scale: float = 1.0) -> None:
        self.tensor = torch.arange(4.0) * scale
        layout = torch.channels_last
        self.table = {"a": torch.rand(2, 3, 4, 4).contiguous(memory_format=layout), "b": torch.ones(1, 2, 1, 1)}
        self.number: float = 0.1 * scale
        self.numbers: list[Any] = [1, 2.5, [3]]
        self.pair = Pair(2, 0.25 * scale)
        self.inner = Inner()
        self.recent: deque[int] = deque([1, 2], maxlen=5)
        self.nothing: Tensor | None = None
        self.text = "words"
        self.where = frozenset({3, 1})
        self.undeclared = torch.ones(1000)


class More(Outer):
    kept = ("count",)

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)
        self.count = 7


def test_everything_declared_comes_back_as_it_was() -> None:
    first, second = More(3.0), More()
    first.inner.weights *= 2
    first.nothing = torch.tensor(float("nan"))
    first.count = 12
    second.load_state({name: tensor.clone() for name, tensor in first.state().items()})
    assert torch.equal(second.tensor, first.tensor)
    assert torch.equal(second.table["a"], first.table["a"])
    assert second.table["a"].stride() == first.table["a"].stride()  # a convolution's bits depend on it
    assert (second.number, second.numbers, second.pair) == (first.number, [1, 2.5, [3]], Pair(2, 0.75))
    assert second.inner.weights.tolist() == [0, 2, 4]
    assert (list(second.recent), second.recent.maxlen, second.text) == ([1, 2], 5, "words")
    assert second.nothing is not None
    assert second.nothing.isnan()
    assert (second.where, second.count) == (frozenset({1, 3}), 12)


def test_bytes_are_those_of_what_is_declared() -> None:
    tensors = 4 * 4 + 4 * (2 * 3 * 4 * 4 + 2) + 3 * 4
    numbers = 8 * (1 + 3 + 2 + 5 + 2)  # a number, three in lists, a pair, room for five, a set of two
    assert Outer().nbytes() == tensors + numbers + len("words")
    assert More().nbytes() == Outer().nbytes() + 8


def test_what_a_base_keeps_is_kept() -> None:
    assert More().kept_names() == [*Outer.kept, "count"]


def test_a_state_without_what_is_kept_is_an_error() -> None:
    for missing, named in (("tensor", "tensor"), ("table.a", "table.a"), ("inner.weights", "weights")):
        state = Outer().state()
        del state[missing]
        with pytest.raises(BudgetedError, match=f"it lacks {named}; load") as error:
            Outer().load_state(state)
        assert "\n" not in str(error.value)
    with pytest.raises(BudgetedError, match="no saved state of Outer: it lacks tensor, table, number and more"):
        Outer().load_written({}, {})


class Draws(Keeps):
    kept = ("generator", "counts", "table")

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)
        self.counts: dict[str, int] = {}
        self.table: dict[str, Tensor] = {}


def test_a_generator_goes_on_where_it_was() -> None:
    first, second = Draws(), Draws()
    first.generator.random(7)
    second.load_state(first.state())
    assert second.generator.random(3).tolist() == first.generator.random(3).tolist()
    assert first.nbytes() == 48


def test_an_empty_dictionary_may_have_been_of_numbers_or_of_tensors() -> None:
    first, second = Draws(), Draws()
    first.counts, first.table = {"a": 3}, {"b": torch.ones(2)}
    empty = Draws().state()
    second.load_state(first.state())
    assert (second.counts, second.table["b"].tolist()) == ({"a": 3}, [1.0, 1.0])
    second.load_state(empty)
    assert (second.counts, second.table) == ({}, {})


def test_it_goes_back_to_a_snapshot_as_often_as_wanted() -> None:
    part = More()
    kept = part.snapshot()
    for _ in range(2):
        part.tensor += 1
        part.table["a"].zero_()
        part.numbers.append(4)
        part.count += 1
        part.go_back(kept)
        assert part.tensor.tolist() == [0.0, 1.0, 2.0, 3.0]
        assert bool(part.table["a"].any())
        assert part.table["a"].stride() == More().table["a"].stride()
        assert (part.numbers, part.count) == ([1, 2.5, [3]], 7)
