"""What shapes that were not met before cost: a text loop with 32 lengths, and the first steps of a learner.

1. A small BERT is trained on batches whose lengths differ, in the user's own loop: plainly, and under
   `AdaptiveFreezing` with a policy that freezes nothing, so that nothing is saved and all that is left is what the
   plug-in itself takes. Both loops take turns step by step, so that a change of the machine's speed meets both alike.
   What the first trace and those of the second and third length take is in the sum, and printed by itself.
2. A learner meets a batch that grows sample by sample and a head that grows class by class. Its first 20 steps
   against the steps 100 to 200, in CPU time per step and per operation charged (rule real): ER, aL-SAR with its answer
   replaced by "nothing", and aL-SAR as it is, whose later steps are also shorter because they freeze. What of the
   first 20 steps goes to traces and to what is learnt from them is printed by itself.
3. What a price at a new shape takes, by itself.

    python benchmarks/new_shapes.py --json results/timing/new_shapes.json
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from budgeted import AdaptiveFreezing, models
from budgeted.freezing import StepPrices, StepView
from budgeted.freezing.adaptive import AdaptivePrefix
from budgeted.freezing.policies import NO_BLOCKS
from budgeted.freezing.step_prices import Forward
from budgeted.learner import DataFacts, Learner
from budgeted.learner.settings import Settings
from budgeted.methods import method
from budgeted.runs.environment import environment

LENGTHS = tuple(range(16, 48))
BATCH, WORDS = 16, 1000
METHODS = (("er", True), ("al-sar", False), ("al-sar", True))
TARGETS = {"text loop": 1.03, "first steps": 1.5, "new shape, ms": 1.0}


def bert(layers: int, width: int) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * width,
        vocab_size=WORDS, num_labels=4,
    )  # fmt: skip
    return BertForSequenceClassification(config).train()


def text_loop(layers: int, width: int, rounds: int) -> dict[str, Any]:
    """Every length comes `rounds` times, in an order drawn anew each time."""
    plain = bert(layers, width)
    frozen = copy.deepcopy(plain)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=1e-4) for net in (plain, frozen)]
    drawing = random.Random(3)
    order = [length for _ in range(rounds) for length in drawing.sample(LENGTHS, len(LENGTHS))]
    freezing = AdaptiveFreezing(frozen, optimizers[1], policy="none")
    times: tuple[list[float], list[float]] = ([], [])

    def step(which: int, words: torch.Tensor, labels: torch.Tensor) -> None:
        begin = time.process_time()
        optimizers[which].zero_grad()
        loss = nn.functional.cross_entropy((frozen if which else plain)(input_ids=words).logits, labels)
        if which:
            freezing.backward(loss)
        else:
            loss.backward()
        optimizers[which].step()
        times[which].append(time.process_time() - begin)

    for number, length in enumerate(order):
        words, labels = torch.randint(0, WORDS, (BATCH, length)), torch.randint(0, 4, (BATCH,))
        for which in (0, 1) if number % 2 else (1, 0):
            step(which, words, labels)
    beyond = [ours - theirs for theirs, ours in zip(*times, strict=True)]
    return {
        "layers": layers,
        "width": width,
        "steps": len(order),
        "plain_seconds": sum(times[0]),
        "ours_seconds": sum(times[1]),
        "ratio": sum(times[1]) / sum(times[0]),
        "first_three_lengths_seconds": sum(beyond[:3]),
        "ratio_without_them": sum(times[1][3:]) / sum(times[0][3:]),
    }


@contextlib.contextmanager
def timed_pricing() -> Iterator[list[float]]:
    """CPU seconds of finding the prices of shapes that were not met before."""
    spent, find = [0.0], StepPrices._at

    def timed(self: StepPrices, forward: Forward) -> Any:
        begin = time.process_time()
        try:
            return find(self, forward)
        finally:
            spent[0] += time.process_time() - begin

    with mock.patch.object(StepPrices, "_at", timed):
        yield spent


class NothingFrozen(AdaptivePrefix):
    """Weighs every batch as aL does, keeps its averages, and then freezes nothing."""

    def decide(self, view: StepView) -> frozenset[int]:
        super().decide(view)
        return NO_BLOCKS


def first_steps(name: str, network: str, size: int, freezes: bool = True) -> dict[str, Any]:
    """Batches grow from one sample to sixteen and the head from one class to ten, as in every run."""
    shape = (3, size, size)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (220, *shape), dtype=np.uint8))
    labels = rng.permutation(np.arange(220) % 10)
    facts = DataFacts(shape, (0.5,) * 3, (0.25,) * 3, classes=10)
    model = models.build(network, classes=1, input_shape=shape)
    learner = Learner(model, method(name), facts, slots=100, iterations=1.0, settings=Settings(), seed=1)
    if not freezes:
        learner.freezing.policy = NothingFrozen()
    seconds, operations = [0.0], [0.0]  # at the end of every step
    with timed_pricing() as pricing:
        for image, label in zip(images, labels, strict=True):
            steps, spent, begin = learner.steps, learner.ledger.spent.real, time.process_time()
            learner.learn(image, int(label))
            elapsed, done = time.process_time() - begin, learner.steps - steps
            executed = learner.ledger.spent.real - spent
            seconds += [seconds[-1] + elapsed * (number + 1) / done for number in range(done)]
            operations += [operations[-1] + executed * (number + 1) / done for number in range(done)]
            if learner.steps <= 20:
                priced = pricing[0]
    first, later = seconds[20] / 20, (seconds[200] - seconds[100]) / 100
    rates = operations[20] / seconds[20], (operations[200] - operations[100]) / (seconds[200] - seconds[100])
    return {
        "method": name if freezes else f"{name}, nothing frozen",
        "network": network,
        "later_ms": 1e3 * later,
        "first_20_ms": 1e3 * first,
        "ratio": first / later,
        "first_20_pricing_ms": 1e3 * priced / 20,
        "later_ms_per_gflop": 1e12 / rates[1],
        "first_20_ms_per_gflop": 1e12 / rates[0],
        "ratio_per_operation": rates[1] / rates[0],
    }


def new_shape(layers: int, width: int) -> dict[str, float]:
    """Prices of a step at a length that was not met before, against a trace of it."""
    model = bert(layers, width)
    prices = StepPrices(model)
    derived, traced = [], []
    for length in LENGTHS:
        words = torch.zeros(BATCH, length, dtype=torch.long)
        begin = time.process_time()
        forward = prices.forward((words,))
        prices.of(forward, (0, 1)), prices.saved(forward, "real"), prices.to_feature(forward)
        derived.append(time.process_time() - begin)
    for length in LENGTHS[:4]:
        begin = time.process_time()
        fresh = StepPrices(model)
        forward = fresh.forward((torch.zeros(BATCH, length, dtype=torch.long),))
        fresh.of(forward, (0, 1)), fresh.saved(forward, "real"), fresh.to_feature(forward)
        traced.append(time.process_time() - begin)
    return {
        "first_three_ms": 1e3 * sum(derived[:3]),
        "fourth_ms": 1e3 * derived[3],
        "later_median_ms": 1e3 * statistics.median(derived[4:]),
        "fresh_trace_ms": 1e3 * statistics.median(traced),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4, help="of the text model")
    parser.add_argument("--width", type=int, default=256, help="of the text model")
    parser.add_argument("--rounds", type=int, default=16, help="times that every length comes")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = new_shape(arguments.layers, arguments.width)
    print("price at a new length:", {name: round(value, 3) for name, value in shape.items()}, flush=True)
    steps = [first_steps(name, "resnet32", 32, freezes) for name, freezes in METHODS]
    for found in steps:
        print("first steps:", {k: round(v, 2) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
    text = text_loop(arguments.layers, arguments.width, arguments.rounds)
    print("text loop:", {k: round(v, 3) if isinstance(v, float) else v for k, v in text.items()}, flush=True)
    if arguments.json:
        record = {"machine": environment(1, "cpu"), "targets": TARGETS, "new_shape": shape, "first_steps": steps}
        arguments.json.write_text(json.dumps({**record, "text_loop": text}, indent=2) + "\n")


if __name__ == "__main__":
    main()
