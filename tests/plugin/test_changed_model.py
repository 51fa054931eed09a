"""A model that is changed under the plug-in, and a plug-in that was removed: both are said, nothing goes unpriced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.errors import BudgetedError
from budgeted.freezing import NoBlockChain
from budgeted.plugin import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval
from tests.nets import seeded

INPUTS, LABELS = torch.ones(5, 6), torch.tensor([0, 1, 2, 3, 0])


def network() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))


def attached(model: nn.Module) -> tuple[AdaptiveFreezing, torch.optim.Optimizer]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    freezing = AdaptiveFreezing(model, optimizer, policy="none")
    step(model, freezing, optimizer)
    return freezing, optimizer


def step(model: nn.Module, freezing: AdaptiveFreezing, optimizer: torch.optim.Optimizer) -> int:
    before = freezing.spent.real
    optimizer.zero_grad()
    freezing.backward(cross_entropy(model(INPUTS), LABELS))
    optimizer.step()
    return freezing.spent.real - before


def pop(model: nn.Sequential) -> None:
    del model[4]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda model: model.append(nn.Linear(4, 4)), "5"),
        (lambda model: model.append(nn.BatchNorm1d(4)), "4"),
        (lambda model: model.insert(2, nn.Linear(8, 8)), "3, 5, 4"),
        (lambda model: model.__setitem__(2, nn.Sequential(nn.Linear(8, 9), nn.Linear(9, 8))), "2.0, 2.1, 2"),
        (pop, "4"),
    ],
)
def test_other_blocks_are_refused_at_once_and_every_time(change: Callable[[nn.Sequential], None], names: str) -> None:
    model = network()
    freezing, optimizer = attached(model)
    change(model)
    spent, state = freezing.spent, freezing.state_dict()
    for _ in range(2):
        with pytest.raises(NoBlockChain, match=r"call changed\(\)") as error:
            model(INPUTS)
        with pytest.raises(NoBlockChain):
            freezing.price(INPUTS)
        assert "\n" not in str(error.value)
        assert f"(changed: {names})" in str(error.value)
    assert freezing.spent == spent
    assert freezing.state_dict() == state
    freezing.remove()
    fresh = AdaptiveFreezing(model, torch.optim.Adam(model.parameters()), policy="none")
    assert step(model, fresh, optimizer) > 0


@pytest.mark.parametrize(
    ("change", "dearer"),
    [
        (lambda model: model.append(nn.Softplus()), True),
        (lambda model: model.__setitem__(2, nn.Linear(8, 8)), False),
        (lambda model: model.__setitem__(4, nn.Linear(8, 4)), False),
    ],
)
def test_the_same_blocks_go_on_and_cost_what_they_cost_now(
    change: Callable[[nn.Sequential], None], dearer: bool
) -> None:
    model = network()
    freezing, optimizer = attached(model)
    before = step(model, freezing, optimizer)
    change(model)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    after = step(model, freezing, optimizer)
    twin = network()
    change(twin)
    fresh, its_optimizer = attached(twin)
    assert after == step(twin, fresh, its_optimizer)
    assert (after > before) is dearer
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_group_added_to_the_optimizer_is_priced() -> None:
    model, whole = network(), network()
    optimizer = torch.optim.Adam(list(model[:4].parameters()), lr=0.01)
    freezing = AdaptiveFreezing(model, optimizer, policy="none")
    optimizer.add_param_group({"params": list(model[4].parameters())})
    expected, _ = attached(whole)
    assert step(model, freezing, optimizer) == expected.spent.real
    assert freezing.ledger.spent_on["optimizer"] == expected.ledger.spent_on["optimizer"]


def test_a_removed_freezing_says_so() -> None:
    model = network()
    freezing, _ = attached(model)
    freezing.remove()
    freezing.remove()
    with pytest.raises(BudgetedError, match="this AdaptiveFreezing was removed") as error:
        freezing.backward(cross_entropy(model(INPUTS), LABELS))
    assert "\n" not in str(error.value)
    with pytest.raises(BudgetedError, match="this freezing was removed"):
        freezing.engine.backward(cross_entropy(model(INPUTS), LABELS))
    unused = AdaptiveFreezing(model)
    unused.remove()
    for use in (lambda: unused.chain, lambda: unused.price(INPUTS)):
        with pytest.raises(BudgetedError, match="this AdaptiveFreezing was removed"):
            use()


def test_a_removed_retrieval_says_so_and_hooks_nothing() -> None:
    model, memory = network(), ReplayMemory(slots=8)
    retrieval = SimilarityAwareRetrieval(model, memory, exclude=["4"], fraction=0.5)
    memory.add(INPUTS, LABELS)
    images, labels = retrieval.draw(4)
    retrieval.remove()

    def update() -> None:
        cross_entropy(model(images), labels).backward()
        retrieval.update()

    def draw() -> tuple[Tensor, Tensor]:
        return retrieval.draw(4)

    for use in (update, draw):
        with pytest.raises(BudgetedError, match="this SimilarityAwareRetrieval was removed"):
            use()
    assert not any(module._forward_hooks for module in model.modules())
