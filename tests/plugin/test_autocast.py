"""Mixed precision: nothing looks at a scaled gradient, and skipped steps are no steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.plugin import AdaptiveFreezing
from tests.plugin.test_accumulation import data, parts, plain


def train(
    scale: float | None, loss: Any, accumulate: int = 1, clip: bool = False
) -> tuple[AdaptiveFreezing, list[int]]:
    model = plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5, ema_start="first")
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    sizes = []
    for batch in data(9):
        optimizer.zero_grad()
        for inputs, targets in parts(batch, accumulate):
            with torch.autocast("cpu", torch.bfloat16):
                value = loss(model(inputs), targets) / accumulate
            sizes.append(len(freezing.backward(value, scaler=scaler).frozen))
        if clip and scaler is not None:
            scaler.unscale_(optimizer)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
    return freezing, sizes


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [F.cross_entropy, smoothed], ids=["closed form", "autograd"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [False, True])
def test_scaled_and_plain_training_decide_the_same(loss: Any, accumulate: int, clip: bool) -> None:
    plainly, sizes = train(None, loss, accumulate, clip)
    scaled, same = train(2.0**12, loss, accumulate, clip)  # a power of two: rounding is the same
    assert max(sizes) > 0
    assert sizes == same
    assert scaled.policy.fisher == pytest.approx(plainly.policy.fisher, rel=1e-4)  # type: ignore[attr-defined]
    assert scaled.policy.gradient == pytest.approx(plainly.policy.gradient, rel=1e-4)  # type: ignore[attr-defined]
    for mine, other in zip(scaled.model.parameters(), plainly.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_fused_optimizers_that_unscale_themselves() -> None:
    model, batch = plain(), data(1)[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    freezing = AdaptiveFreezing(model, optimizer, ema=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    freezing.backward(F.cross_entropy(model(batch[0]), batch[1]), scaler=scaler)
    scaler.step(optimizer)
    scaler.update()
    other = plain()
    F.cross_entropy(other(batch[0]), batch[1]).backward()
    expected = sum(float(p.grad.square().sum()) for p in other.parameters() if p.grad is not None)
    assert sum(freezing.policy.fisher.values()) == pytest.approx(expected, rel=1e-4)  # type: ignore[attr-defined]


def test_a_step_that_the_scaler_skips_is_no_step() -> None:
    model, batch = plain(), data(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
    before = [p.detach().clone() for p in model.parameters()]
    for attempt in range(2):
        optimizer.zero_grad()
        freezing.backward(1000 * F.cross_entropy(model(batch[0]), batch[1]), scaler=scaler)
        scaler.step(optimizer)
        scaler.update()
        stepped = attempt == 1  # the first scale overflows
        assert freezing.steps == int(stepped)
        assert (freezing.ledger.spent_on["optimizer"].real > 0) == stepped
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) != stepped
        assert freezing.policy.updates["fisher"] == int(stepped)  # type: ignore[attr-defined]


def test_price_under_autocast_is_what_is_executed() -> None:
    model = plain()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, ema=0.5, ema_start="first")
    for inputs, targets in data(6):
        optimizer.zero_grad()
        before = freezing.spent
        with ExecutedOps() as executed:
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), targets)
            freezing.backward(loss)
            optimizer.step()
        assert (freezing.spent - before).real == pytest.approx(executed.total, rel=0.01)
