"""Training steps that charge what they execute, whatever the model and the loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from budgeted import AdaptiveFreezing
from budgeted.audit import ExecutedOps


def most_frozen(
    model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor, steps: int
) -> int:
    """Train so many steps, each charged as executed; the most blocks that any of them froze."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, ema=1.0, ema_start="first")
    most = 0
    for _ in range(steps):
        optimizer.zero_grad()
        before = freezing.spent
        with ExecutedOps() as executed:
            freezing.backward(loss_of(model(inputs), targets))
            optimizer.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
        most = max(most, len(freezing.frozen))
    return most
