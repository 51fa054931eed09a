"""What a target goes under: whole numbers of every kind as one, words as they are, anything else refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts
from budgeted.problems import Classification

FACTS = DataFacts((1, 2, 2), (0.5,), (0.25,))


def problem() -> Classification:
    return Classification(FACTS)


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (3, 3),
        (-3, -3),
        (True, 1),
        (np.int64(3), 3),
        (np.uint8(3), 3),
        (np.array(3), 3),
        (torch.tensor(3), 3),
        (torch.tensor([3]), 3),
        (torch.tensor(3, dtype=torch.uint8), 3),
        ("goldfish", "goldfish"),
        ("3", "3"),
        ("", ""),
        (np.str_("goldfish"), "goldfish"),
        (np.array("goldfish"), "goldfish"),
        (("left", 3), ("left", 3)),
    ],
)
def test_keys(target: Any, key: object) -> None:
    found = problem().key(target)
    assert found == key
    assert type(found) is type(key) or isinstance(target, bool)


@pytest.mark.parametrize(
    "target",
    [
        2.9,
        3.0,
        float("nan"),
        np.float32(3),
        np.float64(3),
        np.array(3.0),
        np.array([3]),
        torch.tensor(3.0),
        torch.tensor([3, 4]),
        torch.tensor(3.0, dtype=torch.bfloat16),
        None,
        [3],
        {3},
        ("left", 2.9),
        ("left", None),
        b"goldfish",
        3j,
        object(),
    ],
    ids=lambda target: type(target).__name__,
)
def test_what_is_no_key(target: Any) -> None:
    with pytest.raises(BudgetedError, match="a label must be a whole number or a word") as refused:
        problem().key(target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("first", "then"), [(3, "3"), ("3", 3), ("a", True), (0, ("a", 1))])
def test_kinds_do_not_mix(first: Any, then: Any) -> None:
    chosen = problem()
    chosen.meet(chosen.key(first))
    with pytest.raises(BudgetedError, match="of the kind of the labels before it"):
        chosen.key(then)
    assert chosen.keys == [first]


def test_rows_come_in_order_of_first_appearance() -> None:
    chosen = problem()
    assert [chosen.meet(chosen.key(label)) for label in (7, 2, 9)] == [0, 1, 2]
    assert chosen.rows_of([2, 9, 7, 8]) == [1, 2, 0, -1]
    assert chosen.rows_of([np.int32(9), torch.tensor(2), True]) == [2, 1, -1]
    assert (chosen.row(9), chosen.row(8)) == (2, None)


def test_answers_are_labels_or_words() -> None:
    numbers, words = problem(), problem()
    numbers.meet(70, 20)
    words.meet("newt", "olm")
    outputs = torch.tensor([[0.1, 0.9], [2.0, -1.0]])
    assert numbers.answer(outputs).tolist() == [20, 70]
    assert words.answer(outputs) == ["olm", "newt"]
    assert numbers.score(outputs, outputs, torch.tensor([1, 1])).tolist() == [1.0, 0.0]
