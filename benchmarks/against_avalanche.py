"""Iterations per second of ER here and in avalanche-lib: the same network, memory and batch; CPU time on one thread.

A 784-256-10 perceptron, 10 samples that arrive and 10 from a reservoir of 200 in every step, one step per arriving
group, fused Adam, no augmentation. Both do all that their ER does online: taking the samples, drawing, training,
storing. Avalanche gets its images as floats made beforehand, logs nothing and evaluates nothing; here they are bytes,
as they would be in a stream, and turned into floats in every step. The bare PyTorch loop of `bare_loop.py` runs as a
third.

Every side is a process of its own, and they take turns in chunks, so that a change of the machine's speed meets all
alike. avalanche-lib is not among this project's dependencies; give it an environment of its own:

    python3 -m venv avalanche-env
    avalanche-env/bin/pip install avalanche-lib
    python benchmarks/against_avalanche.py --avalanche-python avalanche-env/bin/python

On a machine without a GPU, install a CPU build of the torch version used here first and hold it with a constraints
file (`pip install -c`), then avalanche-lib, pytorchcv and torchvision with --no-deps and the rest of their requirements
by name: otherwise torch is replaced by another version with some gigabytes of CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SHAPE, CLASSES, HIDDEN = (1, 28, 28), 10, 256
NEW, REPLAYED, SLOTS = 10, 10, 200
LEARNING_RATE = 3e-4
TARGET = 5.0

Chunk = Callable[[int], int]
"""Runs about so many iterations and says how many it were."""


def stream(samples: int) -> tuple[Tensor, Tensor]:
    """Noise in bytes, and labels."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (samples, *SHAPE), dtype=np.uint8))
    return images, torch.from_numpy(rng.integers(0, CLASSES, samples))


def budgeted_side(iterations: int) -> Chunk:
    from budgeted import models
    from budgeted.learner.augment import Augmentation
    from budgeted.learner.learner import DataFacts, Learner
    from budgeted.learner.settings import LearnerSettings, Settings
    from budgeted.methods import method

    learner = Learner(
        models.build("mlp", classes=CLASSES, input_shape=SHAPE),
        method("er"),
        DataFacts(SHAPE, (0.5,), (0.25,), classes=CLASSES),
        slots=SLOTS,
        iterations=1 / NEW,
        settings=Settings(
            LearnerSettings(batch_size=NEW + REPLAYED, learning_rate=LEARNING_RATE), Augmentation(0, False, 0)
        ),
    )
    images, labels = stream(NEW * iterations)
    arriving = iter(list(zip(images, labels.tolist(), strict=True)))

    def chunk(count: int) -> int:
        before = learner.steps
        for _ in range(NEW * count):
            learner.learn(*next(arriving))
        return learner.steps - before

    return chunk


def bare_side(iterations: int) -> Chunk:
    from bare_loop import bare_replay

    from budgeted import models
    from budgeted.learner.augment import Augmentation, Augmenter

    images, labels = stream(NEW * iterations)
    loop = bare_replay(
        models.build("mlp", classes=CLASSES, input_shape=SHAPE),
        Augmenter(Augmentation(0, False, 0), (0.5,), (0.25,)),
        zip(images.split(NEW), labels.split(NEW), strict=True),
        SHAPE,
        SLOTS,
        NEW + REPLAYED,
        seed=0,
    )

    def chunk(count: int) -> int:
        for _ in range(count):
            next(loop)
        return count

    return chunk


def avalanche_side(iterations: int) -> Chunk:
    missing = torchvision_operators()  # kept alive until avalanche has imported torchvision
    warnings.simplefilter("ignore")  # about optional solvers and deprecations, not ours to mend
    from avalanche.benchmarks import benchmark_from_datasets, split_online_stream
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.benchmarks.utils.data import make_avalanche_dataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive

    del missing
    images, labels = stream(NEW * iterations)
    floats = images.float().div_(255).sub_(0.5).div_(0.25)
    targets = DataAttribute(labels.tolist(), "targets")
    data = as_classification_dataset(
        make_avalanche_dataset(torch.utils.data.TensorDataset(floats, labels), data_attributes=[targets])
    )
    benchmark = benchmark_from_datasets(train=[data])
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    memory = ReservoirSamplingBuffer(SLOTS)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True),
        train_mb_size=NEW,
        train_epochs=1,
        plugins=[ReplayPlugin(SLOTS, batch_size_mem=REPLAYED, storage_policy=memory)],
        evaluator=None,
    )
    experiences: Iterator[Any] = iter(
        split_online_stream(benchmark.train_stream, experience_size=NEW, shuffle=False, drop_last=True)
    )

    def chunk(count: int) -> int:
        before = strategy.clock.train_iterations
        for _ in range(count):
            strategy.train(next(experiences), eval_streams=[])
        return int(strategy.clock.train_iterations - before)

    return chunk


def torchvision_operators() -> torch.library.Library | None:
    """torchvision's wheel is built against CUDA: beside a CPU torch it misses two operators that nobody calls here."""
    if torch.cuda.is_available() or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


SIDES: dict[str, Callable[[int], Chunk]] = {
    "budgeted": budgeted_side,
    "avalanche": avalanche_side,
    "bare": bare_side,
}


def work(name: str, iterations: int) -> None:
    """A side's process: for every number that it reads it runs as many iterations and answers with a line of JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # avalanche draws from torch's global generator
    chunk = SIDES[name](iterations)
    print(json.dumps({"torch": torch.__version__, "python": sys.version.split()[0]}), flush=True)
    for line in sys.stdin:
        begin = time.process_time()
        done = chunk(int(line))
        print(json.dumps({"iterations": done, "seconds": time.process_time() - begin}), flush=True)


class Worker:
    """One side in an interpreter of its own."""

    def __init__(self, name: str, python: str, iterations: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, __file__, "--work", name, "--work-iterations", str(iterations)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions = self._answer()

    def run(self, iterations: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{iterations}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print too
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise SystemExit(f"the side {self.name!r} ended: see its error above")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avalanche-python", help="interpreter of an environment with avalanche-lib")
    parser.add_argument("--chunks", type=int, default=15, help="turns of every side")
    parser.add_argument("--iterations", type=int, default=200, help="of a turn")
    parser.add_argument("--warm-up", type=int, default=100, help="iterations before measuring; fills the memory")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    parser.add_argument("--work", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work-iterations", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.work_iterations)
        return
    pythons = {"budgeted": sys.executable, "bare": sys.executable}
    if arguments.avalanche_python:
        pythons["avalanche"] = arguments.avalanche_python
    else:
        print("without --avalanche-python only this project's side and the bare loop run; --help says how to get it")
    needed = arguments.warm_up + arguments.chunks * arguments.iterations
    workers = [Worker(name, python, needed) for name, python in pythons.items()]
    for worker in workers:
        worker.run(arguments.warm_up)
    rates: dict[str, list[float]] = {worker.name: [] for worker in workers}
    for _ in range(arguments.chunks):
        for worker in workers:
            done = worker.run(arguments.iterations)
            rates[worker.name].append(done["iterations"] / done["seconds"])
    results: dict[str, Any] = {}
    for worker in workers:
        worker.end()
        rate = statistics.median(rates[worker.name])
        results[worker.name] = {"iterations_per_second": rate, "ms": 1e3 / rate, **worker.versions}
        print(f"{worker.name:10s} {rate:8.0f} iterations/s  {1e3 / rate:7.3f} ms  torch {worker.versions['torch']}")
    if "avalanche" in results:
        ratios = [ours / theirs for ours, theirs in zip(rates["budgeted"], rates["avalanche"], strict=True)]
        results["ratio"] = statistics.median(ratios)
        print(f"budgeted / avalanche: {results['ratio']:.2f} (at least {TARGET:g})")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
