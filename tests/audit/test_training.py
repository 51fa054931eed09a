"""Whole training steps: what autograd adds, what the batch scales, what freezing saves."""

from __future__ import annotations

from torch import nn

from tests.audit.helpers import draw, passes, residual_net, train_step


def test_a_residual_sum_also_adds_its_two_gradients() -> None:
    layer, x = nn.Linear(5, 5, bias=False), draw(3, 5, grad=True)
    leaf = x * 1.0
    forward, backward = passes(lambda: layer(leaf) + leaf)
    assert forward == 2 * 75 + 15
    assert backward == 4 * 75 + 15 + 15  # the sum of both gradients of `leaf`, and the product before it


def test_a_second_backward_adds_to_the_gradients() -> None:
    layer, x = nn.Linear(5, 7), draw(3, 5)
    first, second = passes(layer, x)[1], passes(layer, x)[1]
    assert second == first + 35 + 7


def test_counts_are_linear_in_the_batch_up_to_parameter_sized_work() -> None:
    net = residual_net()
    two, four, six = (train_step(net, batch).total for batch in (2, 4, 6))
    assert four - two == six - four > 0
    rest = two - (four - two)  # what does not grow: 3 batch norms of 8 channels, the mean of the loss
    assert rest == 3 * (8 * (11 + 6) + 1) + 2


def test_a_frozen_prefix_is_really_cheaper() -> None:
    net = residual_net()
    full, parts = train_step(net, 4).by_phase, list(net.children())
    backward = [full["backward"]]
    for frozen in (2, 3, 4):
        kept = [p for part in parts[frozen:] for p in part.parameters()]
        step = train_step(net, 4, inputs=kept).by_phase
        assert step["forward"] == full["forward"]
        backward.append(step["backward"])
    assert backward == sorted(set(backward), reverse=True)
    head = 4 * 8 * 5 * 2 + 4 * 5  # grad weight and grad bias only
    loss = (4 * 20) + (20 + 4 * 4 + 1)
    assert backward[-1] == head + loss
