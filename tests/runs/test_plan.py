"""From a budget to a plan: the paper's slots, slots that fit exactly, iterations from compute, refusals."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budgeted import models, streams
from budgeted.budget import NOTHING, Budget, Rule, parse_bytes, parse_compute, total
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner, LearnerSettings, Settings
from budgeted.learner.rehearsal import Rehearsed
from budgeted.methods import METHODS
from budgeted.replay import bytes_per_slot
from budgeted.runs.plan import Plan, fixed_bytes, iterations_within, make_plan, slots_beside

PAPER_BUDGET = 7_998_016


def plan(name: str, dataset: str = "cifar10", model: str = "resnet32", **more: Any) -> Plan:
    budget = Budget(
        None if "compute" not in more else parse_compute(more.pop("compute")),
        None if "memory" not in more else parse_bytes(more.pop("memory")),
    )
    given_: dict[str, Any] = {"settings": Settings(), "measure": False, **more}
    if budget.compute is None:
        given_.setdefault("iterations", 1.0)
    return make_plan(METHODS[name], streams.info(dataset), model, budget=budget, **given_)


# rule paper: pixels, plus 4 bytes of frequency a slot, 10 x 10 similarities and 32 layers' traces where a method has
# them; rule real: every byte, so also the label, the batch norm statistics, the head and ER's waiting half batch
SLOTS = {
    ("vanilla", "paper"): 2000,
    ("er", "paper"): 2000,
    ("al", "paper"): 1999,
    ("sar", "paper"): 1997,
    ("al-sar", "paper"): 1997,
    ("vanilla", "real"): 1991,
    ("er", "real"): 1983,
    ("al", "real"): 1991,
    ("sar", "real"): 1988,
    ("al-sar", "real"): 1988,
}


@pytest.mark.parametrize(("name", "rule"), SLOTS)
def test_slots_of_the_papers_byte_budget(name: str, rule: Rule) -> None:
    made = plan(name, memory=f"{PAPER_BUDGET}B", rule=rule)
    assert made.slots == SLOTS[name, rule]
    assert sum(made.bytes.values()) <= PAPER_BUDGET
    if (name, rule) == ("er", "paper"):
        assert made.bytes == {"parameters": 4 * 463_504, "memory": 2000 * 3 * 32 * 32}
        assert sum(made.bytes.values()) == PAPER_BUDGET  # where the number comes from
    if (name, rule) == ("al-sar", "paper"):
        assert made.bytes["memory"] == 1997 * (3 * 32 * 32 + 4)
        assert made.bytes["similarity"] == 4 * 10 * 10


def test_compute_of_one_iteration_of_the_paper() -> None:
    made = plan("er", compute="171.94TMAC", slots=2000)
    assert made.iterations == pytest.approx(1, rel=3e-4)
    assert made.spent.paper <= 171.94e12
    again = plan("er", iterations=1.0, slots=2000)
    assert again.steps == 50_000
    assert again.spent.paper == pytest.approx(171.94e12, rel=3e-4)
    assert again.spent == total(again.per_step.values()) * again.steps


def test_compute_under_rule_real_buys_iterations_at_the_real_price() -> None:
    one = plan("vanilla", "digits", "cnn8", iterations=1.0, slots=10)
    bought = plan("vanilla", "digits", "cnn8", compute=f"{3 * one.spent.real}FLOP", slots=10)
    assert bought.iterations == pytest.approx(3, rel=1e-9)
    assert bought.steps == 3 * one.steps


def test_a_plan_needs_no_data_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUDGETED_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr(streams, "load", None)
    small = Settings(LearnerSettings(batch_size=2))
    for dataset, model in (("cifar100", "resnet20"), ("mnist", "cnn8"), ("svhn", "cnn8"), ("clear10", "cnn8")):
        made = plan("al-sar", dataset, model, memory="40MiB", settings=small)
        assert made.samples == streams.info(dataset).train_size
        assert made.slots is not None
        assert made.slots > 0
    assert not (tmp_path / "nothing").exists()


def test_a_measured_plan_adds_what_the_method_adds() -> None:
    bare = plan("al-sar", "digits", "cnn8", slots=50, samples=100)
    measured = plan("al-sar", "digits", "cnn8", slots=50, samples=100, measure=True)
    assert bare.seconds is None
    assert measured.seconds is not None
    assert 0 < measured.seconds < 100
    assert set(measured.per_step) - set(bare.per_step) == {"fisher", "similarity", "retrieval"}
    # the first of a hundred steps are on the few samples that there are
    assert 0.9 * bare.spent.real < measured.spent.real < 1.05 * bare.spent.real


def test_a_measured_plan_knows_the_refreshed_steps_too() -> None:
    """Every fourth step of aL reads all gradients: two operations an element, spread over the four."""
    measured = plan("al", "digits", "cnn8", slots=50, samples=100, measure=True)
    elements = measured.bytes["parameters"] // 4
    assert measured.per_step["fisher"].real >= 2 * elements / 4


@cache
def built(name: str) -> Learner:
    info = streams.info("digits")
    model = models.build("cnn8", classes=1, input_shape=info.input_shape)
    facts = DataFacts(info.input_shape, info.mean, info.std, info.flips, info.classes, info.train_size)
    return Learner(model, METHODS[name], facts, slots=1)


@given(name=st.sampled_from([*METHODS]), rule=st.sampled_from(["paper", "real"]), budget=st.integers(1, 10**7))
def test_slots_fit_and_one_more_does_not(name: str, rule: Rule, budget: int) -> None:
    learner = built(name)
    fixed = sum(fixed_bytes(learner, "cnn8", rule).values())
    per_slot = bytes_per_slot(learner.memory.columns, rule)
    try:
        slots = slots_beside(fixed, learner, "cnn8", budget, rule)
    except BudgetedError as refused:
        smallest = parse_bytes(re.findall(r"smallest possible budget is (\w+)", str(refused))[0])
        assert budget < smallest == fixed + per_slot
        assert slots_beside(fixed, learner, "cnn8", smallest, rule) == 1
        with pytest.raises(BudgetedError, match="the smallest possible budget"):
            slots_beside(fixed, learner, "cnn8", smallest - 1, rule)
    else:
        assert slots >= 1
        assert slots * per_slot + fixed <= budget < (slots + 1) * per_slot + fixed


@pytest.mark.parametrize("name", METHODS)
def test_planned_slots_are_what_a_learner_has_room_for(name: str) -> None:
    """The plan's arithmetic against the learner's own count of bytes."""
    smallest = built(name).nbytes()  # with one slot
    budget = max(320_000, smallest + 5_000)  # EWC and BiC keep the model more than once
    empty = built(name)
    slots = slots_beside(sum(fixed_bytes(empty, "cnn8", "real").values()), empty, "cnn8", budget, "real")
    info = streams.info("digits")
    for more, kept in ((0, slots), (1, slots), (25, slots)):
        learner = Learner(
            models.build("cnn8", classes=1, input_shape=info.input_shape),
            METHODS[name],
            built(name).data,
            slots=slots + more,
            budget=Budget(None, budget),
        )
        assert learner.memory.capacity == kept
        assert learner.nbytes() <= budget


def of_steps_alone(learner: Learner, batch: int) -> Rehearsed:
    nominal = learner.network.nominal(batch)
    return Rehearsed(nominal, {}, (total(nominal.values()),), (NOTHING,))


@pytest.mark.parametrize("batch", [2, 4, 5])
@pytest.mark.parametrize("unit", ["MAC", "FLOP"])
def test_an_impossible_compute_budget_says_the_smallest_possible_which_works(unit: str, batch: int) -> None:
    info, known = streams.info("digits"), built("vanilla")
    with pytest.raises(BudgetedError, match="the smallest possible budget is") as refused:
        iterations_within(of_steps_alone(known, batch), parse_compute(f"1{unit}"), 100)
    smallest = parse_compute(str(refused.value).split()[-1])
    assert iterations_within(of_steps_alone(known, batch), smallest, 100) == pytest.approx(0.01)
    learner = Learner(
        models.build("cnn8", classes=1, input_shape=info.input_shape),
        METHODS["vanilla"],
        known.data,
        slots=20,
        iterations=0.0,
        budget=Budget(smallest),
        settings=Settings(LearnerSettings(batch_size=batch)),
    )
    image = torch.zeros(info.input_shape, dtype=torch.uint8)
    for _ in range(batch):
        learner.learn(image, 0)
    learner.iterations = 1.0
    learner.learn(image, 0)
    assert learner.steps == 1  # one full step is really taken


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"samples": -5}, "samples|limit"),
        ({"iterations": -1.0}, "iterations"),
        ({"iterations": float("nan")}, "iterations"),
        ({"iterations": float("inf")}, "iterations"),
        ({"memory": "1kB"}, "smallest possible budget"),
        ({"compute": "1MAC"}, "smallest possible budget"),
        ({"iterations": None}, "give --iterations or --compute"),
    ],
)
def test_senseless_plans_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(BudgetedError, match=says) as refused:
        plan("vanilla", "digits", "cnn8", **more)
    assert "\n" not in str(refused.value)
