"""Optimizers by hand, and the same whether plain, foreach or fused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.audit.helpers import Function, count, draw

OPTIMIZERS: list[tuple[Function, dict[str, Any], int, int]] = [
    # class, options, per element, per tensor; after the first step
    (torch.optim.SGD, {}, 2, 0),
    (torch.optim.SGD, {"momentum": 0.9}, 4, 0),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}, 6, 0),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, 6, 0),
    (torch.optim.Adam, {}, 13, 1),
    (torch.optim.Adam, {"weight_decay": 0.1}, 15, 1),
    (torch.optim.Adam, {"amsgrad": True}, 14, 1),
    (torch.optim.AdamW, {"weight_decay": 0.1}, 14, 1),
    (torch.optim.Adagrad, {}, 7, 1),
]


@pytest.mark.parametrize("how", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize(("build", "options", "per_element", "per_tensor"), OPTIMIZERS)
def test_optimizers_count_the_same_however_they_are_run(
    build: Function, options: dict[str, Any], per_element: int, per_tensor: int, how: dict[str, bool]
) -> None:
    parameters = [draw(5, 4, grad=True), draw(7, grad=True)]
    optimizer = build(parameters, lr=0.01, **options, **how)
    steps = []
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        steps.append(count(optimizer.step))
    copied = 2 * 27 if options.get("momentum") else 0  # the first momentum is a copy of the gradient
    by_hand = 27 * per_element + 2 * per_tensor
    assert steps == [by_hand - copied, by_hand, by_hand]


def test_a_fused_step_that_unscales_multiplies_once_more() -> None:
    options: dict[str, Any] = dict.fromkeys(("weight_decay", "momentum", "dampening"), 0.0)

    def step(scale: Tensor | None) -> None:
        found = None if scale is None else torch.zeros(1)
        torch._fused_sgd_([torch.ones(7)], [torch.ones(7)], [], **options, lr=0.1, nesterov=False, maximize=False,
                          is_first_step=True, grad_scale=scale, found_inf=found)  # fmt: skip

    assert (count(step, None), count(step, torch.ones(1))) == (14, 21)


@settings(deadline=None, max_examples=20)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    name=st.sampled_from(["add", "mul", "sqrt", "lerp", "addcmul", "zero", "neg", "norm"]),
    scalar=st.sampled_from([1.0, 0.5]),
)
def test_foreach_counts_the_sum_of_its_tensors(sizes: list[int], name: str, scalar: float) -> None:
    lists = [[torch.ones(n + 1) for n in sizes] for _ in range(3)]
    arity = {"add": 2, "mul": 2, "lerp": 2, "addcmul": 3}.get(name, 1)
    options: dict[str, Any] = {"add": {"alpha": scalar}, "addcmul": {"value": scalar}}.get(name, {})
    tail = (scalar,) if name == "lerp" else ()
    many = getattr(torch, f"_foreach_{name}" if name != "zero" else "_foreach_zero_")
    one = getattr(torch, {"zero": "zero_", "norm": "norm"}.get(name, name))
    each = sum(count(lambda xs=xs: one(*xs, *tail, **options)) for xs in zip(*lists[:arity], strict=True))
    assert count(lambda: many(*lists[:arity], *tail, **options)) == each
