"""What an experiment is, and the protocols that all of ours share, so that they can be compared.

Two protocols on real CIFAR-10: `cpu` takes 10,000 samples of the stream, about a quarter of an hour on one core,
`cpu_fast` takes 5,000. Both train ResNet-20 (published variant) at one iteration per sample within 5,000,000 bytes, and
evaluate every 500 samples on 200 test images of each class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from budgeted.runs.config import RunConfig


@dataclass(frozen=True)
class Recipe:
    """One experiment: a question, and the runs that answer it."""

    question: str
    runs: tuple[RunConfig, ...]
    prices: Callable[[tuple[RunConfig, ...]], Iterable[str]] | None = None
    """what is said of runs that are too large to be begun by mistake, before they start"""
    measures: Callable[[Path, Path | None], Path] | None = None
    """instead of runs: makes a record below the first folder from data in the second, and says where it is"""
    command: tuple[str, ...] = ()
    """instead of runs: a calculation, as it is typed after `budgeted`"""


def cpu(method: str, stream: str = "gaussian", *, settings: Mapping[str, str] | None = None) -> RunConfig:
    """Protocol `cpu`."""
    return RunConfig(
        method=method,
        dataset="cifar10",
        stream=stream,
        model="resnet20",
        iterations=1.0,
        memory="5000000B",
        limit=10_000,
        eval_every=500,
        eval_samples=2_000,
        settings=dict(settings or {}),
    )


def cpu_fast(method: str, stream: str = "gaussian", *, settings: Mapping[str, str] | None = None) -> RunConfig:
    """Protocol `cpu-fast`: the first to ask, and for screening."""
    return replace(cpu(method, stream, settings=settings), limit=5_000)


def over_seeds(configs: Sequence[RunConfig], seeds: Sequence[int]) -> tuple[RunConfig, ...]:
    """Seed by seed, so that an experiment that is cut short has the same seeds of everything."""
    return tuple(replace(config, seed=seed) for seed in seeds for config in configs)


def at_seeds(runs: Sequence[RunConfig], seeds: Sequence[int]) -> tuple[RunConfig, ...]:
    """The same experiment over other seeds, its own or more; its own if none is given."""
    if not seeds:
        return tuple(runs)
    without = {json.dumps(replace(run, seed=0).to_json(), sort_keys=True): run for run in runs}
    return over_seeds(list(without.values()), list(dict.fromkeys(seeds)))


def balanced(config: RunConfig) -> RunConfig:
    """With every class replayed as often as every other."""
    return replace(config, retrieval="class-balanced")


EQUAL_COMPUTE = "19.83TFLOP"
"""What Vanilla executes on `cpu-fast` at one iteration per sample, under rule `real`."""


def at_equal_compute(config: RunConfig) -> RunConfig:
    """As many iterations as EQUAL_COMPUTE pays for, with everything the method executes; savings are spent."""
    return replace(config, iterations=None, compute=EQUAL_COMPUTE, spend_savings=True)


def at_compute(config: RunConfig, share: float) -> RunConfig:
    """The same with a share of EQUAL_COMPUTE, or a multiple of it."""
    whole = float(EQUAL_COMPUTE.removesuffix("TFLOP"))
    return replace(at_equal_compute(config), compute=f"{share * whole:g}TFLOP")


def with_settings(config: RunConfig, settings: Mapping[str, str]) -> RunConfig:
    return replace(config, settings={**config.settings, **settings})


def in_lower_precision(config: RunConfig) -> RunConfig:
    """Forwards and evaluations in bfloat16, the same operations: two thirds of the time where the processor multiplies
    it, ten times as long where it does not."""
    return replace(with_settings(config, {"learner.autocast": "bfloat16"}), eval_precision="bfloat16")
