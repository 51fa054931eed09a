"""Pools, by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tests.audit.helpers import Function, count, draw, passes


@pytest.mark.parametrize(
    ("function", "forward", "backward"),
    [
        (lambda x: functional.max_pool2d(x, 3, 2, 1), 32 * 9, 32),
        (lambda x: functional.max_pool2d(x, 2), 32 * 4, 32),
        (lambda x: functional.avg_pool2d(x, 2), 32 * 4 + 32, 32 * 4),
        (lambda x: functional.adaptive_avg_pool2d(x, 1), 128 + 2, 128),
        # Windows of 8 pixels in 3 places: 0-2, 2-5, 5-7, that is 3 + 4 + 3 a row.
        (lambda x: functional.adaptive_avg_pool2d(x, 3), 2 * 100 + 18, 2 * 100),
        (lambda x: functional.adaptive_max_pool2d(x, 3), 2 * 100, 18),
        (lambda x: functional.max_pool1d(x[0], 2), 64 * 2, 64),
    ],
)
def test_pools(function: Function, forward: int, backward: int) -> None:
    assert passes(function, draw(1, 2, 8, 8, grad=True)) == (forward, backward)


def test_a_pool_without_gradient_is_counted_too() -> None:
    line = draw(1, 2, 8)
    assert count(lambda: functional.max_pool1d(line, 2)) == 16
    with torch.inference_mode():
        assert count(lambda: functional.max_pool1d(line, 2)) == 16
