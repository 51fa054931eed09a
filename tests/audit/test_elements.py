"""Elements, reductions and data movement, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.audit.helpers import Function, count, draw, passes


@pytest.mark.parametrize(
    ("per_element", "work"),
    [
        (1, lambda x, y: x + y),
        (1, lambda x, y: 1 - x),
        (1, lambda x, y: x > y),
        (1, lambda x, y: x.pow(3)),
        (1, lambda x, y: x.clamp(0, 1)),
        (1, lambda x, y: torch.maximum(x, y)),
        (1, lambda x, y: x.clone().bernoulli_(0.5, generator=torch.Generator())),
        (2, lambda x, y: torch.where(x > 0, x, y)),
        (2, lambda x, y: torch.add(x, y, alpha=2)),
        (2, lambda x, y: torch.addcmul(x, x, y)),
        (3, lambda x, y: torch.addcdiv(x, x, y, value=0.1)),
        (3, lambda x, y: torch.lerp(x, x, 0.3)),
        (0, lambda x, y: torch.cat([x.t().contiguous(), x.t()])[::2].to(torch.float64)),
        (0, lambda x, y: functional.pad(x[[0, 1]].expand(3, 2, 6), (1, 1)).zero_()),
        (1, lambda x, y: x.sum()),
        (1, lambda x, y: x.argmax(1)),
        (1, lambda x, y: x.cumsum(0)),
        (1, lambda x, y: x.max(1)),
        (3, lambda x, y: x.sort()),
    ],
)
def test_elements_reductions_and_movement(per_element: int, work: Function) -> None:
    assert count(work, draw(4, 6), draw(6)) == 24 * per_element


def test_reductions_with_a_finish() -> None:
    x = draw(4, 6)
    assert count(x.mean) == 24 + 1
    assert count(x.mean, 1) == 24 + 4
    assert count(x.var, 1) == 4 * 24 + 2 * 4
    assert count(lambda: torch.var_mean(x, 1)) == 4 * 24 + 2 * 4
    assert count(x.std, 1) == 4 * 24 + 3 * 4
    assert count(lambda: torch.linalg.vector_norm(x, dim=1)) == 2 * 24 + 4


def test_accumulating_scatters_count_their_sources() -> None:
    table, rows, at = torch.zeros(5, 3), draw(4, 3), torch.tensor([0, 1, 1, 4])
    assert count(lambda: table.index_put((at,), rows)) == 0
    assert count(lambda: table.index_put((at,), rows, accumulate=True)) == 12
    assert count(lambda: table.index_add(0, at, rows)) == 12
    assert count(lambda: table.index_add(0, at, rows, alpha=2)) == 24
    assert count(lambda: table.scatter(0, at[:, None].expand(4, 3), rows)) == 0
    assert count(lambda: table.scatter_add(0, at[:, None].expand(4, 3), rows)) == 12
    assert count(lambda: functional.fold(torch.ones(1, 4, 9), 4, 2)) == 36


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("name", ["add", "relu", "sigmoid", "gelu", "silu", "mul"])
def test_in_place_and_out_variants_count_the_same(name: str, approximate: str) -> None:
    all_options: dict[str, dict[str, Any]] = {"gelu": {"approximate": approximate}, "add": {"alpha": 3}}
    options = all_options.get(name, {})
    operands = (draw(4, 6), draw(6)) if name in {"add", "mul"} else (draw(4, 6),)
    packet = getattr(torch.ops.aten, name)
    overload = "Tensor" if name in {"add", "mul"} else "default"
    plain = count(lambda: getattr(packet, overload)(*operands, **options))
    assert plain == count(lambda: packet.out(*operands, **options, out=torch.empty(4, 6))) > 0
    in_place = getattr(getattr(torch.ops.aten, f"{name}_"), overload)
    assert plain == count(lambda: in_place(operands[0].clone(), *operands[1:], **options))


def test_interpolation_backward_counts_its_taps() -> None:
    image, results = draw(1, 2, 8, 8, grad=True), 2 * 16 * 16
    for mode, per_result in [("nearest", 1), ("bilinear", 2 * 4), ("bicubic", 2 * 16)]:
        image.grad = None
        assert passes(lambda x, m=mode: functional.interpolate(x, (16, 16), mode=m), image)[1] == (results * per_result)


def test_embedding() -> None:
    assert passes(nn.Embedding(7, 3), torch.tensor([1, 2, 2])) == (0, 9)
