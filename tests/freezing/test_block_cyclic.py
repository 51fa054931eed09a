"""Block-cyclic freezing: whose turn it is, against counting it out; what is not trained has no turn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from budgeted.errors import BudgetedError
from budgeted.freezing import BlockCyclic, LayerFreezing


def five() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4)), nn.Linear(4, 3))


@pytest.mark.parametrize("untrained", [(), (1,), (4,), (0, 4)])
def test_one_block_at_a_time_from_the_last_to_the_first(untrained: tuple[int, ...]) -> None:
    model = five()
    for block in untrained:
        model[block].requires_grad_(False)
    turns = [block for block in (4, 3, 2, 1, 0) if block not in untrained]
    freezing = LayerFreezing(model, BlockCyclic(every=3), torch.zeros(2, 4))
    for step in range(3 * len(turns) + 2):
        model.zero_grad()
        done = freezing.backward(nn.functional.cross_entropy(model(torch.randn(2, 4)), torch.tensor([0, 2])))
        active = turns[step // 3 % len(turns)]
        learned = {int(name[0]) for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert learned == {active, turns[0]}
        assert done.frozen == set(range(turns[0])) - {active}


def test_a_turn_has_a_step_at_least() -> None:
    with pytest.raises(BudgetedError, match="every must be at least 1"):
        BlockCyclic(every=0)
