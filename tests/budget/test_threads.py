"""A trace sees what its own thread runs, and nothing of it reaches another."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as dispatch
from torch.utils.checkpoint import checkpoint

from budgeted.budget import Trace, UnpricedOperator, trace
from tests.nets import seeded
from tests.threads import Meeting, all_the_time, beside, elsewhere


def network(meeting: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.ReLU(), meeting or Meeting()), nn.Linear(5, 3))


def story(found: Trace) -> Any:
    ops = [(op.name, op.path, tuple(type(m) for m in op.modules), op.out.shape) for op in found.ops]
    return ops, found.calls


def step(model: nn.Module, inputs: Tensor) -> None:
    model(inputs).square().mean().backward()


def test_modules_of_another_thread_leave_and_enter_during_a_trace() -> None:
    """Deterministic: one is inside its forward when the trace begins and leaves it in the middle."""
    example = torch.zeros(2, 4)
    quiet = story(trace(network(), (example,)))
    inner, outer = Meeting(), Meeting()
    inside, leave, left = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        leave.wait()

    def other() -> None:
        plain = network(inner)
        step(plain, torch.zeros(2, 4))
        step(plain, torch.zeros(3, 4))
        left.set()

    def meet() -> None:
        leave.set()
        left.wait()

    inner.happens.append(wait)
    outer.happens.append(meet)
    model = network(outer)
    with beside(other):
        inside.wait()
        try:
            found = trace(model, (example,))
        finally:
            leave.set()
    assert story(found) == quiet


def test_a_network_that_trains_all_the_time_changes_no_trace() -> None:
    example = torch.zeros(2, 4)
    quiet = story(trace(network(), (example,)))
    plain, inputs = network(), torch.ones(3, 4)
    with all_the_time(lambda: step(plain, inputs)):
        assert all(story(trace(network(), (example,))) == quiet for _ in range(40))


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = seeded(lambda: nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=True)


def test_reentrant_checkpoints_are_refused_in_the_trace_alone() -> None:
    other, plain = Reentrant(), Reentrant()
    for model in (other, plain):
        step(model, torch.ones(2, 4, requires_grad=True))
    expected = plain.layer.weight.grad
    other.zero_grad()
    outer = Meeting()
    outer.happens.append(lambda: elsewhere(lambda: step(other, torch.ones(2, 4, requires_grad=True))))
    trace(network(outer), (torch.zeros(2, 4),))
    assert other.layer.weight.grad is not None
    assert expected is not None
    assert torch.equal(other.layer.weight.grad, expected)
    with pytest.raises(UnpricedOperator, match="reentrant"):
        trace(nn.Sequential(nn.Linear(4, 4), Reentrant()), (torch.zeros(2, 4),))


def test_traces_in_two_threads_leave_torch_as_it_was() -> None:
    example = torch.zeros(2, 4)
    quiet = story(trace(network(), (example,)))
    with all_the_time(lambda: trace(network(), (example,))):
        assert all(story(trace(network(), (example,))) == quiet for _ in range(40))
    assert not dispatch.is_in_torch_dispatch_mode()
    step(Reentrant(), torch.ones(2, 4, requires_grad=True))
