"""The meter itself: it sees everything, disturbs nothing, and refuses what it cannot count."""

from __future__ import annotations

import copy
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from budgeted.audit import ExecutedOps, UncountedOperator
from budgeted.errors import BudgetedError
from tests.audit.helpers import Function, count, data, draw, loss_of, residual_net, train_step


def test_counting_is_invisible_to_a_mode_around_it() -> None:
    x, weight = draw(13, 17), draw(11, grad=True)  # sizes and rates of no other test, so nothing is cached
    weight.grad = torch.ones(11)
    optimizer = torch.optim.Adam([weight], betas=(0.87, 0.93), fused=True)
    seen: Counter[str] = Counter()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[str(func.overloadpacket)] += 1
            return func(*args, **(kwargs or {}))

    with Recorder(), ExecutedOps() as meter:  # type: ignore[no-untyped-call]
        x.softmax(1)
        optimizer.step()
    assert seen == meter.calls
    assert seen["aten._fused_adam_"] == seen["aten._softmax"] == 1


def test_watched_training_is_bit_identical() -> None:
    watched = residual_net()
    free = copy.deepcopy(watched)
    for net, watch in ((watched, ExecutedOps()), (free, nullcontext())):
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for batch in (3, 4):
            net.zero_grad()
            with watch:
                loss_of(net, *data(batch)).backward()
                optimizer.step()
    for key, value in watched.state_dict().items():
        assert torch.equal(value, free.state_dict()[key])


def test_fake_tensors_count_as_real_ones() -> None:
    real = train_step(residual_net(), 4)
    mode = FakeTensorMode()
    with mode:
        net, batch = residual_net(), data(4)
    for outer, inner in ((mode, ExecutedOps()), (ExecutedOps(), mode), (nullcontext(), ExecutedOps())):
        net.zero_grad()
        with outer, inner:
            loss_of(net, *batch).backward()
        meter = next(x for x in (outer, inner) if isinstance(x, ExecutedOps))
        assert meter.by_operator == real.by_operator


def test_inference_mode_hides_nothing() -> None:
    net, images = residual_net(), draw(4, 3, 8, 8)
    plain = count(net, images)
    with torch.inference_mode():
        assert count(net, images) == plain
        q = draw(2, 3, 5, 4)
        assert count(lambda: functional.scaled_dot_product_attention(q, q, q)) == 150 * (8 + 8 + 6)


def test_phases_calls_and_reset() -> None:
    x = draw(4, 6)
    with ExecutedOps() as meter:
        x.exp()
        with meter.phase("outer"):
            x.exp()
            with meter.phase("inner"):
                x.relu()
            x.t()
    assert (meter.total, meter.by_phase) == (72, {"outer": 24, "inner": 24})
    assert meter.by_operator == {"aten.exp": 48, "aten.relu": 24, "aten.t": 0}
    assert meter.calls == {"aten.exp": 2, "aten.relu": 1, "aten.t": 1}
    meter.reset()
    assert (meter.total, meter.by_phase, meter.by_operator, meter.calls) == (0, {}, {}, {})


@pytest.fixture(scope="module")
def secret() -> Function:
    @torch.library.custom_op("budgeted_audit_test::secret", mutates_args=())
    def work(x: Tensor) -> Tensor:
        return x * 2

    return work


def test_an_unknown_operator_is_refused_by_name(secret: Function) -> None:
    x = draw(4, 6)
    with pytest.raises(UncountedOperator, match=r"budgeted_audit_test\.secret.*strict=False") as caught:
        count(secret, x)
    assert isinstance(caught.value, BudgetedError)
    with pytest.raises(UncountedOperator, match=r"aten\._linalg_svd"):
        count(torch.linalg.svd, x)


def test_an_unknown_operator_may_be_left_out(secret: Function) -> None:
    x = draw(4, 6)
    with pytest.warns(UserWarning, match="secret"), ExecutedOps(strict=False) as meter:
        secret(secret(x)).exp()
    assert (meter.total, meter.uncounted) == (24, {"budgeted_audit_test.secret"})
