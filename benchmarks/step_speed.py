"""What a learner's step costs beside a bare PyTorch loop that does the same training, in CPU time on one thread.

Two comparisons, each in pairs that take turns, so that a change of the machine's speed meets both alike:

- ER's step against the bare loop's: 8 samples arrive and are stored, 8 more are drawn, one step. That is the most
  bookkeeping per step that ER can have; at one iteration per sample eight steps share the same stores.
- aL-SAR's step with nothing frozen against the bare loop's that draws its 16 from the memory alone: one sample
  arrives and is stored, one step. The adaptive policy does all of its work (feature gradient, criterion, Fisher traces
  in every fourth step), then its answer is replaced by "nothing".

The median of the pairs counts. A median cannot see what happens in every fourth step alone, so the mean of the two
kinds of step, weighted as they come, is printed beside it. Where the time goes is measured afterwards, in steps of
their own, because the timers cost something too.

    python benchmarks/step_speed.py
    python benchmarks/step_speed.py --model mlp --channels 1 --size 28 --augment 0
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bare_loop import bare_replay
from torch import Tensor

from budgeted import models
from budgeted.freezing import StepView
from budgeted.freezing.adaptive import AdaptivePrefix
from budgeted.freezing.policies import NO_BLOCKS
from budgeted.learner import DataFacts, Learner
from budgeted.learner.settings import Settings
from budgeted.methods import METHODS
from budgeted.problems.augment import Augmentation, Augmenter
from budgeted.runs.environment import environment

CLASSES, SLOTS, BATCH, NEW_IN_ER = 10, 500, 16, 8
TARGETS = {"er": 1.03, "al-sar": 1.06}


class NothingFrozen(AdaptivePrefix):
    """Weighs every batch as aL does, keeps its averages, and then freezes nothing."""

    def decide(self, view: StepView) -> frozenset[int]:
        super().decide(view)
        return NO_BLOCKS


class Stopwatch:
    """CPU time by part, each without the parts that are timed inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside: list[float] = []  # time of finished inner parts, for every part under way

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Time a method of one object."""
        setattr(owner, name, self.timed(getattr(owner, name), part))

    def timed(self, run: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            begin = time.process_time()
            try:
                return run(*arguments, **named)
            finally:
                elapsed = time.process_time() - begin
                self.seconds[part] = self.seconds.get(part, 0.0) + elapsed - self._inside.pop()
                if self._inside:
                    self._inside[-1] += elapsed

        return call


def samples(shape: tuple[int, int, int], seed: int) -> Iterator[tuple[Tensor, int]]:
    """Noise without end; of a hundred images, so that making them takes no time."""
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.integers(0, 256, (100, *shape), dtype=np.uint8))
    labels = rng.integers(0, CLASSES, 100).tolist()
    return itertools.cycle(list(zip(images, labels, strict=True)))


def groups(stream: Iterator[tuple[Tensor, int]], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """So many samples at a time, as the bare loop wants them."""
    while True:
        images, labels = zip(*itertools.islice(stream, size), strict=True)
        yield torch.stack(images), torch.tensor(labels)


class Pair:
    """A learner and the bare loop that does the same, from the same weights on the same data."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        shape = (arguments.channels, arguments.size, arguments.size)
        self.new = NEW_IN_ER if name == "er" else 1
        augmentation = Augmentation() if arguments.augment else Augmentation(0, False, 0)
        facts = DataFacts(shape, (0.5,) * shape[0], (0.25,) * shape[0], classes=CLASSES)
        self.learner = Learner(
            models.build(arguments.model, classes=CLASSES, input_shape=shape),
            METHODS[name],
            facts,
            slots=SLOTS,
            iterations=1 / self.new,
            settings=replace(Settings(), augmentation=augmentation),
            seed=1,
        )
        if name == "al-sar":
            self.learner.freezing.policy = NothingFrozen()
        self.stream = samples(shape, seed=2)
        channels_last = self.learner.problem.memory_format == torch.channels_last
        model = models.build(arguments.model, classes=CLASSES, input_shape=shape)
        self.bare = bare_replay(
            model,
            torch.optim.Adam(model.parameters(), lr=self.learner.settings.learner.learning_rate, fused=True),
            Augmenter(augmentation, facts.mean, facts.std, channels_last=channels_last),
            groups(samples(shape, seed=2), self.new),
            shape,
            SLOTS,
            BATCH,
            seed=1,
            replay_only=name != "er",
        )

    def learner_step(self) -> float:
        arriving = list(itertools.islice(self.stream, self.new))
        begin = time.process_time()
        for image, label in arriving:
            self.learner.learn(image, label)
        return time.process_time() - begin

    def bare_step(self) -> float:
        begin = time.process_time()
        next(self.bare)
        return time.process_time() - begin

    def fill(self) -> None:
        """Until the learner's memory is full and replaces; without training. The bare loop's fills as it goes."""
        iterations, self.learner.iterations = self.learner.iterations, 0.0
        for image, label in itertools.islice(self.stream, SLOTS + 4 * BATCH):
            self.learner.learn(image, label)
        self.learner.iterations = iterations


def compare(pair: Pair, pairs: int, warm_up: int) -> dict[str, Any]:
    """Medians over pairs of steps; who goes first changes from pair to pair."""
    learner, bare, refreshing = [], [], []
    for number in range(-warm_up, pairs):
        refreshes = pair.learner.freezing.step % AdaptivePrefix.refresh_every == 0
        if number % 2:
            bare_time, learner_time = pair.bare_step(), pair.learner_step()
        else:
            learner_time, bare_time = pair.learner_step(), pair.bare_step()
        if number >= 0:
            learner.append(learner_time)
            bare.append(bare_time)
            refreshing.append(refreshes)
    by_kind = [[t for t, kind in zip(learner, refreshing, strict=True) if kind is wanted] for wanted in (True, False)]
    weighted = sum(len(times) * statistics.median(times) for times in by_kind if times) / len(learner)
    base = statistics.median(bare)
    return {
        "pairs": pairs,
        "learner_ms": 1e3 * statistics.median(learner),
        "bare_ms": 1e3 * base,
        "ratio": statistics.median(ours / theirs for ours, theirs in zip(learner, bare, strict=True)),
        "weighted_ratio": weighted / base,
        "overhead_ms": 1e3 * statistics.median(ours - theirs for ours, theirs in zip(learner, bare, strict=True)),
    }


def breakdown(pair: Pair, steps: int) -> dict[str, float]:
    """Mean milliseconds of a learner's step by part; the timers' own time is in them."""
    learner, watch = pair.learner, Stopwatch()
    freezing, sampled = learner.freezing, learner.network.sampled
    for owner, name, part in (
        (pair, "learner_step", "loop, loss, optimizer"),
        (learner, "_offer", "store"),
        (learner.retrieval, "draw", "retrieval draw"),
        (learner.memory, "gather", "gather"),
        (learner.problem.augmenter, "vary", "augment"),
        (learner.problem.augmenter, "normalise", "augment"),
        (learner.model, "forward", "model forward"),
        (freezing, "backward", "freezing bookkeeping"),
        (freezing.policy, "decide", "feature gradient and decision"),
        (freezing, "_run", "model backward"),
        (freezing.policy, "after_backward", "Fisher traces"),
        (sampled, "_collect", "sampled gradients"),
        (sampled, "take", "sampled gradients"),
        (sampled, "price", "sampled gradients, price"),
        (learner.retrieval, "observe", "observe"),
        (learner, "_record", "ledger"),
    ):
        if not (owner is freezing.policy and not isinstance(owner, AdaptivePrefix)):  # others are frozen records
            watch.wrap(owner, name, part)
    if learner.retrieval.wants_gradients:
        make_hook = sampled._forward_hook
        sampled._forward_hook = lambda number: watch.timed(make_hook(number), "sampled gradients")  # type: ignore[method-assign]
        sampled.stop()
        sampled.start()  # with the timed hooks
    for _ in range(steps):
        pair.learner_step()
    return {part: 1e3 * seconds / steps for part, seconds in watch.seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet32", help="a network known to budgeted.models")
    parser.add_argument("--channels", type=int, default=3, help="channels of the images")
    parser.add_argument("--size", type=int, default=32, help="height and width of the images")
    parser.add_argument("--augment", type=int, default=1, help="0: no crop, flip and RandAugment on either side")
    parser.add_argument("--pairs", type=int, default=200, help="measured pairs of steps")
    parser.add_argument("--warm-up", type=int, default=8, help="pairs run before measuring")
    parser.add_argument("--breakdown", type=int, default=40, help="steps over which the parts are timed")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    lines = len(inspect.getsource(bare_replay).splitlines())
    print(
        f"{arguments.model}, batch {BATCH}, {arguments.size} px, torch {torch.__version__}, bare loop of {lines} lines"
    )
    results: dict[str, Any] = {"model": arguments.model, "bare_loop_lines": lines, "torch": torch.__version__}
    for name, target in TARGETS.items():
        pair = Pair(name, arguments)
        pair.fill()
        found = compare(pair, arguments.pairs, arguments.warm_up)
        found["parts_ms"] = breakdown(pair, arguments.breakdown)
        found["augment_share"] = found["parts_ms"]["augment"] / found["bare_ms"]
        results[name] = found
        print(
            f"\n{name}: {found['learner_ms']:.2f} ms against {found['bare_ms']:.2f} ms, "
            f"ratio {found['ratio']:.3f} (at most {target}), weighted by kind of step {found['weighted_ratio']:.3f}, "
            f"difference {found['overhead_ms']:.3f} ms"
        )
        for part, spent in sorted(found["parts_ms"].items(), key=lambda item: -item[1]):
            print(f"    {part:30s} {spent:8.3f} ms  {100 * spent / found['bare_ms']:6.2f} % of a bare step")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": environment(1, "cpu"), **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
