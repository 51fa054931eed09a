"""Further forwards in one step: paid as executed, and nobody takes them for the step's own batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.learner import LearnerSettings, Settings
from budgeted.methods import Method, Step
from tests.methods.small import RealOps, feed, learner_of


class Twice(Method):
    """Trains on another view, and its views are of another number of samples than its batch."""

    read = True
    moves = False

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        own = F.cross_entropy(logits, step.labels)
        views = self.learner.inputs_of(step.samples, augment=True)[1:]
        outputs = self.learner.network.forward_also(views, moves=self.moves)
        return own + F.cross_entropy(outputs, step.labels[1:]) if self.read else own


class Unread(Twice):
    """Runs the view and forgets it."""

    read = False


class Moving(Twice):
    """Lets the statistics learn from the view."""

    moves = True


@pytest.mark.parametrize("kind", [Twice, Unread])
@pytest.mark.parametrize("freezing", ["none", "constant", "adaptive"])
def test_it_is_charged_as_executed(kind: type[Method], freezing: str) -> None:
    settings = Settings(
        LearnerSettings(batch_size=6, learning_rate=1e-3),
        freezing={"ema": 0.3, "ema_start": "first"} if freezing == "adaptive" else {},
    )
    learner = learner_of(kind(freezing=freezing), "tiny", settings=settings)
    with RealOps() as executed:
        for i in range(9):
            before, charged = executed.total, learner.ledger.spent.real
            feed(learner, i, i + 1)
            if learner.steps > 2:
                assert learner.ledger.spent.real - charged == pytest.approx(executed.total - before, rel=0.003)
    assert freezing != "constant" or learner.mean_frozen_share > 0.5


def test_gradients_are_those_of_both_and_statistics_of_the_batch_alone() -> None:
    learners = [learner_of(kind, "tiny") for kind in (Twice, Moving)]
    for learner in learners:
        feed(learner, 0, 9)
    network, moving = (learner.network for learner in learners)
    inputs, views = torch.randn(5, 1, 8, 8), torch.randn(7, 1, 8, 8)
    before = {name: buffer.clone() for name, buffer in network.model.named_buffers()}
    moving.model.load_state_dict(network.model.state_dict())

    def step(of: Any, **how: bool) -> dict[str, Tensor]:
        loss = of.forward(inputs).square().mean() + of.forward_also(views, **how).square().mean()
        of.backward(loss)
        return {name: p.grad.clone() for name, p in of.model.named_parameters() if p.grad is not None}

    found = step(network)
    alone = {name: buffer.clone() for name, buffer in network.model.named_buffers()}
    other = step(moving, moves=True)
    model = moving.model
    model.zero_grad()
    (model(inputs).square().mean() + model(views).square().mean()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad)
        torch.testing.assert_close(other[name], parameter.grad)
    once = learner_of(Twice, "tiny").network.model
    once.train()
    once.load_state_dict({**once.state_dict(), **before}, strict=False)
    once.load_state_dict({n: t for n, t in network.model.state_dict().items() if n not in before}, strict=False)
    once(inputs)
    for name, buffer in once.named_buffers():
        torch.testing.assert_close(alone[name], buffer)


def test_what_is_looked_at_is_the_batch() -> None:
    learner = learner_of(Twice, "tiny")
    feed(learner, 0, 9)
    network = learner.network
    network.note_features(["stem", "body"])
    network.sample_gradients()
    inputs = torch.randn(5, 1, 8, 8)
    outputs = network.forward(inputs)
    also = network.forward_also(torch.randn(7, 1, 8, 8))
    assert [len(feature) for feature in network.take_features()] == [5, 5]
    network.backward(outputs.square().mean() + also.square().mean())
    sampled, _ = network.take_sampled()
    assert len(sampled.values) == 5
