"""Bytes never exceed their budget, whatever the method, and are those of the tensors that persist."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.state import tensors_of, weights_digest
from budgeted.methods import METHODS
from tests.bright_rows import FACTS, samples
from tests.learner.small import images, make, settings_of, tiny


class Watched(Learner):
    """Looks at its bytes before and after every training step too."""

    def _step(self) -> None:
        self.look()
        super()._step()
        self.look()

    def look(self) -> None:
        assert self.budget.bytes is not None
        assert self.nbytes() <= self.budget.bytes


UNDECLARED = dataclasses.replace(FACTS, classes=None)
SIMILARITIES = {"sar": {"similarity": "class_gradient"}}


def undeclared(name: str, slots: int, budget: int | None, kind: type[Learner] = Learner) -> Learner:
    chosen = dataclasses.replace(settings_of(METHODS[name]), retrieval=SIMILARITIES.get(name, {}))
    return kind(
        tiny(),
        METHODS[name],
        UNDECLARED,
        slots=slots,
        iterations=0.25,
        budget=Budget(None, budget),
        settings=chosen,
        seed=0,
    )


# what they keep for every class is of one size from the start: stored logits (and LiDER over them), withheld samples,
# a row of an auxiliary classifier
DECLARED_ONLY = ("der++", "cama", "x-der", "lider", "bic", "memo")
FREE = [name for name in METHODS if name not in DECLARED_ONLY]


@pytest.mark.parametrize("name", DECLARED_ONLY)
def test_methods_that_keep_something_of_every_class_want_them_declared(name: str) -> None:
    with pytest.raises(BudgetedError, match=r"say how many (there will be|classes)"):
        undeclared(name, 5, None)


@pytest.mark.parametrize("name", FREE)
@settings(max_examples=6)
@given(
    labels=st.lists(st.integers(0, 9), min_size=4, max_size=30),
    spare=st.integers(0, 4000),
    slots=st.sampled_from([3, 1000]),
)
@example(labels=list(range(10)) * 3, spare=1200, slots=1000)
@example(labels=[0] * 12 + [1, 2, 3], spare=150, slots=1000)
def test_bytes_never_exceed_the_budget_while_classes_appear(
    name: str, labels: list[int], spare: int, slots: int
) -> None:
    smallest = undeclared(name, 1, None).nbytes()
    learner = undeclared(name, slots, smallest + spare, Watched)
    assert isinstance(learner, Watched)
    learner.look()
    capacity = learner.memory.capacity or 0
    for image, label in zip(images(len(labels)), labels, strict=True):
        try:
            learner.learn(image, label)
        except BudgetedError as error:
            need = re.search(r"the smallest possible budget is (\d+)B", str(error))
            assert need is not None
            assert int(need[1]) > smallest + spare
            return
        learner.look()
        now = learner.memory.capacity or 0
        assert 1 <= now <= capacity
        if now < capacity:  # no more was given up than it took
            per_slot = learner.memory.nbytes() // now
            assert smallest + spare - learner.nbytes() < per_slot
        capacity = now
        assert len(learner.memory) <= now


@pytest.mark.parametrize("name", FREE)
def test_a_class_that_does_not_fit_leaves_no_more_bytes_than_there_may_be(name: str) -> None:
    """Whoever catches the refusal and goes on still has the learner from before."""
    learner = undeclared(name, 1, undeclared(name, 1, None).nbytes() + 40)
    learned = 0
    for label in range(8):
        classes = list(learner.class_labels)
        try:
            learner.learn(images(1)[0], label)
            learned += 1
        except BudgetedError:
            assert learner.class_labels == classes
        assert learner.nbytes() <= (learner.budget.bytes or 0)
    assert learned < 8


@pytest.mark.parametrize("name", METHODS)
def test_bytes_are_those_of_the_tensors(name: str) -> None:
    """Against the checkpoint, which holds everything that persists."""
    learner = make(name, slots=9)
    for image, label in samples(40):
        learner.learn(image, label)
    saved = {key: tensor.numel() * tensor.element_size() for key, tensor in tensors_of(learner).items()}
    items = learner.nbytes_by_item()
    assert items["parameters"] + items["buffers"] == sum(saved[key] for key in saved if key.startswith("model."))
    stored, capacity = len(learner.memory), learner.memory.capacity or 0
    assert stored == capacity or name == "rm"  # which keeps some of its slots, all of them counted, for newcomers
    columns = sum(saved[key] for key in saved if key.startswith("memory.column."))
    assert items["memory"] * stored == columns * capacity
    numbers = 4 * 8 if "retrieval" in items else 0  # a scale and three counters
    of_retrieval = [key for key in saved if key.startswith("retrieval.") and not key.endswith("plain")]
    assert items.get("retrieval", 0) == sum(saved[key] for key in of_retrieval) + numbers
    assert ("retrieval" in items) == (learner.method.retrieval == "sar")
    waiting = learner.stream_batch * learner.method.choices
    assert (name in ("cram", "vanilla", "al", "sar", "al-sar", "gdumb", "clib")) == (waiting == 0)
    assert items.get("stream batch", 0) == waiting * (64 + 1)
    working = ("plain", "network.numbers", "freezing.plain")  # of another network that the method keeps
    of_method = [key for key in saved if key.startswith("method.") and not key.endswith(working)]
    assert sum(saved[key] for key in of_method if ".optimizer." not in key) <= items.get("method", 0)
    assert ("freezing" in items) == (learner.method.freezing == "adaptive")
    assert learner.nbytes() == sum(items.values())
    moments = sum(saved[key] for key in saved if key.startswith("optimizer.") or ".optimizer." in key)
    assert learner.working_nbytes()["optimizer"] == moments


@pytest.mark.parametrize("name", METHODS)
def test_declared_classes_are_reserved(name: str) -> None:
    learner = make(name)
    before = learner.nbytes()
    for image, label in samples(30):
        learner.learn(image, label)
        assert learner.nbytes() == before


@pytest.mark.parametrize("name", METHODS)
def test_an_impossible_byte_budget_says_the_smallest_possible_which_works(name: str) -> None:
    with pytest.raises(BudgetedError, match="the smallest possible budget is") as refused:
        make(name, budget=Budget(None, 1000))
    smallest = int(str(refused.value).split()[-1].removesuffix("B"))
    with pytest.raises(BudgetedError, match="the smallest possible budget is"):
        make(name, budget=Budget(None, smallest - 1))
    learner = make(name, budget=Budget(None, smallest))
    assert learner.memory.capacity == 1
    for image, label in samples(8):
        learner.learn(image, label)
        assert learner.nbytes() == smallest


@pytest.mark.parametrize("name", METHODS)
def test_slots_follow_from_bytes(name: str) -> None:
    """As many as fit, and not one more: against a learner that was told the number."""
    budget = make(name, tiny(), slots=14).nbytes()
    for spare, slots in ((0, 14), (-1, 13), (40, 14)):
        learner = make(name, tiny(), slots=None, budget=Budget(None, budget + spare))
        assert learner.memory.capacity == slots
        assert learner.nbytes() == make(name, tiny(), slots=slots).nbytes() <= budget + spare
    for image, label in samples(20):
        learner.learn(image, label)
        assert learner.nbytes() <= budget + 40
    assert 0 < len(learner.memory) <= 14
    with pytest.raises(BudgetedError, match="the smallest possible budget is"):
        make(name, tiny(), slots=None, budget=Budget(None, make(name, tiny(), slots=1).nbytes() - 1))


def test_slots_that_followed_from_bytes_are_saved_and_loaded(tmp_path: Path) -> None:
    budget = undeclared("sar", 30, None).nbytes()
    settings_ = dataclasses.replace(settings_of(METHODS["sar"]), retrieval=SIMILARITIES["sar"])
    learner = make("sar", tiny(), UNDECLARED, slots=None, budget=Budget(None, budget), settings=settings_)
    assert learner.memory.capacity == 30
    for image, label in samples(40):
        learner.learn(image, label)
    given_up = learner.memory.capacity or 0
    assert given_up < 30  # for the rows of four classes, and their gradients
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    assert (again.memory.capacity, len(again.memory)) == (given_up, len(learner.memory))
    for image, label in samples(12, seed=3):
        learner.learn(image, label + 2)
        again.learn(image, label + 2)
    assert again.memory.capacity == learner.memory.capacity
    assert again.nbytes_by_item() == learner.nbytes_by_item()
    assert weights_digest(again) == weights_digest(learner)
