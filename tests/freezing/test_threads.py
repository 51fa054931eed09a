"""A training step is that of its own thread, whatever another one runs on the same model or beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.budget import Ledger
from budgeted.freezing import Egeria, LayerFreezing, policy
from budgeted.network.sampled_gradients import SampledGradients
from tests.bright_rows import samples
from tests.learner.small import make
from tests.nets import seeded
from tests.threads import Meeting, all_the_time, elsewhere


def network(norm: bool = False) -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU()),
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), Meeting()),
            nn.Linear(8, 4),
        )
    )


def meeting_of(model: nn.Module) -> Meeting:
    return next(module for module in model.modules() if isinstance(module, Meeting))


def batch(size: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 6, generator=generator), torch.randint(4, (size,), generator=generator)


def predict(model: nn.Module) -> None:
    with torch.no_grad():
        model(batch(3, 9)[0])


def with_gradients(model: nn.Module) -> None:
    torch.autograd.grad(model(batch(3, 9)[0]).sum(), list(model.parameters()))


Interruption = Callable[[nn.Module], None]


def trained(name: str, settings: dict[str, Any], interruption: Interruption | None, **options: Any) -> Any:
    """Ten steps; the other thread comes in the middle of each forward, and again between forward and backward."""
    model = network(norm="batch_norm" in options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ledger = Ledger()
    freezing = LayerFreezing(
        model, policy(name, **settings), batch(5, 0)[0], optimizer=optimizer, ledger=ledger, **options
    )
    story = []
    for number in range(10):
        inputs, labels = batch(5, number)
        optimizer.zero_grad()
        if interruption is not None:
            meeting_of(model).happens.append(lambda: elsewhere(lambda: interruption(model)))
        logits = model(inputs)
        if interruption is not None:
            elsewhere(lambda: interruption(model))
            if isinstance(freezing.policy, Egeria):  # while the reference runs
                meeting_of(model).happens.append(lambda: elsewhere(lambda: predict(model)))
        loss = cross_entropy(logits, labels)
        step = freezing.backward(loss) if number % 2 else freezing.backward(loss, logits, labels)
        meeting_of(model).happens.clear()
        optimizer.step()
        story.append((step.frozen, step.loss, freezing.policy.written()[0]))
    return story, ledger.state_dict(), [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("interruption", [predict, with_gradients])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("none", {}),
        ("adaptive", {"ema": 0.3, "ema_start": "first"}),
        ("egeria", {"period": 1, "window": 2, "tolerance": 0.9}),
        ("ptlf", {"stretch": 3, "probe": 1, "tasks": 2}),
    ],
)
def test_what_another_thread_runs_on_the_model_is_no_part_of_the_step(
    name: str, settings: dict[str, Any], interruption: Interruption
) -> None:
    assert trained(name, settings, interruption) == trained(name, settings, None)


def test_statistics_are_held_from_before_the_steps_own_forward() -> None:
    """Another thread's forward in training mode moves them; a frozen norm goes back to what it found itself."""
    model = network(norm=True)
    freezing = LayerFreezing(model, policy("constant", n=1), batch(5, 0)[0], batch_norm="hold")
    norm = model.get_submodule("0.1")
    assert isinstance(norm, nn.BatchNorm1d)
    elsewhere(lambda: predict(model))
    assert norm.running_mean is not None
    found = norm.running_mean.clone()
    inputs, labels = batch(5, 1)
    freezing.backward(cross_entropy(model(inputs), labels))
    assert torch.equal(norm.running_mean, found)


def test_pausing_in_one_thread_pauses_no_other() -> None:
    model = network()
    freezing = LayerFreezing(model, "none", batch(5, 0)[0])
    inputs, labels = batch(5, 1)

    def train() -> None:
        assert freezing.backward(cross_entropy(model(inputs), labels)).frozen == frozenset()

    with freezing.paused():
        elsewhere(train)


@pytest.mark.parametrize("interruption", [predict, with_gradients])
def test_sampled_gradients_are_those_of_their_own_thread(interruption: Interruption) -> None:
    def sampled(interruption: Interruption | None) -> tuple[Tensor, int]:
        model = network()
        inputs, labels = batch(5, 1)
        with SampledGradients(model, fraction=0.5, exclude=["2"]) as reader:
            if interruption is not None:
                meeting_of(model).happens.append(lambda: elsewhere(lambda: interruption(model)))
            loss = cross_entropy(model(inputs), labels)
            if interruption is not None:
                elsewhere(lambda: interruption(model))
            loss.backward()
            step = reader.take()
            return step.values, reader.price(step.present)

    values, price = sampled(interruption)
    expected, expected_price = sampled(None)
    assert torch.equal(values, expected)
    assert price == expected_price


class Plain(nn.Module):
    """No norm, so that the mode of the model, which a prediction sets for all threads, changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(images)).mean((2, 3)))
        return logits


def learned(beside: Callable[[Any], Callable[[], object]] | None) -> Any:
    learner = make("al-sar", seeded(Plain))
    stream = list(samples(40, seed=3))
    for image, label in stream[:24]:  # all classes are known then
        learner.learn(image, label)
    if beside is None:
        for image, label in stream[24:]:
            learner.learn(image, label)
    else:
        with all_the_time(beside(learner)):
            for image, label in stream[24:]:
                learner.freezing.prices.forget()  # every step is traced anew
                learner.learn(image, label)
    learner.close()
    return learner.ledger.state_dict(), [p.tolist() for p in learner.model.parameters()], learner.frozen_counts


def test_a_learner_learns_the_same_whatever_another_thread_does() -> None:
    plain, inputs = seeded(Plain), torch.ones(3, 1, 8, 8)
    images = torch.stack([image for image, _ in samples(6, seed=9)])
    quiet = learned(None)
    assert learned(lambda _: lambda: plain(inputs).square().mean().backward()) == quiet
    assert learned(lambda learner: lambda: learner.predict(images)) == quiet
