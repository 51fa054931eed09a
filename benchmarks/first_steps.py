"""What a learner's first steps take beside its later ones: CPU time of steps 1 to 20 over that of 20 among 100 to 200.

A batch grows from one sample to sixteen and the head from one class to ten, as in every run. ER, Vanilla, CRAM, aL-SAR
with its answer replaced by "nothing", and aL-SAR as it is, whose later steps are also shorter because they freeze.
Every method has processes of its own, in turns, with two learners each. The first is a run as it comes. In the second
torch has made its kernels for all batch sizes already, which it does once in a process, with this package or without.
What of the first steps goes to finding prices is printed by itself, as is the ratio per operation that was charged
(rule real).

    python benchmarks/first_steps.py --json results/timing/first_steps.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from budgeted import models
from budgeted.freezing import StepPrices, StepView
from budgeted.freezing.adaptive import AdaptivePrefix
from budgeted.freezing.policies import NO_BLOCKS
from budgeted.learner import DataFacts, Learner
from budgeted.learner.settings import Settings
from budgeted.methods import method
from budgeted.runs.environment import environment

NOTHING_FROZEN = ", nothing frozen"
METHODS = ("er", "vanilla", "cram", f"al-sar{NOTHING_FROZEN}", "al-sar")
FIRST, LATER = 20, (100, 200)
SAMPLES, SHAPE = 220, (3, 32, 32)
TARGET = 1.5


@contextlib.contextmanager
def timed_pricing() -> Iterator[list[float]]:
    """CPU seconds of whatever is asked of prices, and of looking at a model whose head has grown."""
    spent, inside = [0.0], [False]

    def timed(name: str) -> Any:
        asked = getattr(StepPrices, name)

        def ask(*given: Any) -> Any:
            if inside[0]:
                return asked(*given)
            inside[0], begin = True, time.process_time()
            try:
                return asked(*given)
            finally:
                inside[0] = False
                spent[0] += time.process_time() - begin

        return mock.patch.object(StepPrices, name, ask)

    with contextlib.ExitStack() as stack:
        for name in ("of", "saved", "most", "to_feature", "chain", "reading", "forget"):
            stack.enter_context(timed(name))
        yield spent


class NothingFrozen(AdaptivePrefix):
    """Weighs every batch as aL does, keeps its averages, and then freezes nothing."""

    def decide(self, view: StepView) -> frozenset[int]:
        super().decide(view)
        return NO_BLOCKS


def run(name: str, network: str) -> dict[str, float]:
    """One learner over a stream; milliseconds of a step."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (SAMPLES, *SHAPE), dtype=np.uint8))
    labels = rng.permutation(np.arange(SAMPLES) % 10)
    facts = DataFacts(SHAPE, (0.5,) * 3, (0.25,) * 3, classes=10)
    model = models.build(network, classes=1, input_shape=SHAPE)
    of = method(name.removesuffix(NOTHING_FROZEN))
    learner = Learner(model, of, facts, slots=100, iterations=1.0, settings=Settings(), seed=1)
    if name.endswith(NOTHING_FROZEN):
        learner.freezing.policy = NothingFrozen()
    seconds, operations, pricing = [0.0], [0.0], [0.0]  # at the end of every step
    with timed_pricing() as spent_on_prices:
        for image, label in zip(images, labels, strict=True):
            steps, spent, priced, begin = learner.steps, learner.ledger.spent.real, pricing[-1], time.process_time()
            learner.learn(image, int(label))
            elapsed, done = time.process_time() - begin, learner.steps - steps
            if not done:
                seconds[-1] += elapsed
            for number in range(1, done + 1):  # several steps of one sample share what it took
                seconds.append(seconds[-1] + elapsed / done)
                operations.append(operations[-1] + (learner.ledger.spent.real - spent) / done)
                pricing.append(priced + (spent_on_prices[0] - priced) * number / done)
    a, b = LATER
    later, rate = (seconds[b] - seconds[a]) / (b - a), (operations[b] - operations[a]) / (seconds[b] - seconds[a])
    return {
        "first_20_ms": 1e3 * seconds[FIRST] / FIRST,
        "of_them_prices_ms": 1e3 * pricing[FIRST] / FIRST,
        "later_ms": 1e3 * later,
        "ratio": seconds[FIRST] / FIRST / later,
        "ratio_per_operation": rate / (operations[FIRST] / seconds[FIRST]),
    }


def both(name: str, network: str) -> list[dict[str, float]]:
    """The first learner of a new process, and the second."""
    command = [sys.executable, __file__, "--network", network, "--one", name]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: list[dict[str, float]] = json.loads(printed)
    return found


def median(runs: list[dict[str, float]]) -> dict[str, Any]:
    found: dict[str, Any] = {key: statistics.median(each[key] for each in runs) for key in runs[0]}
    return {**found, "ratios": sorted(each["ratio"] for each in runs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet32")
    parser.add_argument("--rounds", type=int, default=5, help="processes of every method")
    parser.add_argument("--one", choices=METHODS, help="just this one, in this process, as JSON")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.one:
        print(json.dumps([run(arguments.one, arguments.network) for _ in range(2)]))
        return
    rounds = [{name: both(name, arguments.network) for name in METHODS} for _ in range(arguments.rounds)]
    record: dict[str, Any] = {"machine": environment(1, "cpu"), "target": TARGET, "network": arguments.network}
    print(f"{'CPU ms of a step, medians':43} first 20  prices   later   ratio  (least to most)  per operation")
    for which, number in (("first in its process", 0), ("second in its process", 1)):
        record[which] = {name: median([each[name][number] for each in rounds]) for name in METHODS}
        for name, found in record[which].items():
            print(
                f"{name}, {which}".ljust(44)
                + f"{found['first_20_ms']:7.1f} {found['of_them_prices_ms']:7.1f} {found['later_ms']:7.1f}"
                f" {found['ratio']:7.2f}  ({found['ratios'][0]:.2f} to {found['ratios'][-1]:.2f})"
                f" {found['ratio_per_operation']:8.2f}"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
