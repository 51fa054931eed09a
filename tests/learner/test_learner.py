"""What holds for a learner whatever its method: the ledger, the bytes, the seed, the head, predictions, the budget."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from budgeted import models
from budgeted.audit import ExecutedOnData
from budgeted.budget import Budget, Compute, Rule, total
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner import DataFacts, Learner, LearnerSettings, Settings
from budgeted.learner.foreseen import per_step
from budgeted.learner.generators import NAMES, Generators
from budgeted.learner.head import grow
from budgeted.learner.state import numbers_of, tensors_of, weights_digest
from budgeted.methods import METHODS, Method
from budgeted.replay import SARSettings
from tests.nets import seeded

SHAPE = (1, 8, 8)
FACTS = DataFacts(SHAPE, (0.3,), (0.37,), classes=4)
# averages that follow soon, so that a short run freezes
EAGER = {"ema": 0.3, "ema_start": "first"}


def cnn8(seed: int = 0) -> nn.Module:
    return models.build("cnn8", classes=1, input_shape=SHAPE, seed=seed)


class Tiny(nn.Module):
    """Two convolutions and a head: hundreds of bytes, so that a slot or a class is not lost among the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(images)).mean((2, 3)))
        return logits


def tiny() -> nn.Module:
    return seeded(Tiny)


def settings_of(method: Method, batch_size: int = 4, **learner: Any) -> Settings:
    return Settings(
        LearnerSettings(batch_size=batch_size, learning_rate=1e-2, **learner),
        freezing=EAGER if method.freezing == "adaptive" else {},
    )


def make(method: str | Method, model: nn.Module | None = None, facts: DataFacts = FACTS, **more: Any) -> Learner:
    chosen = METHODS[method] if isinstance(method, str) else method
    given = {"slots": 20, "seed": 0, "settings": settings_of(chosen), **more}
    return Learner(model or cnn8(), chosen, facts, **given)


def samples(count: int, classes: int = 4, seed: int = 0) -> Iterator[tuple[Tensor, int]]:
    """Two bright rows say the class, which is soon learned; the rest is noise, so every image is another."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(count):
        label = (i // 3) % min(classes, 1 + i // 6)
        image = torch.randint(0, 60, SHAPE, generator=generator, dtype=torch.uint8)
        image[:, 2 * label : 2 * label + 2] += 180
        yield image, label


def images(count: int) -> Tensor:
    return torch.stack([image for image, _ in samples(count, seed=9)])


# -- the ledger is what was executed ------------------------------------------------------------------------------


def longest_wait(learner: Learner) -> int:
    """Arrivals after which every iteration due has been run."""
    if not learner.technique.trains:
        return 10  # until the next evaluation of the test (GDumb)
    waiting = max(1, learner.stream_batch * learner.technique.choices)
    withheld = (
        1 if learner.method.name == "bic" else 0
    )  # every tenth sample of a class: the next one runs its iterations
    return waiting + withheld


MIXTURES = {
    **METHODS,
    "er with everything": METHODS["er"].with_parts(retrieval="sar", freezing="adaptive"),
    "vanilla, constant, class-balanced": METHODS["vanilla"].with_parts(freezing="constant", retrieval="class-balanced"),
    "sar, random": METHODS["sar"].with_parts(freezing="random"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_whole_run_charges_what_it_executes(name: str) -> None:
    """From the first sample on: growing batches, growing head, frozen and refreshed steps."""
    learner = make(MIXTURES[name], slots=12, settings=settings_of(MIXTURES[name], batch_size=6))
    with ExecutedOnData() as executed:
        for arrived, (image, label) in enumerate(samples(30), 1):
            executed_before, charged_before, steps = executed.total, learner.ledger.spent.real, learner.steps
            learner.learn(image, label)
            if arrived % 10 == 0:
                learner.end_task()
                learner.before_prediction()
            ran, charged = executed.total - executed_before, learner.ledger.spent.real - charged_before
            if steps > 0:  # in the first step the closed form is checked against autograd, once
                assert charged == pytest.approx(ran, rel=0.01)
            # an iteration is run or still due, at the latest until the next batch of the stream or the next evaluation
            assert learner.steps + learner.due == arrived
            assert learner.due < (longest_wait(learner) if arrived > 1 else 2)
    assert learner.ledger.steps == learner.steps
    assert learner.ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    if learner.method.freezing != "none":
        assert learner.mean_frozen_share > 0


def test_the_ledger_is_the_sum_of_its_steps() -> None:
    learner = make("al-sar")
    steps = []
    for image, label in samples(20):
        before = learner.steps
        learner.learn(image, label)
        if learner.steps == before + 1:
            assert learner.last is not None
            steps.append(total(learner.last.costs.values()))
        else:
            steps.append(learner.ledger.spent - total(steps))  # none for the first sample, two for the second
    assert total(steps) == learner.ledger.spent
    assert learner.ledger.steps == learner.steps == len(steps) == 20


# -- same seed, same run ------------------------------------------------------------------------------------------


@cache
def digest_of(name: str, seed: int, repetition: int) -> str:
    state = torch.random.get_rng_state()
    torch.manual_seed(repetition)  # what others do to the global generators must not matter
    try:
        learner = make(name, tiny(), seed=seed)
        for arrived, (image, label) in enumerate(samples(48), 1):
            learner.learn(image, label)
            if arrived % 12 == 0:
                learner.end_task()
        learner.before_prediction()
        return weights_digest(learner)
    finally:
        torch.random.set_rng_state(state)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_weights(name: str) -> None:
    assert digest_of(name, 1, 0) == digest_of(name, 1, 1)
    assert digest_of(name, 1, 0) != digest_of(name, 2, 0)


def test_methods_differ() -> None:
    assert len({digest_of(name, 1, 0) for name in METHODS}) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_global_generators_are_left_alone(name: str) -> None:
    # the legacy state is what a library that calls numpy.random.seed shares with everyone
    legacy = np.random.get_state()  # noqa: NPY002
    assert isinstance(legacy, tuple)
    model = tiny()
    torch_before, numpy_before = torch.random.get_rng_state(), legacy[1].copy()
    learner = make(name, model)
    for image, label in samples(12):
        learner.learn(image, label)
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    after = np.random.get_state()  # noqa: NPY002
    assert isinstance(after, tuple)
    assert np.array_equal(after[1], numpy_before)


def test_generators_are_independent_and_saved_exactly() -> None:
    generators, untouched = Generators(5), Generators(5)
    generators["retrieval"].random(100)
    for name in NAMES:
        same = generators[name].random() == untouched[name].random()
        assert same == (name != "retrieval")
    assert len({Generators(5)[name].random() for name in NAMES}) == len(NAMES)
    assert Generators(5)["head"].random() != Generators(6)["head"].random()
    saved = json.loads(json.dumps(generators.state()))
    other = Generators(0)
    other.load_state(saved)
    for name in NAMES:
        assert np.array_equal(other[name].random(7), generators[name].random(7))


def test_what_one_part_draws_moves_no_other() -> None:
    """A run that draws more for its augmentation stores and replays the same samples."""
    from budgeted.learner import Augmentation

    runs = []
    for ops in (0, 2):
        chosen = dataclasses.replace(settings_of(METHODS["vanilla"]), augmentation=Augmentation(randaugment_ops=ops))
        learner = make("vanilla", tiny(), slots=5, settings=chosen)
        for image, label in samples(24):
            learner.learn(image, label)
        runs.append(learner)
    first, second = (run.generators.state() for run in runs)
    assert {name for name in NAMES if first[name] != second[name]} == {"augmentation"}
    assert torch.equal(*(run.memory.gather(np.arange(5)).samples for run in runs))


# -- the growing head ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_growing_keeps_old_rows_and_what_the_optimizer_knows(kind: str, bias: bool) -> None:
    head = nn.Linear(6, 2, bias=bias)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(head.parameters(), 0.1) if kind == "adam" else torch.optim.SGD(head.parameters(), 0.1, 0.9)
    )
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        optimizer.zero_grad()
        head(inputs).square().sum().backward()
        optimizer.step()
    logits = head(inputs).detach()
    before = [
        (parameter.detach().clone(), {key: torch.as_tensor(value) for key, value in optimizer.state[parameter].items()})
        for parameter in head.parameters()
    ]
    grow(head, 5, optimizer, np.random.default_rng(0))
    assert head.out_features == 5
    torch.testing.assert_close(head(inputs)[:, :2], logits)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in head.parameters()]
    assert len(optimizer.state) == len(before)
    for parameter, (old, moments) in zip(head.parameters(), before, strict=True):
        assert torch.equal(parameter[:2], old)
        assert parameter[2:].detach().abs().max() <= 6**-0.5
        assert parameter[2:].detach().abs().min() > 0
        assert set(optimizer.state[parameter]) == set(moments)
        for key, moment in moments.items():
            kept = torch.as_tensor(optimizer.state[parameter][key])
            if moment.shape == old.shape:
                assert torch.equal(kept[:2], moment)
                assert not kept[2:].any()
            else:
                assert torch.equal(kept, moment)
    grow(head, 3, optimizer, np.random.default_rng(0))  # never back
    assert head.out_features == 5


def test_the_head_grows_alike_under_every_method() -> None:
    heads = []
    for name in METHODS:
        learner = make(name, tiny(), iterations=0.0)
        for image, label in samples(30):
            learner.learn(image, label)
        assert learner.class_labels == [0, 1, 2, 3]
        heads.append(learner.head.weight.detach())
    assert all(torch.equal(head, heads[0]) for head in heads)


@pytest.mark.parametrize("name", METHODS)
def test_a_class_that_appears_late_moves_nothing_learned(name: str) -> None:
    learner = make(name, tiny(), iterations=1.0)
    for image, label in samples(10, classes=2):
        learner.learn(image, label)
    learner.before_prediction()
    weight, state = learner.head.weight.detach().clone(), dict(learner.optimizer.state[learner.head.weight])
    assert state or name == "gdumb"  # which starts every training with an optimizer that remembers nothing
    learner.iterations, learner._due = 0.0, 0
    learner.learn(images(1)[0], 77)
    assert learner.class_labels[-1] == 77
    assert learner.rows_of([77, 5]) == [2, -1]
    assert torch.equal(learner.head.weight[:-1], weight)
    for key in ("exp_avg", "exp_avg_sq") if state else ():
        assert torch.equal(learner.optimizer.state[learner.head.weight][key][:-1], state[key])
        assert not learner.optimizer.state[learner.head.weight][key][-1].any()
    assert set(learner.predict(images(8)).tolist()) <= {0, 1, 77}


# -- predictions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_predicting_while_learning_changes_nothing(name: str) -> None:
    quiet, asked = make(name, tiny()), make(name, tiny())
    for image, label in samples(20):
        quiet.learn(image, label)
        asked.learn(image, label)
        asked.predict(images(3))
        assert asked.model.training == quiet.model.training
    assert json.dumps(numbers_of(quiet)) == json.dumps(numbers_of(asked))
    first, second = tensors_of(quiet), tensors_of(asked)  # batch norm statistics, moments and memory among them
    assert first.keys() == second.keys()
    # a logit or a loss that a slot does not have yet is NaN
    assert [key for key in first if not torch.allclose(first[key], second[key], rtol=0, atol=0, equal_nan=True)] == []


def test_predictions_are_labels_and_do_not_depend_on_the_batch() -> None:
    learner = make("vanilla")
    for image, label in samples(24):
        learner.learn(image, label + 100)
    asked = images(10)
    together = learner.predict(asked)
    assert set(together.tolist()) <= {100, 101, 102, 103}
    assert together.tolist() == [int(learner.predict(image[None])) for image in asked]
    torch.testing.assert_close(learner.logits(asked, batch=3), learner.logits(asked))


def test_bad_samples_are_refused_and_leave_nothing_behind() -> None:
    learner = make("al-sar")
    good = images(1)[0]
    with pytest.raises(BudgetedError, match="call learn"):
        learner.predict(good[None])
    for bad in (good.float(), good[0], torch.zeros(3, 8, 8, dtype=torch.uint8), good.to(torch.int64)):
        with pytest.raises(BudgetedError, match=r"a sample must be uint8 of shape 1x8x8, got \w+ of shape"):
            learner.learn(bad, 0)
    assert (learner.arrived, learner.class_labels, len(learner.memory)) == (0, [], 0)
    learner.learn(good, 0)
    with pytest.raises(BudgetedError, match="a sample must be uint8"):
        learner.predict(good)  # one image without a batch
    with pytest.raises(BudgetedError, match="a sample must be uint8"):
        learner.predict(good[None].float())


def test_predicting_nothing_is_no_crash() -> None:
    learner = make("vanilla", tiny())
    learner.learn(images(1)[0], 3)
    assert learner.predict(images(1)[:0]).shape == (0,)


# -- bytes --------------------------------------------------------------------------------------------------------


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
SIMILARITIES = {"al-sar": SARSettings(), "sar": SARSettings(similarity="class_gradient")}


def undeclared(name: str, slots: int, budget: int | None, kind: type[Learner] = Learner) -> Learner:
    chosen = dataclasses.replace(settings_of(METHODS[name]), retrieval=SIMILARITIES.get(name, SARSettings()))
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


# what they keep for every class is of one size from the start: stored logits (and LiDER over them), withheld samples
DECLARED_ONLY = ("der++", "cama", "lider", "bic")
FREE = [name for name in METHODS if name not in DECLARED_ONLY]


@pytest.mark.parametrize("name", DECLARED_ONLY)
def test_methods_that_keep_something_of_every_class_want_them_declared(name: str) -> None:
    with pytest.raises(BudgetedError, match=r"(declare|say) how many classes"):
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
    kept = {"retrieval.similarity.matrix", "retrieval.class_term", "retrieval.known", "retrieval.frequency.of_class"}
    assert items.get("retrieval", 0) == sum(saved[key] for key in kept & saved.keys())
    assert ("retrieval" in items) == (learner.method.retrieval == "sar")
    waiting = learner.stream_batch * learner.technique.choices
    assert (name in ("vanilla", "al", "sar", "al-sar", "gdumb", "clib")) == (waiting == 0)
    assert items.get("stream batch", 0) == waiting * (64 + 1)
    # the technique's tensors, two counters aside; BiC has room for a teacher before there is one
    assert sum(saved[key] for key in saved if key.startswith("technique.")) <= items.get("technique", 0) + 16
    assert ("freezing" in items) == (learner.method.freezing == "adaptive")
    assert learner.nbytes() == sum(items.values())
    moments = sum(saved[key] for key in saved if key.startswith("optimizer."))
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


def test_a_byte_budget_holds_without_a_number_of_slots() -> None:
    """The constructor says that bytes are never exceeded and that no slots means storing everything."""
    budget = make("vanilla", tiny(), slots=5).nbytes()
    try:
        learner = make("vanilla", tiny(), slots=None, budget=Budget(None, budget))
    except BudgetedError:
        return  # refusing the pair is as good
    for image, label in samples(12):
        learner.learn(image, label)
        assert learner.nbytes() <= budget


# -- compute ------------------------------------------------------------------------------------------------------


def nominal(learner: Learner, rule: Rule) -> int:
    return total(per_step(learner, learner.settings.learner.batch_size).values()).under(rule)


SPENDERS = {
    **METHODS,
    "vanilla, mir": METHODS["vanilla"].with_parts(retrieval="mir"),
    "vanilla, aser": METHODS["vanilla"].with_parts(retrieval="aser"),
    "er, egeria": METHODS["er"].with_parts(freezing="egeria"),
    "er, ptlf": METHODS["er"].with_parts(freezing="ptlf"),
}
LENGTH = 48


def spend(learner: Learner) -> tuple[list[int], list[int]]:
    """Learn a stream with its tasks and evaluations: what each sample cost under both rules."""
    paper, real = [], []
    for arrived, (image, label) in enumerate(samples(LENGTH), 1):
        before = learner.ledger.spent
        learner.learn(image, label)
        if arrived % 6 == 0:
            learner.before_prediction()
        if arrived % 12 == 0 and learner.method.boundaries:
            learner.end_task()
        paper.append((learner.ledger.spent - before).paper)
        real.append((learner.ledger.spent - before).real)
        if learner.budget.compute is not None:
            assert (learner.ledger.left or 0) >= 0
    return paper, real


def limited(name: str, amount: int | None, rule: Rule) -> Learner:
    budget = None if amount is None else Budget(Compute(amount, rule))
    return make(SPENDERS[name], tiny(), slots=16, budget=budget)


@cache
def unlimited_costs(name: str) -> dict[Rule, list[int]]:
    paper, real = spend(limited(name, None, "real"))
    return {"paper": paper, "real": real}


@pytest.mark.parametrize("rule", ["paper", "real"])
@pytest.mark.parametrize("name", SPENDERS)
def test_when_compute_is_spent_it_goes_on_storing_and_predicting(
    name: str, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    """Against the same learner without a budget: two thirds of what that one spends are spent, and no more."""
    costs = unlimited_costs(name)[rule]
    amount = sum(costs[: 2 * LENGTH // 3]) + max(costs) // 3
    learner = limited(name, amount, rule)
    with caplog.at_level(logging.WARNING, logger="budgeted"):
        spend(learner)
    spent = learner.ledger.spent.under(rule)
    assert spent <= amount
    assert learner.spent_up
    # less is left than the next step, or GDumb's next training, would have cost
    dearest = max(costs) if not learner.technique.trains else dearest_step(learner, rule)
    assert amount - spent <= 1.02 * dearest
    assert [record for record in caplog.records if "is spent after" in record.message] == caplog.records
    assert len(caplog.records) == 1
    assert learner.arrived == LENGTH
    weights = weights_digest(learner)
    stored = learner.memory.gather(np.arange(len(learner.memory))).samples.clone()
    for image, label in samples(6, seed=5):
        learner.learn(image, label)
    learner.before_prediction()
    if learner.method.selection != "greedy-quota":  # of which a full memory takes a new class alone
        assert not torch.equal(stored[: len(learner.memory)], learner.memory.gather(np.arange(len(stored))).samples)
    assert set(learner.predict(images(5)).tolist()) <= {0, 1, 2, 3}
    assert weights_digest(learner) == weights


def dearest_step(learner: Learner, rule: Rule) -> int:
    """A full step of this learner as it now is, all of its extras included: what it must be able to pay."""
    batch, new = learner.settings.learner.batch_size, learner.stream_batch
    parts = learner.technique.most(new, batch) + learner.retrieval.most(learner, new, batch)
    return (learner.freezing.most(learner.example(batch)) + parts).under(rule)


class Foreseeing(Learner):
    """Compares what every step costs with what was said that it would cost at most."""

    def _step(self) -> None:
        batch, new = self.settings.learner.batch_size, min(len(self._waiting), self.stream_batch)
        batch = new + min(batch - new, len(self.memory))
        most = self.freezing.most(self.example(batch)) + self.technique.most(new, batch)
        most += self.retrieval.most(self, new, batch)
        before = self.ledger.spent
        super()._step()
        cost = self.ledger.spent - before
        assert cost.paper <= most.paper
        assert cost.real <= 1.01 * most.real  # a similarity and a draw, which are measured, not foreseen
        if self.method.freezing == "none":
            # how many samples OCS and ASER look at is a matter of the draw; BiC's teacher has fewer rows in its head
            drawn = self.method.name in ("ocs", "aser", "bic") or self.method.retrieval == "aser"
            assert most.paper <= 1.3 * cost.paper if drawn else most.paper == cost.paper
            assert most.real <= (1.3 if drawn else 1.01) * cost.real


@pytest.mark.parametrize("name", SPENDERS)
def test_no_step_costs_more_than_was_foreseen_and_none_much_less(name: str) -> None:
    chosen = SPENDERS[name]
    learner = Foreseeing(tiny(), chosen, FACTS, slots=16, settings=settings_of(chosen, batch_size=6), seed=0)
    spend(learner)
    assert learner.steps > 40


SAVING = {
    "constant": METHODS["vanilla"].with_parts(freezing="constant"),
    "adaptive": METHODS["al-sar"],
    "er, constant": METHODS["er"].with_parts(freezing="constant"),
}


@pytest.mark.parametrize(
    ("name", "rule"), [("constant", "paper"), ("constant", "real"), ("adaptive", "real"), ("er, constant", "real")]
)
def test_savings_are_spent_evenly_over_the_stream(name: str, rule: Rule) -> None:
    count = 240
    method = SAVING[name]
    budget = Budget(Compute(count * nominal(make(method, savers_model(name)), rule), rule))
    facts = dataclasses.replace(FACTS, samples=count)
    learner = make(method, savers_model(name), facts=facts, budget=budget, spend_savings=True)
    steps = []
    for image, label in samples(count):
        learner.learn(image, label)
        steps.append(learner.steps)
    learner.flush()
    steps[-1] = learner.steps
    assert budget.compute is not None
    assert 0.99 <= learner.ledger.spent.under(rule) / budget.compute.amount <= 1
    tenths = np.diff([0, *steps[count // 10 - 1 :: count // 10]])
    assert len(tenths) == 10
    assert tenths.min() > count // 10  # one a sample is the plan; more are extra


def savers_model(name: str) -> nn.Module:
    return cnn8() if name == "adaptive" else tiny()


def test_without_spending_savings_stay_unspent() -> None:
    count = 60
    method = SAVING["constant"]
    budget = Budget(Compute(count * nominal(make(method, tiny()), "real"), "real"))
    learner = make(method, tiny(), facts=dataclasses.replace(FACTS, samples=count), budget=budget)
    for image, label in samples(count):
        learner.learn(image, label)
    assert learner.steps == count
    assert learner.ledger.left is not None
    assert learner.ledger.left > 0.2 * count * nominal(learner, "real")


def test_savings_need_a_budget_and_a_length() -> None:
    with pytest.raises(BudgetedError, match="give both the budget and samples"):
        make("al-sar", spend_savings=True)
    with pytest.raises(BudgetedError, match="give both the budget and samples"):
        make("al-sar", spend_savings=True, budget=Budget(Compute(10**12, "real")))


@pytest.mark.parametrize("iterations", [0.1, 0.25, 0.3, 1.5])
def test_fractions_of_an_iteration_are_saved_up(iterations: float) -> None:
    learner = make("vanilla", tiny(), iterations=iterations)
    for arrived, (image, label) in enumerate(samples(40), 1):
        learner.learn(image, label)
        assert abs(learner.steps - iterations * arrived) <= 1 or arrived == 1
    assert learner.steps == round(40 * iterations)  # as a plan says


def test_senseless_numbers_are_refused() -> None:
    with pytest.raises(BudgetedError, match="must not be negative"):
        make("vanilla", tiny(), iterations=-1.0)
    with pytest.raises(BudgetedError, match="at least 2"):
        make("vanilla", tiny(), settings=settings_of(METHODS["vanilla"], batch_size=1))
    for iterations in (float("nan"), float("inf")):
        with pytest.raises(BudgetedError):
            make("vanilla", tiny(), facts=dataclasses.replace(FACTS, samples=10), iterations=iterations)


def test_too_few_slots_to_train_is_refused_or_trains() -> None:
    """One slot never fills a batch of two; a run that silently never trains helps nobody."""
    try:
        learner = make("vanilla", tiny(), slots=1)
    except BudgetedError:
        return
    for image, label in samples(12):
        learner.learn(image, label)
    assert learner.steps > 0


# -- ER -----------------------------------------------------------------------------------------------------------


class Seen:
    """An augmenter that notes the raw batches it is given."""

    def __init__(self, learner: Learner) -> None:
        self.augmenter = learner.augmenter
        self.normalise = learner.augmenter.normalise
        self.learner = learner
        self.batches: list[Tensor] = []
        self.stored: list[int] = []

    def __call__(self, batch: Tensor, rng: np.random.Generator) -> Tensor:
        self.batches.append(batch.clone())
        self.stored.append(len(self.learner.memory))
        return self.augmenter(batch, rng)


def test_er_trains_on_eight_arrived_and_eight_drawn() -> None:
    learner = make("er", slots=40, settings=settings_of(METHODS["er"], batch_size=16))
    seen = Seen(learner)
    learner.augmenter = seen  # type: ignore[assignment]
    stream = [*samples(27)]
    for arrived, (image, label) in enumerate(stream, 1):
        learner.learn(image, label)
        assert learner.steps == arrived // 8 * 8  # all iterations due, when the eighth is there
        assert len(learner.memory) == arrived // 8 * 8
    for group in range(3):
        batches = seen.batches[8 * group : 8 * (group + 1)]
        assert seen.stored[8 * group : 8 * (group + 1)] == [8 * group] * 8  # they enter the memory after the steps
        arrived_now = torch.stack([image for image, _ in stream[8 * group : 8 * (group + 1)]])
        earlier = {image.numpy().tobytes() for image, _ in stream[: 8 * group]}
        for batch in batches:
            assert torch.equal(batch[:8], arrived_now)  # the same eight in every iteration
            drawn = [image.numpy().tobytes() for image in batch[8:]]
            assert len(set(drawn)) == len(drawn) == min(8, 8 * group)
            assert set(drawn) <= earlier
        if group == 2:
            assert len({batch[8:].numpy().tobytes() for batch in batches}) > 1  # drawn anew for each
    learner.flush()  # what waits at the end of a stream is not lost
    assert (learner.steps, len(learner.memory)) == (27, 27)
    assert torch.equal(seen.batches[-1][:3], torch.stack([image for image, _ in stream[24:]]))
    learner.flush()
    assert learner.steps == 27


def test_er_waits_for_half_of_any_batch() -> None:
    learner = make("er", tiny(), settings=settings_of(METHODS["er"], batch_size=6))
    assert learner.stream_batch == 3
    for arrived, (image, label) in enumerate(samples(7), 1):
        learner.learn(image, label)
        assert learner.steps == arrived // 3 * 3


# -- lower precision ----------------------------------------------------------------------------------------------


class Observed:
    """Notes what the retrieval is told of per-sample gradients."""

    def __init__(self, learner: Learner) -> None:
        self.rows: list[Tensor] = []
        self.observe = learner.retrieval.observe
        learner.retrieval.observe = self  # type: ignore[method-assign]

    def __call__(self, values: Tensor, present: Tensor, labels: Tensor) -> None:
        self.rows.append(values.clone())
        self.observe(values, present, labels)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_uses_unscaled_gradients(precision: str) -> None:
    learners, told = [], []
    for kind in ("none", precision):
        chosen = Settings(
            LearnerSettings(batch_size=8, autocast=kind, sampled_fraction=0.01),  # type: ignore[arg-type]
            freezing={"ema": 1.0, "refresh_every": 1},
        )
        learner = make("al-sar", iterations=0.0, settings=chosen)
        told.append(Observed(learner))
        for image, label in samples(12):
            learner.learn(image, label)
        learner._step()
        learners.append(learner)
    low = learners[1]
    assert (low.scaler is not None) == (precision == "float16")
    assert all(parameter.dtype == torch.float32 for parameter in low.model.parameters())
    # both steps start from the same weights and batch: rounding differs, but not a scale of 2^16
    full_rows, low_rows = told[0].rows[0], told[1].rows[0]
    assert float((low_rows - full_rows).norm() / full_rows.norm()) < 0.3
    traces = [np.array(learner.freezing.policy.fisher) for learner in learners]  # type: ignore[attr-defined]
    assert np.allclose(traces[1], traces[0], rtol=0.2)
    gradients = [learner.head.weight.grad for learner in learners]
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 0.05
    low.iterations = 1.0
    for image, label in samples(12, seed=4):
        low.learn(image, label)
    assert low.steps == 13
    assert low.last is not None
    assert np.isfinite(low.last.loss)


def test_an_overflow_of_float16_spoils_no_average() -> None:
    """A scale grows until gradients overflow: the scaler leaves such a step out, and so must whoever keeps averages."""
    learner = make("al-sar", settings=settings_of(METHODS["al-sar"], autocast="float16"))
    learner.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for image, label in samples(40):
        learner.learn(image, label)
    assert learner.scaler.get_scale() < 2.0**40
    assert all(bool(torch.isfinite(parameter).all()) for parameter in learner.model.parameters())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in learner.retrieval.state().values())
    assert np.isfinite(learner.freezing.policy.fisher).all()  # type: ignore[attr-defined]


# -- parts --------------------------------------------------------------------------------------------------------


def test_a_method_keeps_the_parts_that_define_it() -> None:
    for name, part, other in (
        ("al-sar", "freezing", "constant"),
        ("al-sar", "retrieval", "uniform"),
        ("al", "freezing", "none"),
        ("sar", "retrieval", "uniform"),
    ):
        with pytest.raises(BudgetedError, match=f"method '{name}' defines its own {part} .*leave --{part} out"):
            METHODS[name].with_parts(**{part: other})
    assert METHODS["al-sar"].with_parts(freezing="adaptive", retrieval="sar", selection=None) == METHODS["al-sar"]
    assert METHODS["al"].with_parts(retrieval="sar").retrieval == "sar"
    mixed = METHODS["er"].with_parts(freezing="linear", retrieval="class-balanced", selection="greedy-balanced")
    assert (mixed.freezing, mixed.retrieval, mixed.selection) == ("linear", "class-balanced", "greedy-balanced")
    assert METHODS["er"].freezing == "none"  # a new method, not a changed one


@pytest.mark.parametrize("part", ["freezing", "retrieval", "selection"])
def test_unknown_parts_are_named(part: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown .* 'adaptve'"):
        make(METHODS["vanilla"].with_parts(**{part: "adaptve"}), tiny())


@pytest.mark.parametrize("freezing", ["none", "constant", "linear", "random", "adaptive"])
@pytest.mark.parametrize("retrieval", ["uniform", "class-balanced", "sar"])
@pytest.mark.parametrize("name", ["vanilla", "er"])
def test_every_method_takes_every_part_that_it_does_not_define(name: str, retrieval: str, freezing: str) -> None:
    method = METHODS[name].with_parts(retrieval=retrieval, freezing=freezing)
    learner = make(method, tiny(), facts=dataclasses.replace(FACTS, samples=8))
    for image, label in samples(8):
        learner.learn(image, label)
    assert learner.steps == 8
    assert learner.ledger.spent_on["retrieval"].real > 0


def test_another_loss_is_a_method_of_its_own() -> None:
    def squared(logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - nn.functional.one_hot(labels, logits.shape[1])).square().mean()

    learner = make(dataclasses.replace(METHODS["al"], name="mine", loss=squared), tiny())
    for image, label in samples(12):
        learner.learn(image, label)
    assert learner.last is not None
    assert 0 < learner.last.loss < 2
    assert learner.steps == 12


def test_a_closed_learner_leaves_the_model_without_hooks() -> None:
    model = cnn8()
    learner = make("al-sar", model)
    for image, label in samples(6):
        learner.learn(image, label)
    learner.close()
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    assert hooks == []
