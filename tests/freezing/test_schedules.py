"""Schedules go by the share of the stream that has arrived, however many steps are run on it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from budgeted.budget import Budget, Compute, total
from budgeted.errors import BudgetedError
from budgeted.freezing import LayerFreezing, LinearPrefix, TaskCorrelated, policy
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.methods import METHODS
from tests.bright_rows import FACTS, samples
from tests.methods.small import network
from tests.nets import seeded

SAMPLES = 60
INPUTS, LABELS = torch.ones(4, 6), torch.tensor([0, 1, 0, 1])


def spending(freezing: str, iterations: float = 1.0, method: str = "vanilla", **settings: Any) -> Learner:
    """A learner that spends what freezing saves, so that it runs more steps than were planned."""
    facts = replace(FACTS, samples=SAMPLES)
    made = Settings(LearnerSettings(batch_size=8), freezing=settings)
    parts = METHODS[method]().with_parts(freezing=freezing)
    bare = Learner(network("tiny"), parts, facts, slots=20, settings=made)
    price = total(bare.network.nominal(8).values())
    budget = Budget(compute=Compute(int(price.real * SAMPLES * iterations), "real"))
    return Learner(
        network("tiny"), parts, facts, slots=20, iterations=iterations, budget=budget, spend_savings=True, settings=made
    )


def test_with_savings_spent_linear_freezing_is_at_its_most_for_its_share_of_the_stream() -> None:
    learner = spending("linear", n_max=2)
    frozen_at: list[set[int]] = []
    for image, label in samples(SAMPLES):
        before = learner.frozen_counts[:2]
        steps = learner.steps
        learner.learn(image, label)
        ran = learner.steps - steps
        rested = [now - then for now, then in zip(learner.frozen_counts, before, strict=False)]
        assert all(count in (0, ran) for count in rested)  # all steps on a sample alike
        frozen_at.append({block for block, count in enumerate(rested) if count} if ran else set())
    assert learner.steps > 1.2 * SAMPLES
    third = SAMPLES // 3
    assert frozen_at == [set()] * third + [{0}] * third + [{0, 1}] * third


def small() -> nn.Module:
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(5)]
    return seeded(lambda: nn.Sequential(*layers, nn.Linear(6, 2)))


@pytest.mark.parametrize("per_sample", [0.25, 1.0, 1.6])
@pytest.mark.parametrize("n_max", [1, 3, 4])
def test_linear_freezing_is_at_its_most_in_an_even_share_of_the_steps(n_max: int, per_sample: float) -> None:
    model, stream = small(), 200
    freezing = LayerFreezing(model, LinearPrefix(n_max), INPUTS)
    sizes: list[int] = []
    for arrived in range(1, stream + 1):
        freezing.share = arrived / stream
        while len(sizes) + 1 <= arrived * per_sample:
            sizes.append(len(freezing.backward(cross_entropy(model(INPUTS), LABELS)).frozen))
    assert len(sizes) == stream * per_sample
    for n in range(n_max + 1):
        assert sizes.count(n) == pytest.approx(len(sizes) / (n_max + 1), abs=1)
    assert sizes == sorted(sizes)
    freezing.remove()


@pytest.mark.parametrize(("method", "iterations"), [("vanilla", 1.0), ("vanilla", 2.0), ("er", 1.0)])
def test_with_savings_spent_ptlf_has_its_stretches_and_takes_each_in_once(
    method: str, iterations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of every stretch but the last, after which nobody would ask."""
    taken: list[int] = []
    learn = TaskCorrelated._learn
    learner = spending("ptlf", iterations, method, n_max=2, tasks=5, probe=2, columns=8)

    def noting(self: TaskCorrelated, *args: Any) -> None:
        taken.append(learner.arrived)
        learn(self, *args)

    monkeypatch.setattr(TaskCorrelated, "_learn", noting)
    for image, label in samples(SAMPLES):
        learner.learn(image, label)
    learner.flush()
    assert learner.steps > 1.02 * SAMPLES * iterations
    between = 2 if method == "vanilla" else 4  # samples between two steps: savings pause one, or a stream batch is full
    assert taken == pytest.approx([12, 24, 36, 48], abs=between)
    assert learner.mean_frozen_share > 0.05


def test_a_stretch_that_is_over_too_soon_is_taken_in_with_the_next_step() -> None:
    model = small()
    ptlf = TaskCorrelated(n_max=3, tasks=2, probe=1)
    freezing = LayerFreezing(model, ptlf, INPUTS)
    known, frozen = [], []
    for share in (0.1, 0.2, 0.6, 0.7, 0.8):  # from 0.2 the step before led to expect 0.3
        freezing.share = share
        model.zero_grad()
        frozen.append(len(freezing.backward(cross_entropy(model(INPUTS), LABELS)).frozen))
        known.append(any(bool(strength.any()) for strength in ptlf.strengths.values()))
    assert known == [False, False, True, True, True]
    assert frozen == [0] * 5  # nothing was measured in the probing step, so nothing is known to be shared
    freezing.remove()


@pytest.mark.parametrize(("name", "setting"), [("linear", "steps"), ("ptlf", "stretch")])
def test_where_nobody_knows_how_long_the_stream_is_it_says_what_to_give(name: str, setting: str) -> None:
    model = small()
    freezing = LayerFreezing(model, name, INPUTS)
    with pytest.raises(BudgetedError, match=f"give the number of samples, or freezing.{setting}") as error:
        freezing.backward(cross_entropy(model(INPUTS), LABELS))
    assert "\n" not in str(error.value)
    assert (freezing.step, model[0][0].weight.grad) == (0, None)  # type: ignore[index]
    given = LayerFreezing(model, policy(name, **{setting: 20}), INPUTS)
    assert given.backward(cross_entropy(model(INPUTS), LABELS)).frozen == frozenset()
    freezing.remove()
    given.remove()
