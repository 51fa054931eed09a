"""Recipes of our own method beside the paper's and class-balanced replay, at the same bytes and executed compute.

Forwards of these runs are in bfloat16, of all methods alike: about a third less time, and the same operations.
"""

from __future__ import annotations

from collections.abc import Callable

from budgeted.bench.protocols import Recipe, over_seeds
from budgeted.runs.config import RunConfig

FULL_COMPUTE = "336.38TFLOP"
"""what Vanilla executes at the paper's size, 171.94 TMAC nominal, under rule `real`"""
LOWER_PRECISION = {"learner.autocast": "bfloat16"}


def full_size(method: str, stream: str = "gaussian") -> RunConfig:
    """The paper's size: ResNet-32, the whole of CIFAR-10, its bytes and compute, all that is saved spent."""
    return RunConfig(
        method=method, dataset="cifar10", stream=stream, model="resnet32", compute=FULL_COMPUTE, memory="7998016B",
        spend_savings=True, eval_every=1_000, eval_precision="bfloat16", settings=LOWER_PRECISION,
    )  # fmt: skip


def win_full_size() -> Recipe:
    disjoint = [full_size(name, "disjoint") for name in ("cram", "vanilla", "al-sar")]
    runs = [*over_seeds([full_size("cram")], (1, 2, 3)), *over_seeds(disjoint, (1,))]
    return Recipe("Our own method at the paper's size and budget: both streams.", tuple(runs))


WIN: dict[str, Callable[[], Recipe]] = {"win-full-size": win_full_size}
