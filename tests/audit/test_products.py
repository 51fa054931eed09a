"""Matrix products and convolutions, by hand, group by group, and against torch's own counter."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from budgeted.audit import ExecutedOps
from tests.audit.helpers import Function, count, draw, passes, trainable

MASKS = [mask for mask in itertools.product((True, False), repeat=3) if any(mask)]

CONVOLUTIONS: dict[str, tuple[Function, tuple[int, ...], int, int]] = {
    # layer, input size, multiply-accumulates (results x filter, or inputs x filter when transposed), results
    "plain": (lambda: nn.Conv2d(3, 4, 3, padding=1), (2, 3, 5, 5), 200 * 27, 200),
    "strided": (lambda: nn.Conv2d(3, 4, 3, stride=2), (2, 3, 7, 7), 72 * 27, 72),
    "dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2), (2, 3, 7, 7), 72 * 27, 72),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (2, 4, 5, 5), 300 * 18, 300),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (2, 4, 5, 5), 200 * 9, 200),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), (2, 3, 5, 5), 150 * 16, 800),
    "transposed grouped": (lambda: nn.ConvTranspose2d(4, 6, 2, 2, groups=2), (2, 4, 5, 5), 200 * 12, 1200),
    "one-dimensional": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9), 56 * 9, 56),
}  # fmt: skip


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution_by_hand_under_every_mask(name: str, mask: tuple[bool, bool, bool]) -> None:
    build, size, products, results = CONVOLUTIONS[name]
    for_input, for_weight, for_bias = mask
    forward, backward = passes(trainable(build(), for_weight, for_bias), draw(*size, grad=for_input))
    assert forward == 2 * products + results
    assert backward == 2 * products * (for_input + for_weight) + results * for_bias


@settings(deadline=None, max_examples=15)
@given(
    groups=st.integers(2, 4),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    kind=st.sampled_from([nn.Conv2d, nn.ConvTranspose2d]),
)
def test_a_grouped_convolution_costs_what_its_groups_cost_one_by_one(
    groups: int, channels: tuple[int, int], kernel: int, stride: int, kind: Function
) -> None:
    inside, outside = channels
    whole = kind(inside * groups, outside * groups, kernel, stride=stride, groups=groups)
    part = kind(inside, outside, kernel, stride=stride)
    together = passes(whole, draw(2, inside * groups, 6, 6, grad=True))
    alone = passes(part, draw(2, inside, 6, 6, grad=True))
    assert together == (alone[0] * groups, alone[1] * groups)


def test_linear_in_two_and_three_dimensions() -> None:
    by_hand = (2 * 6 * 35 + 6 * 7, 4 * 6 * 35 + 6 * 7)
    assert passes(nn.Linear(5, 7), draw(6, 5, grad=True)) == by_hand
    assert passes(nn.Linear(5, 7), draw(2, 3, 5, grad=True)) == by_hand
    assert passes(nn.Linear(5, 7, bias=False), draw(6, 5)) == (420, 420)


def test_matrix_products_with_a_sum() -> None:
    a, b, c = draw(3, 4), draw(4, 5), draw(3, 5)
    product = 2 * 3 * 4 * 5
    assert count(torch.mm, a, b) == count(torch.einsum, "ij,jk->ik", a, b) == product
    assert count(torch.addmm, c, a, b) == product + 15
    assert count(lambda: torch.addmm(c, a, b, beta=0)) == product
    assert count(lambda: torch.addmm(c, a, b, beta=0.5)) == product + 30
    assert count(lambda: torch.addmm(c, a, b, alpha=2)) == product + 30
    assert count(torch.baddbmm, c[None], a[None], b[None]) == product + 15
    assert count(torch.addbmm, c, a.expand(6, 3, 4), b.expand(6, 4, 5)) == 6 * product + 15
    assert count(torch.mv, a, b[:, 0]) == 24
    assert count(torch.dot, a[0], b[:, 0]) == 8


PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.convolution", "aten.convolution_backward")


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(8),
            nn.Linear(8, 24, bias=False),
            nn.Linear(8, 8, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (q @ k.transpose(1, 2)).softmax(-1)
        mixed: Tensor = self.out(functional.gelu(weights @ v))
        return x + mixed


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 5, 3, 2, bias=False)),
         (2, 3, 9, 9)),
        (lambda: nn.Sequential(nn.Linear(6, 9, bias=False), nn.Tanh(), nn.Linear(9, 2, bias=False)), (4, 6)),
        (Transformer, (2, 5, 8)),
    ],
)  # fmt: skip
def test_products_agree_with_torch_and_do_not_disturb_it(build: Function, size: tuple[int, ...]) -> None:
    module = build()

    def step() -> None:
        module(draw(*size)).sum().backward()

    with FlopCounterMode(display=False) as alone:
        step()
    with FlopCounterMode(display=False) as around, ExecutedOps() as meter:
        step()
    products = sum(meter.by_operator.get(name, 0) for name in PRODUCTS)
    assert products == alone.get_total_flops() == around.get_total_flops() > 0
    assert meter.total > products
