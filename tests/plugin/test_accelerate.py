"""In a loop of accelerate's: what `prepare()` returns is priced and frozen; its own backward is noticed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.freezing import ConstantPrefix
from budgeted.plugin import AdaptiveFreezing
from budgeted.plugin.adaptive_freezing import MissedBackwardWarning
from tests.nets import seeded


@pytest.fixture(params=["no", "bf16"])
def accelerator(request: pytest.FixtureRequest) -> Iterator[Accelerator]:
    AcceleratorState._reset_state(reset_partial_state=True)  # one for a process: another test may have made it
    yield Accelerator(cpu=True, mixed_precision=request.param)
    AcceleratorState._reset_state(reset_partial_state=True)


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))


def prepared(accelerator: Accelerator) -> tuple[nn.Module, Any, nn.Module]:
    inner = network()
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-2, foreach=False)
    model, optimizer = accelerator.prepare(inner, optimizer)
    return model, optimizer, inner


def batch() -> tuple[Tensor, Tensor]:
    inputs = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))
    return inputs, inputs[:, :4].argmax(1)


def test_what_prepare_returns_is_priced_and_frozen(accelerator: Accelerator) -> None:
    model, optimizer, inner = prepared(accelerator)
    freezing = AdaptiveFreezing(model, optimizer, policy="constant", n=1)
    before = [parameter.detach().clone() for parameter in inner.parameters()]
    inputs, labels = batch()
    with ExecutedOnData() as executed:
        for _ in range(3):
            optimizer.zero_grad()
            freezing.backward(cross_entropy(model(inputs), labels), scaler=accelerator.scaler)
            optimizer.step()
    assert freezing.steps == 3
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.01)
    assert freezing.ledger.spent_on["optimizer"].real > 0
    moved = [not torch.equal(a, b) for a, b in zip(before, inner.parameters(), strict=True)]
    assert moved == [False, False, True, True, True, True]


def test_the_accelerators_own_backward_is_told_once(accelerator: Accelerator) -> None:
    model, optimizer, _ = prepared(accelerator)
    freezing = AdaptiveFreezing(model, optimizer)
    inputs, labels = batch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", MissedBackwardWarning)
        for _ in range(3):
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
    assert [warning.category for warning in told] == [MissedBackwardWarning]
    assert "call freezing.backward(loss) in place of" in str(told[0].message)
    assert freezing.steps == 0


def test_no_word_where_every_loss_comes() -> None:
    """A forward without gradients, an evaluation and a loss that is refused are no missed backward."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    freezing = AdaptiveFreezing(model, optimizer, policy="none")
    inputs, labels = batch()
    for _ in range(2):
        freezing.backward(cross_entropy(model(inputs), labels))
        with torch.no_grad():
            model(inputs)
        optimizer.step()  # warnings are errors here
    with pytest.raises(BudgetedError, match=r"not finite|is nan"):
        freezing.backward(cross_entropy(model(inputs), labels) * torch.nan)
    optimizer.step()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"polcy": "none"}, "AdaptiveFreezing or of its policy 'adaptive', 'polcy': did you mean 'policy'?"),
        ({"granularty": "layer"}, "did you mean 'granularity'?"),
        ({"refresh_evry": 2}, "did you mean 'refresh_every'?"),
        ({"policy": "constant", "m": 3}, "'m', and none is near it: known are model, always, batch_norm"),
        ({"policy": ConstantPrefix(1), "granularty": "layer"}, "did you mean 'granularity'?"),
        ({"policy": ConstantPrefix(1), "n": 2}, "n: settings go with a policy's name"),
        ({"policy": "constnt"}, "did you mean 'constant'?"),
    ],
)
def test_a_misspelt_setting_is_named(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(BudgetedError) as raised:
        AdaptiveFreezing(network(), **given)
    assert reason in str(raised.value)
