"""A shortcut of the trace makes what the operator would have made: shapes, layout and kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from budgeted.budget import trace
from budgeted.budget.shortcuts import shortcut
from budgeted.budget.watched import watched


class Compared(TorchDispatchMode):
    """Runs what has a shortcut both ways."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.compared: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        short = shortcut(name, args)
        output = func(*args, **kwargs)
        if short is not None:
            self.compared.append(name)
            both = zip(*(pytree.tree_leaves(found) for found in (short(*args, **kwargs), output)), strict=True)
            for made, real in both:
                assert (made.shape, made.dtype, made.stride()) == (real.shape, real.dtype, real.stride())
        return output


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 5), (4, 6, 5, 3)])
def test_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    with FakeTensorMode():
        norm = (nn.BatchNorm1d if len(shape) < 4 else nn.BatchNorm2d)(6, affine=affine).train()
        images: Tensor = torch.randn(shape, requires_grad=True)
        if len(shape) == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        with Compared() as mode:
            norm(images)
            norm(images[:, :, ::2] if len(shape) == 4 else images)  # rows that lie apart
            norm.eval()
            norm(images)  # with running statistics there is no shortcut
    assert mode.compared == ["native_batch_norm"] * 2


def test_relu_in_place() -> None:
    with FakeTensorMode(), Compared() as mode:
        torch.relu_(torch.randn(4, 6))
    assert mode.compared == ["relu_"]


def test_where_there_are_data_there_is_no_shortcut() -> None:
    """Code that is priced while it runs gives what it would have given."""
    given = torch.tensor([-1.0, 2.0])
    found, _ = watched(lambda: torch.relu_(given.clone()))
    assert found.tolist() == [0.0, 2.0]


def test_a_trace_through_batch_norm_flows_on() -> None:
    """The gradient passes a shortcut as it passes the operator: everything before it can still be trained."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    found = trace(model, (torch.empty(2, 3, 8, 8),))
    (norm,) = (op for op in found.ops if op.name == "native_batch_norm")
    assert norm.out.shape == (2, 4, 6, 6)
    assert norm.differentiable
    assert any(norm.out in op.inputs for op in found.ops)
