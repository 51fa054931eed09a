"""Who pays: work of a step with the step, work between steps at once, and never more than there is."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgeted.budget import BudgetSpent, Compute, Cost, Ledger
from budgeted.budget.account import Account


def cost(real: int) -> Cost:
    return Cost(0, real)


def account(amount: int | None) -> Account:
    return Account(Ledger(None if amount is None else Compute(amount, "real")))


def test_between_steps_a_charge_is_paid_at_once_and_in_a_step_with_it() -> None:
    found = account(100)
    found.charge("retrieval", cost(5))
    assert found.ledger.spent.real == 5
    found.begin_step()
    found.charge("retrieval", cost(7))
    found.charge("similarity", cost(1))
    found.charge("retrieval", cost(2))
    assert found.ledger.spent.real == 5
    assert found.aside == cost(10)
    paid = found.end_step({"forward": cost(20), "retrieval": cost(3)})
    assert paid == {"forward": cost(20), "retrieval": cost(12), "similarity": cost(1)}
    assert (found.ledger.spent.real, found.ledger.steps) == (38, 1)
    assert found.aside == cost(0)
    found.charge("retrieval", cost(1))
    assert found.ledger.spent.real == 39


def test_what_cannot_be_paid_is_refused_and_changes_nothing() -> None:
    found = account(100)
    found.begin_step()
    found.charge("retrieval", cost(60))
    with pytest.raises(BudgetSpent, match="raise the compute budget or stop"):
        found.charge("similarity", cost(41))
    assert found.aside == cost(60)
    assert found.affords(cost(40))
    found.end_step({}, steps=0)
    assert (found.ledger.spent.real, found.ledger.steps) == (60, 0)


def test_whatever_is_run_beside_a_step_leaves_enough_for_it() -> None:
    found = account(100)
    found.begin_step()
    found.charge("retrieval", cost(10))
    with pytest.raises(BudgetSpent):
        found.owe(cost(91))
    found.owe(cost(70))
    assert found.affords(cost(20))
    with pytest.raises(BudgetSpent):
        found.charge("retrieval", cost(21))
    found.charge("retrieval", cost(20))
    found.end_step({"forward": cost(70)})
    assert found.ledger.left == 0
    found.begin_step()  # owes nothing of the step before
    assert found.affords(cost(0))


def test_a_dropped_step_costs_nothing() -> None:
    found = account(100)
    found.begin_step()
    found.charge("retrieval", cost(10))
    found.owe(cost(70))
    found.drop_step()
    found.charge("retrieval", cost(100))
    assert found.ledger.left == 0


def test_without_a_budget_everything_is_afforded() -> None:
    found = account(None)
    found.begin_step()
    found.owe(cost(10**30))
    found.charge("retrieval", cost(10**30))
    found.end_step({"forward": cost(10**30)})
    assert found.ledger.spent.real == 2 * 10**30


@given(
    amount=st.integers(0, 300),
    steps=st.lists(st.tuples(*[st.integers(0, 60)] * 4), max_size=12),
)
def test_a_step_that_is_owed_can_always_be_paid(amount: int, steps: list[tuple[int, int, int, int]]) -> None:
    """Whatever is asked for before, in and after steps: the ledger never shows more than the budget, and no step that
    was promised to be paid is refused at its end."""
    found = account(amount)
    for between, before, own, after in steps:
        with contextlib.suppress(BudgetSpent):
            found.charge("retrieval", cost(between))
        taken, moved = found.ledger.steps, False
        found.begin_step()
        with contextlib.suppress(BudgetSpent):
            found.charge("retrieval", cost(before))
            found.owe(cost(own))
            moved = True
            found.charge("fisher", cost(after))
        found.end_step({"forward": cost(own)} if moved else {}, steps=int(moved))
        assert found.ledger.steps == taken + moved
        assert found.ledger.spent.real <= amount
