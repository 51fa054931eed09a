from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgeted.budget import PURPOSES, BudgetSpent, Compute, Cost, Ledger, peak_memory
from budgeted.errors import BudgetedError, UnknownName


def test_a_step_is_charged_by_purpose_under_both_rules() -> None:
    ledger = Ledger()
    ledger.charge({"forward": Cost(10, 20), "backward": Cost(20, 41)})
    ledger.charge({"forward": Cost(10, 20), "fisher": Cost(0, 3)})
    assert ledger.spent == Cost(40, 84)
    assert ledger.spent_on["forward"] == Cost(20, 40)
    assert ledger.spent_on["fisher"] == Cost(0, 3)
    assert ledger.steps == 2
    assert ledger.left is None


@pytest.mark.parametrize(("rule", "budget"), [("paper", 99), ("real", 199)])
def test_overspending_is_refused_and_nothing_is_charged(rule: str, budget: int) -> None:
    ledger = Ledger(Compute(budget, rule))  # type: ignore[arg-type]
    step = {"forward": Cost(25, 50), "backward": Cost(25, 50)}
    ledger.charge(step)  # type: ignore[arg-type]
    before = ledger.state_dict()
    with pytest.raises(BudgetSpent, match="only 49MAC of 99MAC is left" if rule == "paper" else "99FLOP"):
        ledger.charge(step)  # type: ignore[arg-type]
    assert ledger.state_dict() == before
    assert not ledger.affords(Cost(50, 100))
    assert ledger.affords(Cost(49, 99))


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 300))
def test_never_above_the_budget(charges: list[int], budget: int) -> None:
    ledger = Ledger(Compute(budget, "real"))
    for amount in charges:
        try:
            ledger.charge({"forward": Cost(0, amount)})
        except BudgetSpent:
            assert ledger.spent.real + amount > budget
    assert ledger.spent.real <= budget
    assert ledger.left == budget - ledger.spent.real


def test_bad_charges() -> None:
    ledger = Ledger()
    with pytest.raises(UnknownName, match="did you mean 'forward'"):
        ledger.charge({"foward": Cost(1, 1)})  # type: ignore[dict-item]
    with pytest.raises(BudgetedError, match="negative"):
        ledger.charge({"forward": Cost(-1, 0)})
    assert ledger.spent == Cost()


def test_state_survives_json() -> None:
    ledger = Ledger(Compute(10**18, "paper"))
    for i, purpose in enumerate(PURPOSES):
        ledger.charge({purpose: Cost(10**15 + i, 3 * i)})
    with ledger.clock("train"):
        time.sleep(0.01)
    other = Ledger(Compute(10**18, "paper"))
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert other == ledger
    assert other.seconds_on["train"] >= 0.01


def test_peak_memory_is_in_bytes() -> None:
    block = bytearray(64 * 2**20)
    assert 64 * 2**20 <= peak_memory() < 2**40
    del block
