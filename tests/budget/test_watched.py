"""What runs beside a model is priced as it runs, as the independent counter counts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from budgeted.audit import ExecutedOps
from budgeted.budget.refusals import UnpricedOperator
from budgeted.budget.watched import watched
from budgeted.replay.shapley import shapley_values


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def lists() -> list[Tensor]:
    first, second = [random(100), random(10, 10)], [random(100), random(10, 10)]
    torch._foreach_mul_(first, 0.5)
    torch._foreach_addcmul_(first, second, second, value=0.3)
    return list(torch._foreach_sub(first, second))


def chances() -> Tensor:
    return torch.softmax(random(16, 10), 1).gather(1, torch.zeros(16, 1, dtype=torch.long))


def votes() -> Tensor:
    counted = torch.zeros(30, 5)
    counted[torch.arange(30), random(30, 5).argmax(1)] += 1
    return 1 - counted.double().amax(1) / 12


def neighbours() -> Tensor:
    return shapley_values(random(20, 64), torch.arange(20) % 3, random(30, 64), torch.arange(30) % 3, 3)


@pytest.mark.parametrize("work", [lists, chances, votes, neighbours])
def test_it_is_what_the_counter_sees(work: Callable[[], object]) -> None:
    with ExecutedOps() as executed:
        work()
    result, cost = watched(work)
    assert cost.real == pytest.approx(executed.total, rel=0.01)
    assert cost.paper == 0  # that rule knows the layers of models alone
    expected = work()
    if isinstance(result, Tensor) and isinstance(expected, Tensor):
        assert torch.equal(result, expected)


def test_an_operator_without_a_price_is_refused() -> None:
    with pytest.raises(UnpricedOperator, match="beside the model"):
        watched(lambda: torch.linalg.eigvals(random(3, 3)))
