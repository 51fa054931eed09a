"""A learner at its edges: a budget below one step, other threads, bad labels, evaluation mode, closed and copied."""

from __future__ import annotations

import copy
import dataclasses
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS, Step
from budgeted.methods.ewc import ElasticWeightConsolidation
from budgeted.methods.vanilla import Vanilla
from budgeted.replay import Memory, Retrieval
from budgeted.replay.membership import Slots
from tests.bright_rows import FACTS, samples
from tests.learner.small import Tiny, cnn8, images, make, tiny


def feed(learner: Learner, count: int) -> None:
    for image, label in samples(count):
        learner.learn(image, label)


# -- the compute budget --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sar", "al-sar", "der++", "cama", "bic", "clib", "mir", "ewc", "ocs", "vanilla"])
@pytest.mark.parametrize("share", [0.3, 0.98, 1.001, 1.01, 1.5])
def test_no_weight_moves_in_a_step_that_cannot_be_paid(name: str, share: float) -> None:
    """Just below, at and above the price of the first step, where nothing is known of draws and similarity yet."""
    own = Settings(LearnerSettings(batch_size=4, sampled_fraction=0.5))
    free = make(name, tiny(), settings=own)
    mixed = [*samples(24)][::-1]
    for image, label in mixed:
        free.learn(image, label)
        if free.steps:
            break
    first = free.ledger.spent.real / free.steps
    budget = Budget(Compute(int(share * first), "real"))
    learner = make(name, tiny(), settings=own, budget=budget)
    start = {key: tensor.clone() for key, tensor in learner.model.state_dict().items() if "head" not in key}
    for image, label in mixed:
        learner.learn(image, label)
        assert learner.ledger.spent.real <= int(share * first)
    moved = any(
        not torch.equal(start[key], tensor) for key, tensor in learner.model.named_parameters() if "head" not in key
    )
    if learner.steps == 0:
        assert not moved
        assert learner.ledger.spent_on["optimizer"].real == 0
    assert learner.spent_up


class LooksBehind(Vanilla):
    """Looks at the whole memory after every step."""

    def after_step(self, step: Step, logits: Tensor) -> None:
        memory = self.learner.memory
        self.learner.answers("retrieval", memory.gather(np.arange(len(memory))).samples)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.999])
def test_what_is_run_after_a_step_never_costs_what_the_step_itself_does(steps: int, share: float) -> None:
    """The step can be paid, and what follows it by itself as well, but not both: the step is charged, and the last."""
    mixed = [*samples(24)][::-1]
    free, spent = make(LooksBehind, tiny(), iterations=0.5), [0]
    for image, label in mixed:
        free.learn(image, label)
        if free.steps == len(spent):
            spent.append(free.ledger.spent.real)
    own = free.network.most(4).real
    budget = spent[steps] + own + int(share * (spent[steps + 1] - spent[steps] - own))
    learner = make(LooksBehind, tiny(), iterations=0.5, budget=Budget(Compute(budget, "real")))
    for image, label in mixed:
        before, taken = weights_digest(learner), learner.steps
        rows = len(learner.class_labels)
        learner.learn(image, label)
        assert learner.ledger.spent.real <= budget
        if learner.steps == taken and len(learner.class_labels) == rows:
            assert weights_digest(learner) == before  # nothing moves that is not in the ledger
    assert learner.spent_up
    assert learner.steps >= steps


# -- threads -------------------------------------------------------------------------------------------------------


def test_predicting_from_another_thread_disturbs_nothing() -> None:
    quiet, asked = make("al-sar"), make("al-sar")
    feed(quiet, 40)
    done = threading.Event()
    wrong: list[BaseException] = []

    def ask() -> None:
        while not done.is_set():
            try:
                if asked.class_labels:
                    asked.predict(images(6))
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        feed(asked, 40)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert asked.ledger.spent == quiet.ledger.spent
    assert weights_digest(asked) == weights_digest(quiet)


# -- bad input and modes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [2.9, None, 3.0, [1], np.float32(2), torch.tensor(3.0), b"cat"])
def test_what_is_no_whole_number_and_no_word_is_no_label(label: object) -> None:
    learner = make("er")
    image = next(iter(samples(1)))[0]
    with pytest.raises(BudgetedError, match="a label must be a whole number or a word"):
        learner.learn(image, label)
    assert (learner.arrived, learner.class_labels) == (0, [])


def test_a_word_among_numbers_is_refused_and_a_number_among_words() -> None:
    numbers, words = make("er"), make("er")
    image = next(iter(samples(1)))[0]
    numbers.learn(image, 3)
    words.learn(image, "3")
    for learner, label in ((numbers, "3"), (words, 3)):
        with pytest.raises(BudgetedError, match="of the kind of the labels before it"):
            learner.learn(image, label)
        assert (learner.arrived, len(learner.class_labels)) == (1, 1)


@pytest.mark.parametrize("label", [3, np.int64(3), torch.tensor(3)])
def test_whole_numbers_of_every_kind_are_labels(label: int) -> None:
    learner = make("er")
    learner.learn(next(iter(samples(1)))[0], label)
    assert learner.class_labels == [3]


def test_asking_leaves_the_model_in_the_mode_it_was_in() -> None:
    learner = make("vanilla")
    feed(learner, 8)
    assert learner.model.training
    assert learner.logits(torch.empty(0, 1, 8, 8, dtype=torch.uint8)).shape == (0, len(learner.class_labels))
    assert learner.model.training
    with pytest.raises(BudgetedError, match="a sample must be uint8"):
        learner.predict(torch.zeros(2, 1, 8, 8))
    assert learner.model.training


def test_a_closed_learner_says_so_and_still_predicts() -> None:
    learner = make("al-sar")
    feed(learner, 8)
    learner.close()
    with pytest.raises(BudgetedError, match="this learner was closed"):
        feed(learner, 1)
    assert len(learner.predict(images(3))) == 3


def test_a_learner_is_not_copied() -> None:
    learner = make("vanilla")
    for how in (copy.copy, copy.deepcopy):
        with pytest.raises(BudgetedError, match="save it and load it again"):
            how(learner)


@pytest.mark.parametrize("name", ["vanilla", "er", "der++", "ewc", "al"])
def test_a_frozen_backbone_with_a_trained_head_learns(name: str) -> None:
    model = Tiny()
    for parameter in (*model.stem.parameters(), *model.body.parameters()):
        parameter.requires_grad_(False)
    learner = make(name, model)
    before = {key: tensor.clone() for key, tensor in model.named_parameters() if "head" not in key}
    feed(learner, 24)
    assert learner.steps > 0
    assert all(torch.equal(before[key], tensor) for key, tensor in model.named_parameters() if "head" not in key)


# -- parts as objects ----------------------------------------------------------------------------------------------


class LastOnes(Retrieval):
    """The highest slots."""

    def draw(self, memory: Memory, batch_size: int, generator: np.random.Generator) -> Slots:
        return np.arange(max(0, len(memory) - batch_size), len(memory))


def test_a_part_may_be_an_object() -> None:
    learner = make(METHODS["vanilla"](retrieval=LastOnes()))
    feed(learner, 12)
    assert learner.steps == 12
    assert isinstance(learner.retrieval, LastOnes)
    with pytest.raises(BudgetedError, match="is no retrieval: give a name"):
        make(METHODS["vanilla"](retrieval=object()))  # type: ignore[arg-type]
    with pytest.raises(BudgetedError, match="is no method: give a name"):
        Learner(cnn8(), 3, FACTS, slots=4)  # type: ignore[arg-type]


def test_every_learner_has_a_method_of_its_own() -> None:
    given = ElasticWeightConsolidation(strength=7.0)
    one, other = make(given), make(given)
    feed(one, 8)
    assert one.method is not other.method
    assert dataclasses.asdict(given)["strength"] == 7.0
    assert not any(bool(values.any()) for values in other.method.fisher.values())  # type: ignore[attr-defined]
