"""Iterations per second of ER here and in avalanche-lib: the same network, memory and batch; CPU time on one thread.

A perceptron with 256 hidden units on images of 8 x 8 (the digits that come with this project: 64-256-10) and of 28 x 28
(MNIST's size: 784-256-10), 10 samples that arrive and 10 from a reservoir of 200 in every step, one step per arriving
group, no augmentation. All sides do what their ER does online: take the samples, draw, train, store. The optimizer is
torch's, fused, on all sides: Adam, the default here and in avalanche's example of online replay. `--optimizer sgd`
takes less time on every side, so that more of what is measured is the framework.

- `budgeted`: the learner of this project with its ledger and checks;
- `bare`: the loop of `bare_loop.py`;
- `avalanche`: `Naive` with `ReplayPlugin` on `split_online_stream`, the same uint8 tensors as above turned into floats
  by one function, its default evaluation (the loss), what it prints thrown away. The target is held against this one;
- `avalanche-lean`: the same with all taken off that can be: no evaluation, no transform, floats made beforehand;
- `avalanche-example`: the same with images as torchvision's MNIST gives them, and its ToTensor and Normalize, as in
  avalanche's example. This counts Pillow's and torchvision's time too, which no other side has to spend.

How much faster the learner is depends on which of the three one takes: name it with the number.

Every side is a process of its own, and they take turns in chunks, so that a change of the machine's speed meets all
alike. avalanche-lib is not among this project's dependencies; give it an environment of its own:

    python3 -m venv avalanche-env
    avalanche-env/bin/pip install avalanche-lib
    python benchmarks/against_avalanche.py --avalanche-python avalanche-env/bin/python

On a machine without a GPU this would fetch gigabytes of CUDA, and another torch than the one here. Instead:

    avalanche-env/bin/pip install torch==VERSION                 # the CPU build used here
    echo torch==VERSION > held.txt
    avalanche-env/bin/pip install -c held.txt dill gdown gputil matplotlib psutil qpsolvers scikit-learn tensorboard \\
        torchmetrics tqdm wandb setuptools
    avalanche-env/bin/pip install --no-deps avalanche-lib pytorchcv torchvision==MATCHING
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from side_process import SideProcess
from torch import Tensor, nn

from budgeted.runs.environment import environment

SIZES = (8, 28)
CLASSES, HIDDEN = 10, 256
NEW, REPLAYED, SLOTS = 10, 10, 200
LEARNING_RATE = 3e-4
TARGET = 5.0

Setup = Literal["tensors", "lean", "example"]
Chunk = Callable[[int], int]
"""Takes so many groups of new samples, and says how many training steps that made."""


def stream(samples: int, size: int) -> tuple[Tensor, Tensor]:
    """Noise in bytes, and labels."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (samples, 1, size, size), dtype=np.uint8))
    return images, torch.from_numpy(rng.integers(0, CLASSES, samples))


def budgeted_side(iterations: int, optimizer: str, size: int) -> Chunk:
    from budgeted import models
    from budgeted.learner import DataFacts, Learner
    from budgeted.learner.settings import LearnerSettings, Settings
    from budgeted.methods import METHODS
    from budgeted.problems.augment import Augmentation

    learner = Learner(
        models.build("mlp", classes=CLASSES, input_shape=(1, size, size)),
        METHODS["er"],
        DataFacts((1, size, size), (0.5,), (0.25,), classes=CLASSES),
        slots=SLOTS,
        iterations=1 / NEW,
        settings=Settings(
            LearnerSettings(batch_size=NEW + REPLAYED, optimizer=optimizer, learning_rate=LEARNING_RATE),  # type: ignore[arg-type]
            Augmentation(0, False, 0),
        ),
    )
    images, labels = stream(NEW * iterations, size)
    arriving = iter(list(zip(images, labels.tolist(), strict=True)))

    def chunk(count: int) -> int:
        before = learner.steps
        for _ in range(NEW * count):
            learner.learn(*next(arriving))
        return learner.steps - before

    return chunk


def bare_side(iterations: int, optimizer: str, size: int) -> Chunk:
    from bare_loop import bare_replay

    from budgeted import models
    from budgeted.problems.augment import Augmentation, Augmenter

    images, labels = stream(NEW * iterations, size)
    model = models.build("mlp", classes=CLASSES, input_shape=(1, size, size))
    loop = bare_replay(
        model,
        torch_optimizer(optimizer, model),
        Augmenter(Augmentation(0, False, 0), (0.5,), (0.25,)),
        zip(images.split(NEW), labels.split(NEW), strict=True),
        (1, size, size),
        SLOTS,
        NEW + REPLAYED,
        seed=0,
    )

    def chunk(count: int) -> int:
        for _ in range(count):
            next(loop)
        return count

    return chunk


def avalanche_side(iterations: int, optimizer: str, size: int, setup: Setup = "tensors") -> Chunk:
    warnings.showwarning = lambda *_, **__: None  # of optional solvers and deprecations, one in every iteration
    missing = torchvision_operators()  # needed while torchvision is imported
    from avalanche.benchmarks import benchmark_from_datasets, split_online_stream
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.benchmarks.utils.data import make_avalanche_dataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from avalanche.benchmarks.utils.transform_groups import DefaultTransformGroups
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import Naive
    from torchvision import transforms

    del missing
    images, labels = stream(NEW * iterations, size)
    source: torch.utils.data.Dataset[Any] = torch.utils.data.TensorDataset(images, labels)
    transform: Callable[[Any], Tensor] | None = normalised
    if setup == "lean":
        source, transform = torch.utils.data.TensorDataset(normalised(images), labels), None
    elif setup == "example":
        source = PillowImages(images, labels)
        transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.25,))])
    data = make_avalanche_dataset(
        source,
        data_attributes=[DataAttribute(labels.tolist(), "targets")],
        transform_groups=None if transform is None else DefaultTransformGroups((transform, None)),
    )
    benchmark = benchmark_from_datasets(train=[as_classification_dataset(data)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(size * size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    memory = ReservoirSamplingBuffer(SLOTS)
    strategy = Naive(
        model=model,
        optimizer=torch_optimizer(optimizer, model),
        train_mb_size=NEW,
        train_epochs=1,
        plugins=[ReplayPlugin(SLOTS, batch_size_mem=REPLAYED, storage_policy=memory)],
        **({"evaluator": None} if setup == "lean" else {}),
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


def normalised(images: Tensor) -> Tensor:
    """As the other sides do it."""
    return images.float().div_(255).sub_(0.5).div_(0.25)


class PillowImages(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """Images as torchvision's data sets give them."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images[:, 0]
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self._images[index].numpy()), int(self._labels[index])


def torch_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    kind: type[torch.optim.SGD | torch.optim.Adam] = torch.optim.SGD if name == "sgd" else torch.optim.Adam
    return kind(model.parameters(), lr=LEARNING_RATE, fused=True)


def torchvision_operators() -> torch.library.Library | None:
    """torchvision's wheel is built against CUDA: beside a CPU torch it misses two operators that nobody calls here."""
    if torch.cuda.is_available() or torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


SIDES: dict[str, Callable[[int, str], Chunk]] = {
    "budgeted": budgeted_side,
    "bare": bare_side,
    "avalanche": avalanche_side,
    "avalanche-lean": partial(avalanche_side, setup="lean"),
    "avalanche-example": partial(avalanche_side, setup="example"),
}
AVALANCHE = [name for name in SIDES if name.startswith("avalanche")]


def work(name: str, iterations: int, optimizer: str, size: int) -> None:
    """A side's process: for every number that it reads it runs as many iterations and answers with a line of JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)  # avalanche draws from torch's global generator
    answers = sys.stdout
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        chunk = SIDES[name](iterations, optimizer, size)
        print(
            json.dumps({"torch": torch.__version__, "python": sys.version.split()[0]}),
            file=answers,
            flush=True,
        )
        for line in sys.stdin:
            begin = time.process_time()
            done = chunk(int(line))
            seconds = time.process_time() - begin
            print(json.dumps({"iterations": done, "seconds": seconds}), file=answers, flush=True)
            printed.seek(0)
            printed.truncate()


def worker(name: str, python: str, iterations: int, optimizer: str, size: int) -> SideProcess:
    """One side in an interpreter of its own."""
    work = ["--work", name, "--work-iterations", str(iterations), "--optimizer", optimizer, "--sizes", str(size)]
    return SideProcess(name, [python, __file__, *work])


def compare(pythons: dict[str, str], arguments: argparse.Namespace, size: int) -> dict[str, Any]:
    """All sides in turns, and how many times as fast the learner is."""
    needed = arguments.warm_up + arguments.chunks * arguments.iterations
    sides = [worker(name, python, needed, arguments.optimizer, size) for name, python in pythons.items()]
    for side in sides:
        side.ask(str(arguments.warm_up))
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(arguments.chunks):
        for side in sides:
            done = side.ask(str(arguments.iterations))
            rates[side.name].append(done["iterations"] / done["seconds"])
    results: dict[str, Any] = {"optimizer": arguments.optimizer}
    print(f"images of {size} x {size}, {arguments.optimizer}")
    for side in sides:
        side.end()
        rate = statistics.median(rates[side.name])
        results[side.name] = {"iterations_per_second": rate, "ms": 1e3 / rate, **side.versions}
        print(f"{side.name:18s} {rate:8.0f} iterations/s  {1e3 / rate:7.3f} ms  torch {side.versions['torch']}")
    for name in AVALANCHE:
        if name in rates:
            ratio = statistics.median(
                ours / theirs for ours, theirs in zip(rates["budgeted"], rates[name], strict=True)
            )
            results[f"budgeted / {name}"] = ratio
            print(f"budgeted / {name}: {ratio:.2f}" + (f" (at least {TARGET:g})" if name == "avalanche" else ""))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avalanche-python", help="interpreter of an environment with avalanche-lib")
    parser.add_argument("--chunks", type=int, default=15, help="turns of every side")
    parser.add_argument("--iterations", type=int, default=200, help="of a turn")
    parser.add_argument("--warm-up", type=int, default=100, help="iterations before measuring; fills the memory")
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")
    parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam", help="torch's, fused, on all sides")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="height and width of the images")
    parser.add_argument("--work", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work-iterations", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.work_iterations, arguments.optimizer, arguments.sizes[0])
        return
    pythons = {"budgeted": sys.executable, "bare": sys.executable}
    if arguments.avalanche_python:
        pythons |= dict.fromkeys(AVALANCHE, arguments.avalanche_python)
    else:
        print("without --avalanche-python only this project's side and the bare loop run; --help says how to get it")
    results = {str(size): compare(pythons, arguments, size) for size in arguments.sizes}
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": environment(1, "cpu"), **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
