"""Schedule-free AdamW: against the equations, one number at a time; rows that come later; charged and resumed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData, ExecutedOps
from budgeted.budget.optimizer import OptimizerPrice
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.network.head import grow
from budgeted.network.schedule_free import ScheduleFree
from tests.bright_rows import samples
from tests.learner.small import images, make, settings_of, tiny

STREAM = list(samples(40))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def of_the_paper(
    start: float, gradients: list[float], rates: list[float], decay: float, power: float
) -> tuple[float, float, float]:
    """y, x and z after these steps."""
    beta1, beta2, eps = 0.9, 0.999, 1e-8
    x = y = z = start
    v = sums = 0.0
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        v = beta2 * v + (1 - beta2) * g * g
        gamma = rate * math.sqrt(1 - beta2**t)
        z = z - gamma * g / (math.sqrt(v) + eps) - gamma * decay * y
        sums += t**power * gamma**2
        c = t**power * gamma**2 / sums
        x = (1 - c) * x + c * z
        y = (1 - beta1) * z + beta1 * x
    return y, x, z


@pytest.mark.parametrize("power", [0.0, 2.0])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_every_number_moves_by_the_papers_equations(decay: float, power: float) -> None:
    weights = nn.Parameter(drawn(3, 2, 2, 2).contiguous(memory_format=torch.channels_last).double())
    start = weights.detach().clone()
    gradients = [drawn(3, 2, 2, 2, seed=n + 1).double() for n in range(12)]
    rates = [0.02 * (1 + n % 3) for n in range(12)]
    optimizer = ScheduleFree([weights], 1.0, weight_decay=decay, power=power)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weights.grad = gradient
        optimizer.step()
    averaged, away, found = optimizer.averaged(weights), optimizer.state[weights]["away"], weights.detach()
    for place in np.ndindex(3, 2, 2, 2):
        y, x, z = of_the_paper(float(start[place]), [float(g[place]) for g in gradients], rates, decay, power)
        assert float(found[place]) == pytest.approx(y, abs=1e-9)
        assert float(averaged[place]) == pytest.approx(x, abs=1e-9)
        assert float(found[place] + away[place]) == pytest.approx(z, abs=1e-9)


@pytest.mark.parametrize("bias", [True, False])
def test_a_row_that_comes_later_moves_as_if_it_were_alone(bias: bool) -> None:
    head = nn.Linear(4, 2, bias=bias)
    optimizer = ScheduleFree(head.parameters(), 0.1, power=1.0)
    gradients = {n: (drawn(3, 4, seed=n), drawn(3, seed=90 + n)) for n in range(9)}

    def step(n: int) -> None:
        rows = head.out_features
        head.weight.grad = gradients[n][0][:rows]
        if bias:
            head.bias.grad = gradients[n][1][:rows]
        optimizer.step()

    for n in range(5):
        step(n)
    before = optimizer.averaged(head.weight).clone()
    grow(head, 3, optimizer, np.random.default_rng(0))
    torch.testing.assert_close(optimizer.averaged(head.weight)[:2], before)
    assert torch.equal(optimizer.averaged(head.weight)[2], head.weight[2].detach())
    alone = nn.Parameter(head.weight[2:].detach().clone())
    other = ScheduleFree([alone], 0.1, power=1.0)
    for n in range(5, 9):
        step(n)
        alone.grad = gradients[n][0][2:]
        other.step()
    torch.testing.assert_close(head.weight[2:], alone)
    torch.testing.assert_close(optimizer.averaged(head.weight)[2:], other.averaged(alone))


def test_its_price_is_what_is_executed_whatever_rests() -> None:
    model = tiny()
    optimizer = ScheduleFree(model.parameters(), weight_decay=0.1, power=1.0)
    price, parameters = OptimizerPrice(optimizer), list(model.parameters())
    for moving in (parameters, parameters[3:]):
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter) if any(parameter is m for m in moving) else None
            with ExecutedOps() as executed:
                optimizer.step()
        assert price.step(moving).real == pytest.approx(executed.total, rel=0.01)


def learner_with(name: str = "vanilla", **more: Any) -> Learner:
    settings = settings_of(METHODS[name], optimizer="schedule-free", warm_up=2, **more)
    return make(name, tiny(), settings=settings)


def feed(learner: Learner, start: int, end: int) -> None:
    for image, label in STREAM[start:end]:
        learner.learn(image, label)


@pytest.mark.parametrize("name", ["vanilla", "al-sar", "gdumb"])
def test_a_learner_is_charged_as_run_and_resumed_exactly(name: str, tmp_path: Path) -> None:
    learner = learner_with(name, norms="memory")
    feed(learner, 0, 20)
    learner.before_prediction()
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", tiny())
    assert torch.equal(learner.logits(images(4)), again.logits(images(4)))
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        feed(learner, 20, 40)
        learner.before_prediction()
    assert learner.ledger.spent.real - before == pytest.approx(executed.total, rel=0.02)
    feed(again, 20, 40)
    again.before_prediction()
    assert weights_digest(learner) == weights_digest(again)
    assert torch.equal(learner.logits(images(4)), again.logits(images(4)))


def test_predictions_are_made_with_the_average_and_training_without() -> None:
    learner = learner_with()
    feed(learner, 0, 30)
    own = learner.head.weight.detach().clone()
    optimizer = learner.optimizer
    assert isinstance(optimizer, ScheduleFree)
    with learner.network.predicting():
        lent = learner.head.weight.detach().clone()
    assert not torch.equal(own, lent)
    away = optimizer.state[learner.head.weight]["away"]
    torch.testing.assert_close(own, 0.1 * (own + away) + 0.9 * lent)  # y between z and x
    assert torch.equal(learner.head.weight, own)
    told = learner.logits(images(5))
    learner.network.settle()
    assert torch.equal(learner.head.weight, lent)
    torch.testing.assert_close(learner.logits(images(5)), told)


def test_the_second_point_counts_in_bytes_and_is_no_working_memory() -> None:
    learner, plain = learner_with(), make("vanilla", tiny())
    for each in (learner, plain):
        feed(each, 0, 30)
    items = learner.nbytes_by_item()
    assert items["average"] == items["parameters"] == plain.nbytes_by_item()["parameters"]
    rows = sum(len(p) for p in learner.model.parameters())
    assert learner.working_nbytes()["optimizer"] == items["parameters"] + 2 * 4 * rows
    with pytest.raises(BudgetedError, match="keeps an average of its own"):
        learner_with(average="float32")
