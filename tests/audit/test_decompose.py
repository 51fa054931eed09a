"""Operators that torch decomposes: activations, norms, losses, by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.audit.helpers import Function, draw, passes, trainable


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (functional.relu, 1, 1),
        (functional.sigmoid, 1, 3),  # gradient * y * (1 - y)
        (functional.tanh, 1, 3),  # gradient * (1 - y * y)
        (functional.silu, 2, 6),  # x * sigmoid(x);  s * g * (1 + x * (1 - s)), s recomputed
        (functional.gelu, 5, 11),  # 0.5 * x * (1 + erf(x * sqrt(0.5)))
        (lambda x: functional.gelu(x, approximate="tanh"), 9, 18),
        (functional.hardswish, 5, 7),
        (functional.leaky_relu, 3, 3),  # compare, multiply, select
        (lambda x: functional.softmax(x, -1), 5, 4),  # maximum, subtract, exp, sum, divide
        (lambda x: functional.dropout(x, 0.3), 3, 1),  # draw, scale, multiply
    ],
)
def test_activations_per_element(function: Function, forward: int, backward: int) -> None:
    assert passes(function, draw(10, 8, grad=True)) == (80 * forward, 80 * backward)


@pytest.mark.parametrize(
    ("mask", "train", "evaluate"),
    # Per element, per channel. Forward in training: var_mean 4n + 2C, rsqrt(var + eps) 2C, four steps of n,
    # running mean 3C, running variance 4C.
    [
        ((True, True, True), (9, 6), (5, 4)),
        ((True, False, False), (9, 5), (1, 3)),
        ((False, True, True), (4, 1), (4, 3)),
        ((False, False, True), (1, 0), (1, 0)),
    ],
)
def test_batch_norm(mask: tuple[bool, bool, bool], train: tuple[int, int], evaluate: tuple[int, int]) -> None:
    n, channels = 4 * 6 * 25, 6
    layer = trainable(nn.BatchNorm2d(6), *mask[1:])
    image = draw(4, 6, 5, 5, grad=mask[0])
    expected = train[0] * n + train[1] * channels
    assert passes(layer, image) == (8 * n + 11 * channels + 1, expected)  # and num_batches_tracked
    image.grad = layer.weight.grad = layer.bias.grad = None
    expected = evaluate[0] * n + evaluate[1] * channels
    assert passes(layer.eval(), image) == (4 * n + 4 * channels, expected)


def test_layer_and_group_norm() -> None:
    n, rows = 80, 10
    assert passes(nn.LayerNorm(8), draw(10, 8, grad=True)) == (8 * n + 4 * rows, 14 * n + rows)
    assert passes(trainable(nn.LayerNorm(8), False, False), draw(10, 8, grad=True))[1] == 11 * n + rows
    assert passes(nn.LayerNorm(8), draw(10, 8)) == (8 * n + 4 * rows, 5 * n)
    n, planes, groups = 4 * 6 * 25, 4 * 6, 4 * 3
    image = draw(4, 6, 5, 5, grad=True)
    assert passes(nn.GroupNorm(3, 6), image) == (8 * n + 4 * groups, 7 * n + 11 * groups + 10 * planes)


def test_norms_count_the_same_in_channels_last_and_half_precision() -> None:
    layer, image = nn.BatchNorm2d(6), draw(4, 6, 5, 5)
    plain = passes(copy.deepcopy(layer), image.clone().requires_grad_())
    last = image.to(memory_format=torch.channels_last).requires_grad_()
    assert passes(copy.deepcopy(layer), last) == plain
    assert passes(copy.deepcopy(layer).bfloat16(), image.bfloat16().requires_grad_()) == plain


def test_cross_entropy_by_hand() -> None:
    scores, target = draw(10, 8, grad=True), torch.arange(10) % 8
    n, rows = 80, 10
    log_softmax = (5 * n + rows, 4 * n)
    assert passes(lambda x: functional.log_softmax(x, -1), scores) == log_softmax
    scores.grad = None
    nll = (8 * rows + 1, n + 4 * rows + 1)
    assert passes(lambda x: functional.nll_loss(x, target), scores) == nll
    scores.grad = None
    both = (log_softmax[0] + nll[0], log_softmax[1] + nll[1])
    assert passes(lambda x: functional.cross_entropy(x, target), scores) == both
