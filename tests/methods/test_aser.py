"""ASER: Shapley values against enumeration over all subsets, and what is drawn and stored against its definition."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.settings import from_pairs
from budgeted.methods import METHODS, Method
from budgeted.methods.aser import ASER
from budgeted.replay import AdversarialShapley, ShapleySelection
from budgeted.replay.aser import decisions, of_every_class
from budgeted.replay.shapley import shapley_values
from tests.bright_rows import SHAPE, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

COMPOSED: dict[str, Method | type[Method]] = {
    "aser": METHODS["aser"],
    "vanilla": METHODS["vanilla"]().with_parts(retrieval="aser", selection="aser"),
}


def settings(**aser: object) -> Settings:
    chosen = {"per_class": 2, "candidates": 8, **aser}
    in_memory = {} if "score" in aser else chosen
    return Settings(LearnerSettings(batch_size=8, learning_rate=1e-2), selection=in_memory, retrieval=chosen)


def taught(name: str = "aser", count: int = 40, slots: int = 20, model: str = "mlp", **aser: object) -> Learner:
    learner = learner_of(COMPOSED[name], model, settings=settings(**aser), slots=slots)
    feed(learner, 0, count)
    return learner


def features_of(learner: Learner, images: Tensor) -> Tensor:
    return learner.network.features("retrieval", learner.inputs_of(images))


def stream_batch() -> tuple[Tensor, Tensor]:
    arrived = [*samples(80)][-4:]
    return torch.stack([image for image, _ in arrived]), torch.tensor([label for _, label in arrived])


# -- the values ---------------------------------------------------------------------------------------------------


def worth(group: tuple[int, ...], apart: list[float], right: list[bool], neighbours: int) -> float:
    """Share of the K nearest of a group that have the right label."""
    nearest = sorted(group, key=lambda player: apart[player])[:neighbours]
    return sum(right[player] for player in nearest) / neighbours


def by_enumeration(apart: list[float], right: list[bool], neighbours: int) -> list[float]:
    """Shapley's definition: what a player adds to every group of the others, weighted by the group's size."""
    players = range(len(apart))
    values = []
    for player in players:
        others = [other for other in players if other != player]
        value = 0.0
        for size in range(len(others) + 1):
            for group in itertools.combinations(others, size):
                added = worth((*group, player), apart, right, neighbours) - worth(group, apart, right, neighbours)
                value += added / (len(apart) * math.comb(len(others), size))
        values.append(value)
    return values


@pytest.mark.parametrize("neighbours", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("players", [1, 2, 7])
def test_values_are_those_of_an_enumeration_over_all_subsets(players: int, neighbours: int) -> None:
    generator = torch.Generator().manual_seed(players + neighbours)
    features = torch.randn(players, 3, generator=generator, dtype=torch.float64)
    asked = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    labels, asked_labels = torch.arange(players) % 3, torch.arange(4) % 3
    found = shapley_values(features, labels, asked, asked_labels, neighbours)
    for row in range(4):
        apart = [float((features[player] - asked[row]).norm()) for player in range(players)]
        right = [bool(labels[player] == asked_labels[row]) for player in range(players)]
        expected = by_enumeration(apart, right, neighbours)
        assert found[row].tolist() == pytest.approx(expected, abs=1e-12)
        assert sum(expected) == pytest.approx(worth(tuple(range(players)), apart, right, neighbours))  # all is shared


# -- retrieval ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("score", "model"), [("mean", "cnn8"), ("extreme", "mlp")])
def test_draws_the_candidates_with_the_highest_adversarial_score(score: str, model: str) -> None:
    """Among images of noise, whose neighbours are of any class."""
    learner = learner_of(COMPOSED["aser"], model, settings=settings(score=score), slots=20, iterations=0.1)
    noise = torch.randint(0, 256, (28, *SHAPE), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    for number, image in enumerate(noise[:24]):
        learner.learn(image, number % 4)
    incoming = noise[24:], torch.tensor([0, 1, 1, 3])
    retrieval, memory, rng = learner.retrieval, learner.memory, np.random.default_rng(4)
    assert memory.full
    candidates = of_every_class(memory, 2, [], rng)
    others = of_every_class(memory, 2, candidates.tolist(), rng)
    assert sorted(memory.labels[candidates].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {*memory.labels[others].tolist()} >= {0, 1, 2}
    assert not {*candidates.tolist()} & {*others.tolist()}

    stored = memory.gather(np.concatenate([candidates, others]))
    features = features_of(learner, torch.cat([stored.samples, incoming[0]])).double()
    labels = torch.cat([stored.labels, incoming[1]]).tolist()
    values = []
    for asked in range(8, len(labels)):
        apart = [float((features[player] - features[asked]).norm()) for player in range(8)]
        values.append(by_enumeration(apart, [labels[player] == labels[asked] for player in range(8)], 3))
    table = np.array(values)
    cooperative, adversarial = table[: len(others)], table[len(others) :]
    by_mean = cooperative.mean(0) - adversarial.mean(0)
    expected = by_mean if score == "mean" else cooperative.max(0) - adversarial.min(0)

    state = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    training, hooks = learner.model.training, len(learner.head._forward_pre_hooks)
    retrieval.meet(learner, *incoming)
    drawn = retrieval.draw(memory, 4, np.random.default_rng(4))
    places = [candidates.tolist().index(slot) for slot in drawn.tolist()]
    assert sorted(expected[places]) == pytest.approx(sorted(expected)[-4:], abs=1e-6)
    assert [*expected[places]] == pytest.approx(sorted(expected[places], reverse=True), abs=1e-6)
    assert max(expected) > min(expected) + 1e-3
    assert all(torch.equal(state[name], tensor) for name, tensor in learner.model.state_dict().items())
    assert learner.model.training == training
    assert len(learner.head._forward_pre_hooks) == hooks


def test_features_are_what_the_head_reads() -> None:
    learner = taught(count=12)
    images, _ = stream_batch()
    features = features_of(learner, images)
    logits = features @ learner.head.weight.T + learner.head.bias
    torch.testing.assert_close(logits[:, : len(learner.class_labels)], learner.logits(images))


def test_until_the_memory_is_full_it_draws_uniformly_and_runs_nothing() -> None:
    learner = taught(count=20, slots=40)
    assert learner.last is not None
    assert learner.last.costs["retrieval"].real <= 8
    full = taught(count=28)
    assert full.last is not None
    assert full.last.costs["retrieval"].real > full.last.costs["forward"].real


def test_small_classes_are_topped_up() -> None:
    learner = taught(per_class=1)
    learner.retrieval.meet(learner, *stream_batch())
    drawn = learner.retrieval.draw(learner.memory, 18, np.random.default_rng(0))
    assert len({*drawn.tolist()}) == 18


# -- the memory update --------------------------------------------------------------------------------------------


def test_the_most_valuable_stay_in_the_slots_of_the_least_valuable() -> None:
    players = np.array([7, 3, 9, 5])
    values = np.array([0.5, -0.2, 0.1, 0.3, 0.4, -0.9, 0.2], np.float32)  # of four stored, then of three arrived
    assert decisions(values, players) == [3, None, 9]
    assert decisions(np.array([1, 1, 1, 1, 0, 0, 0], np.float32), players) == [None, None, None]
    assert decisions(np.array([0, 0, 0, 0, 1, 1, 1], np.float32), players) == [3, 9, 5]


def test_the_update_keeps_those_of_the_highest_cooperative_value() -> None:
    """The decision of a whole stream batch, with every value enumerated."""
    learner, (images, labels) = taught(), stream_batch()
    memory, selection = learner.memory, learner.selection
    assert isinstance(selection, ShapleySelection)
    rng = np.random.default_rng(0)
    rng.bit_generator.state = learner.generator("selection").bit_generator.state
    asked = of_every_class(memory, 2, [], rng)
    threshold = rng.random() / 4 * len(memory)
    rare = [place for place, label in enumerate(labels.tolist()) if memory.counts[label] < threshold]
    players = rng.choice(np.setdiff1d(np.arange(20), asked), 8, replace=False)
    stored = memory.gather(np.concatenate([asked, players]))
    features = features_of(learner, torch.cat([stored.samples, images])).double()
    known = torch.cat([stored.labels, labels]).tolist()
    competing = [*range(8, 20)]
    value = np.zeros(12)
    for one in [*range(8), *(16 + place for place in rare)]:
        apart = [float((features[player] - features[one]).norm()) for player in competing]
        value += by_enumeration(apart, [known[player] == known[one] for player in competing], 3)
    staying = {*np.argsort(-value, kind="stable")[:8].tolist()}

    selection.consider(learner, images, labels)
    slots = [selection.select(memory, label, learner.generator("selection")) for label in labels.tolist()]
    assert [slot is not None for slot in slots] == [place in staying for place in range(8, 12)]
    replaced = {slot for slot in slots if slot is not None}
    assert replaced == {*players[[place for place in range(8) if place not in staying]].tolist()}


def test_the_memory_fills_first_and_then_is_updated() -> None:
    learner = learner_of(METHODS["aser"], settings=settings(), slots=10)
    feed(learner, 0, 8)
    assert len(learner.memory) == 8
    before = learner.ledger.spent_on["retrieval"].real
    assert before < 100
    feed(learner, 8, 12)  # two of four find a free slot
    assert len(learner.memory) == 10
    assert learner.ledger.spent_on["retrieval"].real > 10_000
    stored = {sample.numpy().tobytes() for sample in learner.memory.gather(np.arange(10)).samples}
    arrived = [image.numpy().tobytes() for image, _ in samples(12)]
    assert set(arrived[8:10]) <= stored  # they do not compete
    assert stored <= set(arrived)


def test_without_compute_samples_enter_as_in_a_reservoir() -> None:
    learner = taught()
    budget = Budget(Compute(learner.ledger.spent.real // 2, "real"))
    poor = learner_of(METHODS["aser"], settings=settings(), slots=20, budget=budget)
    feed(poor, 0, 120)
    assert poor.spent_up
    assert poor.ledger.spent.real <= budget.compute.amount  # type: ignore[union-attr]
    late = {image.numpy().tobytes() for image, _ in [*samples(120)][80:]}
    assert {sample.numpy().tobytes() for sample in poor.memory.gather(np.arange(20)).samples} & late


# -- what holds for every method ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPOSED)
def test_everything_it_runs_is_charged(name: str) -> None:
    learner = learner_of(COMPOSED[name], settings=settings(per_class=4, candidates=16), slots=20)
    assert_charged_as_executed(learner)


@pytest.mark.parametrize("name", COMPOSED)
def test_resume_is_exact(name: str, tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(COMPOSED[name], settings=settings(), slots=12), tmp_path / "saved", 19, 32)


def test_bytes_are_those_of_er() -> None:
    assert learner_of(METHODS["aser"]).nbytes_by_item() == learner_of(METHODS["er"]).nbytes_by_item()


def test_a_class_that_appears_late() -> None:
    learner = taught()
    for image, _ in [*samples(16)]:
        learner.learn(image, 9)
    assert learner.class_labels[-1] == 9
    assert learner.memory.counts[4] > 0


@pytest.mark.parametrize(
    ("key", "value"), [("neighbours", "0"), ("per_class", "0"), ("candidates", "-1"), ("score", "mode"), ("k", "3")]
)
def test_bad_settings_are_one_line(key: str, value: str) -> None:
    with pytest.raises(BudgetedError) as refused:
        learner_of(ASER, settings=from_pairs({f"retrieval.{key}": value}, ASER(), flips=False))
    assert key in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(BudgetedError, match=r"meet\(\) before draw"):
        AdversarialShapley().draw(taught(count=4).memory, 2, np.random.default_rng(0))
