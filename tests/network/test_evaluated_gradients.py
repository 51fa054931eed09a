"""Sampled gradients in evaluation mode: each is the gradient of one sample's loss, and their pass is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

from budgeted.budget import Budget, Compute
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.methods import METHODS
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of


def made(
    method: str = "sar", model: str = "tiny", mode: str = "evaluation", fraction: float = 0.05, **more: Any
) -> Learner:
    own = LearnerSettings(batch_size=8, learning_rate=1e-3, sampled_fraction=fraction, sampled_mode=mode)  # type: ignore[arg-type]
    return learner_of(METHODS[method], model, settings=Settings(own), **more)


def test_each_row_is_the_gradient_of_one_samples_loss() -> None:
    learner = made()
    feed(learner, 0, 20)
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    statistics = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    found, read = learner.network.sampled_in_evaluation(images, lambda outputs: F.cross_entropy(outputs, labels))
    assert learner.model.training
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in learner.model.named_buffers())
    assert all(parameter.grad is None or parameter.grad.abs().sum() > 0 for parameter in learner.model.parameters())

    given = {name: parameter.detach() for name, parameter in learner.model.named_parameters()}
    learner.model.eval()

    def loss(parameters: dict[str, torch.Tensor], image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        logits = functional_call(learner.model, {**parameters, **statistics}, (image[None],))
        return F.cross_entropy(logits, label[None])

    with learner.network.aside():
        each = vmap(grad(loss), in_dims=(None, 0, 0))(given, images, labels)
    wanted = torch.stack([each[name].flatten(1)[:, place] for name, place in learner.network.sampled.coordinates], 1)
    assert found.present.all()
    assert read > 0
    assert len(learner.network.sampled) > 20
    torch.testing.assert_close(found.values, wanted / len(labels), rtol=1e-4, atol=1e-7)


def test_frozen_blocks_have_them_too() -> None:
    own = LearnerSettings(batch_size=8, sampled_fraction=0.05, sampled_mode="evaluation")
    frozen = METHODS["sar"](freezing="constant")
    learner = learner_of(frozen, "tiny", settings=Settings(own, freezing={"n": 1}))
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def observe(rows: torch.Tensor, present: torch.Tensor, labels: object) -> None:
        seen.append((rows, present))

    learner.retrieval.observe = observe  # type: ignore[assignment]
    feed(learner, 0, 20)
    assert learner.frozen_counts[0] == learner.steps > 1
    rows, present = seen[-1]
    stem = torch.tensor([coordinate.parameter.startswith("stem") for coordinate in learner.network.sampled.coordinates])
    assert stem.any()
    assert present.all()
    assert (rows[:, stem] != 0).any()


@pytest.mark.parametrize("method", ["sar", "al-sar"])
def test_the_second_pass_is_charged(method: str) -> None:
    assert_charged_as_executed(made(method, fraction=0.0005))


def test_the_step_itself_is_the_same() -> None:
    """The first steps draw alike, since frequencies are all that differ between their samples."""
    one, other = made(mode="training"), made()
    for learner in (one, other):
        feed(learner, 0, 3)
    for (name, mine), its in zip(one.model.state_dict().items(), other.model.state_dict().values(), strict=True):
        assert torch.equal(mine, its), name
    assert other.ledger.spent.real > 1.8 * one.ledger.spent.real


def test_a_budget_is_never_overspent() -> None:
    learner = made(budget=Budget(compute=Compute(5_000_000, "real")))
    with torch.random.fork_rng(devices=[]):
        feed(learner, 0, 60)
    assert learner.spent_up
    assert learner.ledger.spent.real <= 5_000_000


def test_it_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes_exactly(made(model="mlp"), tmp_path / "saved", 14, 30)
