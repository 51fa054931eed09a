"""Methods here and in another library, side by side: one problem for both, a process for each, runs in turns.

A problem is a file that both sides read: a stream of five tasks of two classes, every task cut to whole groups of ten,
in one order; a network's first weights; test samples. A side learns task by task and is asked after each.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from against_avalanche import CLASSES, NEW, REPLAYED, SLOTS, torchvision_operators
from side_by_side_tables import Comparison, Runs, runs_beside, tables
from side_process import SideProcess
from torch import Tensor, nn

TASKS = 5


@dataclass(frozen=True)
class Problem:
    """What both sides are given."""

    images: Tensor
    """uint8, in the order of the stream"""
    labels: Tensor
    """classes numbered as they first appear, so that a class's row in the head is the same on both sides"""
    tasks: Tensor
    test_images: Tensor
    test_labels: Tensor
    weights: tuple[Tensor, ...]
    rate: float
    seed: int

    @classmethod
    def read(cls, path: str, rate: float, seed: int) -> Problem:
        with np.load(path) as held:
            given = {name: torch.from_numpy(held[name]) for name in held.files}
        weights = tuple(given.pop(name) for name in sorted(given) if name.startswith("weights"))
        return cls(**given, weights=weights, rate=rate, seed=seed)

    @property
    def epochs(self) -> int:
        """GDumb's passes over the memory for each task: as many steps in all as the stream has groups, about."""
        return round(len(self.labels) / NEW / (TASKS * SLOTS / (NEW + REPLAYED)))

    def task(self, number: int) -> tuple[Tensor, Tensor]:
        return self.images[self.tasks == number], self.labels[self.tasks == number]

    def start(self, model: nn.Module) -> nn.Module:
        with torch.no_grad():
            for parameter, weights in zip(model.parameters(), self.weights, strict=True):
                parameter.copy_(weights)
        return model


class Side(Protocol):
    @property
    def iterations(self) -> int: ...

    def learn(self, task: int) -> None: ...

    def logits(self, images: Tensor) -> Tensor: ...


Build = Callable[[Problem], Side]


class OurSide:
    """The learner of this project, fed sample by sample; a perceptron and no augmentation if nothing else is said."""

    def __init__(
        self,
        name: str,
        problem: Problem,
        *,
        batch: int = NEW + REPLAYED,
        stream_share: float = NEW / (NEW + REPLAYED),
        selection: str | None = None,
        times_rate: float = 1.0,
        network: Callable[[tuple[int, int, int]], nn.Module] | None = None,
        crop_padding: int = 0,
        kind: Callable[[], type[Any]] | None = None,
        own: dict[str, Any] | None = None,
        retrieval: dict[str, Any] | None = None,
    ) -> None:
        from budgeted import models
        from budgeted.learner import DataFacts, Learner
        from budgeted.learner.settings import LearnerSettings, Settings
        from budgeted.methods import METHODS
        from budgeted.problems.augment import Augmentation

        chosen = METHODS[name]() if kind is None else kind()()
        if chosen.stream_share:  # GDumb's batches have no samples of the stream
            chosen = replace(chosen, stream_share=stream_share)
        channels, height, width = problem.images.shape[1:]
        shape = (channels, height, width)
        rate = problem.rate * times_rate
        self._problem = problem
        model = models.build("mlp", classes=CLASSES, input_shape=shape) if network is None else network(shape)
        self._learner = Learner(
            problem.start(model),
            chosen,
            DataFacts(shape, (0.5,), (0.25,), classes=CLASSES),
            slots=SLOTS,
            iterations=1 / NEW,
            settings=Settings(
                LearnerSettings(batch_size=batch, optimizer="sgd", learning_rate=rate, selection=selection),
                Augmentation(crop_padding, False, 0),
                method=(own or {}) | ({"epochs": problem.epochs} if name == "gdumb" else {}),
                retrieval=retrieval or {},
            ),
            seed=problem.seed,
        )

    @property
    def iterations(self) -> int:
        return self._learner.steps

    def learn(self, task: int) -> None:
        images, labels = self._problem.task(task)
        for image, label in zip(images, labels.tolist(), strict=True):
            self._learner.learn(image, label)
        self._learner.end_task()
        self._learner.before_prediction()

    def logits(self, images: Tensor) -> Tensor:
        return self._learner.logits(images)


def write_problem(path: Path, dataset: Any, model: nn.Module, seed: int, limit: int | None) -> None:
    from budgeted.streams.stream import stream_of

    stream = stream_of(dataset, "disjoint", seed, limit=limit, tasks=TASKS)
    assert stream.tasks is not None
    of_task = [np.flatnonzero(stream.tasks == task) for task in range(TASKS)]
    kept = np.concatenate([positions[: len(positions) // NEW * NEW] for positions in of_task])
    indices = stream.indices[kept]
    labels = dataset.train_labels[indices]
    _, first = np.unique(labels, return_index=True)
    rows = np.empty(CLASSES, np.int64)
    rows[labels[np.sort(first)]] = np.arange(CLASSES)
    np.savez(
        path,
        images=dataset.train_images[indices],
        labels=rows[labels],
        tasks=stream.tasks[kept],
        test_images=dataset.test_images,
        test_labels=rows[dataset.test_labels],
        **{f"weights{place}": each.detach().numpy() for place, each in enumerate(model.parameters())},  # type: ignore[arg-type]
    )


def run(build: Build, problem: Problem) -> dict[str, Any]:
    """One pass over the stream, and the accuracy over the classes met so far after every task."""
    torch.manual_seed(problem.seed)  # other libraries draw from the global generators
    random.seed(problem.seed)
    np.random.seed(problem.seed)  # noqa: NPY002
    side = build(problem)
    seconds, iterations, accuracies = [], [], []
    for task in range(TASKS):
        before, begin = side.iterations, time.process_time()
        side.learn(task)
        seconds.append(round(time.process_time() - begin, 6))
        iterations.append(side.iterations - before)
        met = int(problem.task(task)[1].max()) + 1
        asked = problem.test_labels < met
        predicted = side.logits(problem.test_images[asked])[:, :met].argmax(1)
        accuracies.append(int((predicted == problem.test_labels[asked]).sum()) / int(asked.sum()))
    answer = {"accuracies": accuracies, "iterations": iterations, "seconds": seconds}
    penalties = [p.largest for p in getattr(getattr(side, "strategy", None), "plugins", []) if hasattr(p, "largest")]
    return answer | ({"largest_penalty": penalties[0]} if penalties else {})


def work(variants: Mapping[str, Build], versions: Callable[[], dict[str, str]] | None) -> None:
    """A side's process: reads runs, a line of JSON each, and answers with a line of JSON. `versions` are those of the
    other library, which is imported for them."""
    torch.set_num_threads(1)
    warnings.showwarning = lambda *_, **__: None  # of optional solvers and deprecations, one in every iteration
    answers = sys.stdout
    found = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if versions is not None:
        missing = torchvision_operators()
        found |= versions()
        del missing
    print(json.dumps(found), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(io.StringIO()):
            problem = Problem.read(asked["path"], asked["rate"], asked["seed"])
            answer = run(variants[asked["variant"]], problem)
        print(json.dumps(answer), file=answers, flush=True)


def measure(
    sides: Mapping[str, list[str]],
    comparisons: Sequence[Comparison],
    dataset: Any,
    network: Callable[[int], nn.Module],
    *,
    seeds: Sequence[int],
    limit: int | None,
    rate: float,
) -> tuple[Runs, dict[str, Any]]:
    """Every variant on every seed, the sides in turns; a first run of each is thrown away. `sides` are the commands
    that start them, `network` draws the first weights from a seed."""
    variants = list(dict.fromkeys(name for pair in comparisons for name in pair))
    started = {side: SideProcess(side, command) for side, command in sides.items()}
    runs: Runs = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as folder:
        for place, seed in enumerate(seeds):
            path = Path(folder) / "problem.npz"
            write_problem(path, dataset, network(seed), seed, limit)
            for name in variants:
                side, _, variant = name.partition(": ")
                asked = json.dumps({"path": str(path), "rate": rate, "seed": seed, "variant": variant})
                if place == 0:
                    started[side].ask(asked)
                runs[name].append({"variant": name, "seed": seed, **started[side].ask(asked)})
            print(f"seed {place + 1} of {len(seeds)}", file=sys.stderr, flush=True)
    for process in started.values():
        process.end()
    return runs, {side: process.versions for side, process in started.items()}


def keep(runs: Runs, record: dict[str, Any], path: Path, kinds: Mapping[str, Sequence[Comparison]]) -> None:
    """The runs, and what they say, into a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs_beside(path).write_text("".join(json.dumps(row) + "\n" for rows in runs.values() for row in rows))
    tables(record, path, kinds)
