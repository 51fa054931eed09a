"""CPU time and compute of training steps with ever more of the first blocks frozen, taking turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np

from budgeted.budget import total
from budgeted.freezing import FrozenStep, NeverFreeze, StepView


class Chosen(NeverFreeze):
    """The benchmark says how many blocks rest."""

    n = 0

    def decide(self, view: StepView) -> frozenset[int]:
        return frozenset(range(type(self).n))


def in_turns(
    step: Callable[[], FrozenStep], prefixes: Iterable[int], rounds: int, seed: int, steps: int = 1
) -> list[dict[str, float]]:
    """A row for every number of frozen blocks: the median over rounds, in an order drawn anew in each of them.

    A turn is `steps` steps one after another, and its time is their mean.
    """
    seconds: dict[int, list[float]] = {n: [] for n in prefixes}
    costs: dict[int, int] = {}
    order = np.random.default_rng(seed)
    for round_number in range(rounds + 2):
        for n in order.permutation(list(seconds)).tolist():
            Chosen.n = n
            start = time.process_time()
            for _ in range(steps):
                done = step()
            elapsed = (time.process_time() - start) / steps
            if round_number >= 2:  # the first rounds trace, price and warm the caches
                seconds[n].append(elapsed)
            costs[n] = total(done.costs.values()).real
    full = statistics.median(seconds[0])
    return [
        {
            "frozen": n,
            "milliseconds": 1e3 * statistics.median(seconds[n]),
            "compute_saved": 1 - costs[n] / costs[0],
            "time_saved": 1 - statistics.median(seconds[n]) / full,
        }
        for n in seconds
    ]
