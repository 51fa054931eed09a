"""What a recipe costs before it starts: compute of training and of evaluations, and hours of one core of this machine.

An estimate that takes no data and no dry run: compute that a run may spend, or its iterations at the price of a plain
step, nothing frozen (the optimizer and methods that run more beside it come on top: `budgeted costs`); evaluations on
all their test images, though those of classes not met yet are left out. Hours follow from the speed of a ResNet-20
step, measured here and now in CPU seconds, so that other work on the machine does not change it; other networks have
other speeds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F

from budgeted import models, streams
from budgeted.bench.speed import seconds_of
from budgeted.bench.sweep_table import length, said_time
from budgeted.bench.text_tables import counted
from budgeted.budget import format_compute, parse_compute, total
from budgeted.freezing.step_prices import StepPrices
from budgeted.runs.config import RunConfig

FLOP_OF_A_MAC = 2
_REFERENCE = ("resnet20", (3, 32, 32), 10)
_TIMED_STEPS = 4


@dataclass(frozen=True)
class RecipeCost:
    """Of some runs together, under rule real."""

    training: int = 0
    evaluation: int = 0
    runs: int = 0
    unpriced: int = 0
    """runs of networks that read something else than pictures"""

    def __add__(self, other: RecipeCost) -> RecipeCost:
        return RecipeCost(
            self.training + other.training, self.evaluation + other.evaluation, self.runs + other.runs,
            self.unpriced + other.unpriced,
        )  # fmt: skip

    @property
    def total(self) -> int:
        return self.training + self.evaluation

    def seconds(self, rate: float) -> float:
        return seconds_of(self.total, self.runs, rate)

    def said(self, rate: float) -> str:
        text = (
            f"{counted(self.runs, 'run')}: about {format_compute(self.training, 'real')} of training and "
            f"{format_compute(self.evaluation, 'real')} of evaluation, {said_time(self.seconds(rate))} of one "
            f"core of this machine (at {rate / 1e9:.0f} GFLOP/s, the speed of a ResNet-20 step here)"
        )
        return text + (f"; not priced: {self.unpriced}" if self.unpriced else "")


def cost_of(runs: Iterable[RunConfig]) -> RecipeCost:
    return sum(map(_cost, runs), RecipeCost())


def _cost(config: RunConfig) -> RecipeCost:
    info, samples = streams.known_info(config.dataset), length(config)
    if info is None or samples is None or len(info.input_shape) != 3 or config.network.startswith("llava"):
        return RecipeCost(0, 0, 1, 1)
    forward, step = price(config.network, info.input_shape, info.classes or 1)
    if config.compute is None:
        training = round(step * config.batch_size * samples * (1 if config.iterations is None else config.iterations))
    else:
        given = parse_compute(config.compute)
        training = given.amount * (FLOP_OF_A_MAC if given.rule == "paper" else 1)
    images = min(config.eval_samples or info.test_size, info.test_size)
    return RecipeCost(training, forward * images * -(-samples // config.eval_every), 1)


@cache
def price(model: str, shape: tuple[int, ...], classes: int) -> tuple[int, int]:
    """Operations of one picture: forward, and forward with backward; traced without computing."""
    with torch.device("meta"):
        network = models.build(model, classes=classes, input_shape=shape).train()
        prices = StepPrices(network, loss=None)
        example = prices.forward([torch.empty(2, *shape)])
    step = prices.of(example, frozenset())
    forward = total(step.forward).real // step.batch
    return forward, forward + total(step.backward).real // step.batch


def rate() -> float:
    """Operations in a CPU second of a training step, on one thread."""
    name, shape, classes = _REFERENCE
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        network = models.build(name, classes=classes, input_shape=shape).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        optimizer = torch.optim.Adam(network.parameters(), fused=True)
        images = torch.randn(16, *shape).to(memory_format=torch.channels_last)
        labels = torch.arange(16) % classes
        seconds = []
        for _ in range(_TIMED_STEPS):
            begin = time.process_time()
            optimizer.zero_grad()
            F.cross_entropy(network(images), labels).backward()
            optimizer.step()
            seconds.append(time.process_time() - begin)
    finally:
        torch.set_num_threads(before)
    return 16 * price(name, shape, classes)[1] / min(seconds)
