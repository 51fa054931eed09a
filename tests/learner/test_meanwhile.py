"""The next batch made while a step trains: the same bits as without, used where it may be, undone where it was not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings, state
from budgeted.learner.meanwhile import Meanwhile
from budgeted.methods import METHODS, Step
from budgeted.methods.vanilla import Vanilla
from tests.bright_rows import samples
from tests.learner.small import make, tiny

STREAM = list(samples(60, seed=1))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Threads in which batches were drawn."""
    threads: list[str] = []
    draw = Learner.draw

    def noted(self: Learner) -> Any:
        threads.append(threading.current_thread().name)
        return draw(self)

    monkeypatch.setattr(Learner, "draw", noted)
    return threads


def ahead(threads: Sequence[str]) -> int:
    return sum(name.startswith("meanwhile") for name in threads)


def pairs(stream: Sequence[Any], pauses: int) -> Iterator[tuple[Any, Any]]:
    """Every sample with the one that comes then, but for pauses."""
    for place, sample in enumerate(stream):
        last = place + 1 == len(stream) or (place + 1) % pauses == 0
        yield sample, None if last else stream[place + 1]


def through(learner: Learner, on: bool, stream: Sequence[Any] = STREAM, pauses: int = 13) -> Learner:
    learner.meanwhile.on = on
    for (image, label), then in pairs(stream, pauses):
        learner.learn(image, label, then)
        if then is None:
            learner.before_prediction()
    learner.flush()
    return learner


def same(one: Learner, other: Learner) -> None:
    assert state.weights_digest(one) == state.weights_digest(other)
    numbers, others = state.numbers_of(one), state.numbers_of(other)
    assert numbers == others
    tensors, expected = state.tensors_of(one), state.tensors_of(other)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), expected[name].reshape(-1).view(torch.uint8)), name


@pytest.mark.parametrize("iterations", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("method", ["vanilla", "er", "cram", "al", "al-sar", "mir", "der++", "bic", "clib", "rm"])
def test_same_bits_with_and_without(method: str, iterations: float) -> None:
    kinds = {on: through(make(method, iterations=iterations), on) for on in (True, False)}
    same(kinds[True], kinds[False])


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("vanilla", {"iterations": 0.4}),
        ("vanilla", {"budget": "300kFLOP/sample", "iterations": None}),
        ("vanilla", {"budget": "400kFLOP"}),
        ("er", {"budget": "400kFLOP"}),
        ("cram", {"slots": None, "memory": "6kB"}),
    ],
)
def test_same_bits_in_small_budgets(method: str, more: dict[str, Any], made: list[str]) -> None:
    """Batches that were made and are not run, training that ends, classes that take slots away."""
    given = {"settings": Settings(LearnerSettings(batch_size=4)), **more}
    kinds = {on: through(make(method, tiny(), **given), on) for on in (True, False)}
    assert ahead(made)
    same(kinds[True], kinds[False])


@pytest.mark.parametrize("codec", ["jpeg", "half", "progressive"])
def test_same_bits_and_charges_with_codecs(codec: str, made: list[str]) -> None:
    method = METHODS["vanilla"](codec=codec)
    kinds = {on: through(make(method, slots=None, memory="302kB"), on) for on in (True, False)}
    assert ahead(made)
    same(kinds[True], kinds[False])


def test_nearly_every_batch_is_made_ahead(made: list[str]) -> None:
    learner = through(make("vanilla"), on=True)
    new_classes = len(learner.class_labels)
    assert ahead(made) >= learner.steps - new_classes - len(STREAM) // 13 - 1
    assert len(made) == learner.steps


def test_in_the_steps_on_one_stream_batch_all_but_the_first(made: list[str]) -> None:
    learner = through(make("er"), on=True)
    flushes = -(-len(STREAM) // learner.stream_batch)
    assert ahead(made) == learner.steps - flushes > 0


@pytest.mark.parametrize("method", ["al-sar", "mir", "aser", "der++", "bic", "ocs", "x-der"])
def test_nothing_is_made_ahead_where_a_step_matters(method: str, made: list[str]) -> None:
    through(make(method), on=True)
    assert ahead(made) == 0


def test_a_method_that_looks_at_the_memory_is_left_alone(made: list[str]) -> None:
    class Looks(Vanilla):
        def after_step(self, step: Step, logits: Tensor) -> None:
            assert len(self.learner.memory) <= self.learner.arrived

    through(make(Looks), on=True)
    assert ahead(made) == 0


def test_off_unless_asked_for(made: list[str]) -> None:
    through(make("vanilla"), on=False)
    assert ahead(made) == 0


def test_another_sample_than_announced_is_refused_and_nothing_is_lost() -> None:
    learner, plain = make("vanilla"), make("vanilla")
    learner.meanwhile.on = True
    for (image, label), then in pairs(STREAM[:30], 100):
        learner.learn(image, label, then if then is not None else STREAM[30])
        plain.learn(image, label)
    with pytest.raises(BudgetedError, match="another sample"):
        learner.learn(*STREAM[40])
    for refused in (learner.flush, learner.end_task, learner.before_prediction):
        with pytest.raises(BudgetedError, match="in the memory already"):
            refused()
    with pytest.raises(BudgetedError, match="in the memory already"):
        state.tensors_of(learner)
    assert learner.predict([STREAM[0][0]]) is not None
    for kind in (learner, plain):
        kind.learn(*STREAM[30])
    same(learner, plain)


def test_a_sample_that_will_be_refused_is_refused_when_it_comes() -> None:
    learner, plain = make("vanilla"), make("vanilla")
    learner.meanwhile.on = True
    bad = (torch.zeros(5, 5, dtype=torch.uint8), 0)
    for image, label in STREAM[:20]:
        learner.learn(image, label, bad)
        with pytest.raises(BudgetedError):
            learner.learn(*bad)
        plain.learn(image, label)
    same(learner, plain)


def test_an_error_while_a_batch_is_made_comes_in_its_own_step(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("vanilla")
    learner.meanwhile.on = True
    for (image, label), then in pairs(STREAM[:20], 20):
        learner.learn(image, label, then)
    states = learner.generators.state()
    monkeypatch.setattr(learner.holding, "inputs", _fail_in("meanwhile", learner.holding.inputs))
    learner.learn(*STREAM[20], then=STREAM[21])
    learner.learn(*STREAM[21])  # made again, in the step itself
    assert learner.generators.state()["augmentation"] != states["augmentation"]
    plain = make("vanilla")
    for image, label in STREAM[:22]:
        plain.learn(image, label)
    same(learner, plain)


def _fail_in(thread: str, inputs: Any) -> Any:
    def failing(samples: Any, generator: np.random.Generator | None, new: int) -> Any:
        if threading.current_thread().name.startswith(thread):
            raise OSError("a disk that is gone")
        return inputs(samples, generator, new)

    return failing


def test_an_error_in_the_step_leaves_the_generators_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, plain = make("er", iterations=2.0), make("er", iterations=2.0)
    learner.meanwhile.on = True
    for kind in (learner, plain):
        for image, label in STREAM[:20]:
            kind.learn(image, label)
        failing = iter([False, True])
        forward = kind.network.forward

        def once(inputs: Any, forward: Any = forward, failing: Iterator[bool] = failing) -> Any:
            if next(failing, False):
                raise BudgetedError("it fails")
            return forward(inputs)

        monkeypatch.setattr(kind.network, "forward", once)
        kind.learn(*STREAM[20])
        with pytest.raises(BudgetedError, match="it fails"):
            kind.learn(*STREAM[21])
    assert learner.generators.state() == plain.generators.state()


def test_nothing_runs_between_two_calls() -> None:
    learner = make("vanilla")
    learner.meanwhile.on = True
    for (image, label), then in pairs(STREAM, 13):
        learner.learn(image, label, then)
        assert not learner.meanwhile.busy
    assert isinstance(learner.meanwhile, Meanwhile)
