"""Screening: one training, evaluated with several averages of its weights at once.

    python benchmarks/screen.py OUT.json --data DIR --seed 11 --set learner.learning_rate=1e-3

An average changes nothing in the training, so one run answers for all of them; each is given the bytes of one in
bfloat16. Protocol cpu-fast with class-balanced retrieval; `--iterations` keeps the executed compute equal. A finished
OUT.json is left alone. `--train-size` and `--mixup` try parts before they are built.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted import streams
from budgeted.bench.recipes import balanced, cpu_fast
from budgeted.learner.evaluate import evaluate
from budgeted.learner.learner import Learner
from budgeted.network import Average
from budgeted.problems import Classification
from budgeted.runs.environment import environment
from budgeted.runs.folder import RunFolder
from budgeted.runs.run import Run

#: name: decay, warm-up
AVERAGES = {"0.99": (0.99, 10.0), "0.995": (0.995, 10.0), "0.998": (0.998, 10.0), "1/9 of the past": (0.99999, 10.0)}
NORMS = "0.995, norms of the memory"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--method", default="vanilla")
    parser.add_argument("--stream", default="gaussian")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--iterations", type=float)
    parser.add_argument("--limit", type=int, default=5000)
    parser.add_argument("--memory", default="5000000B")
    parser.add_argument("--retrieval", default="class-balanced")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--train-size", type=int, help="side in pixels of training images")
    parser.add_argument("--until", type=float, default=1.0, help="share of the stream that --train-size lasts")
    parser.add_argument("--mixup", type=float, default=0.0, help="alpha of mixup")
    given = parser.parse_args()
    if given.out.exists():
        return
    settings = {"learner.average": "bfloat16", **dict(pair.split("=", 1) for pair in given.set)}
    config = replace(
        balanced(cpu_fast(given.method, given.stream, settings=settings)),
        seed=given.seed, data=given.data, batch_size=given.batch_size, limit=given.limit, memory=given.memory,
        retrieval=given.retrieval, iterations=given.iterations or 16 / given.batch_size,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, RunFolder(Path(folder) / "run"), environment(1, "cpu"))
    learner = run.learner
    network, model = learner.network, learner.model
    averages = {name: Average(model, decay=decay, warm_up=warm_up) for name, (decay, warm_up) in AVERAGES.items()}
    inner = network.update
    network.average = None

    if given.train_size or given.mixup:
        vary(learner, given.train_size, given.until, given.mixup)

    def update() -> None:
        inner()
        for each in averages.values():
            each.follow(model)
            each.update(model)

    network.update = update  # type: ignore[method-assign]
    curves: dict[str, list[float]] = {"none": [], **{name: [] for name in averages}, NORMS: []}
    start = time.perf_counter()
    with streams.arriving(run.dataset, run.stream, threads=0) as samples:
        for count, (sample, label) in enumerate(samples, start=1):
            learner.learn(sample, label)
            if count % config.eval_every == 0:
                for name in ("none", *averages):
                    network.average = averages.get(name)
                    if network.average is not None:
                        network.average.follow(model)
                    score, _ = evaluate(learner, run.test_images, run.test_labels, run.dataset.classes)
                    curves[name].append(round(100 * score.accuracy, 2))
                network.average = averages["0.995"]
                with norms_of_memory(learner):
                    score, _ = evaluate(learner, run.test_images, run.test_labels, run.dataset.classes)
                curves[NORMS].append(round(100 * score.accuracy, 2))
                network.average = None
                print(count, {name: curve[-1] for name, curve in curves.items()}, flush=True)
    found = {
        "given": {**vars(given), "out": given.out.name, "data": ""},
        "slots": learner.memory.capacity,
        "steps": learner.steps,
        "spent": learner.ledger.spent.real,
        "seconds": time.perf_counter() - start,
        "curves": curves,
        "A_AUC": {name: round(float(np.mean(curve)), 2) for name, curve in curves.items()},
        "A_last": {name: curve[-1] for name, curve in curves.items()},
    }
    part = given.out.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1))
    os.replace(part, given.out)


@contextmanager
def norms_of_memory(learner: Learner, per_class: int = 32) -> Iterator[None]:
    """Inside, batch norm has the statistics of stored samples as they are, not varied, as many of each class."""
    memory, average = learner.memory, learner.network.average
    members = [memory.membership.members(row) for row in range(len(learner.class_labels))]
    slots = np.concatenate([np.asarray(each)[:per_class] for each in members])
    norms = [module for module in learner.model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert average is not None
    known = {name: tensor.clone() for name, tensor in average.weights.items()}
    with torch.no_grad(), average.lent_to(learner.model), learner.network.aside():
        for module in norms:
            module.reset_running_stats()  # into the tensors lent, which are the average's own
            module.momentum = None
        inputs = learner.problem.inputs(memory.gather(slots).samples)
        learner.model.eval()
        for module in norms:
            module.train()
        learner.model(inputs)
    for module in norms:
        module.momentum = 0.1
    yield
    for name, tensor in known.items():
        average.weights[name].copy_(tensor)


def vary(learner: Learner, size: int | None, until: float, mixup: float) -> None:
    """Smaller training images, and mixtures of two."""
    problem = learner.problem
    assert isinstance(problem, Classification)
    inputs_of, loss_of, share = problem.inputs, problem.loss, 1.0

    def inputs(samples: Any, generator: np.random.Generator | None = None) -> Tensor:
        nonlocal share
        found = inputs_of(samples, generator)
        if generator is None:
            return found
        if size and learner.arrived < until * (problem.samples or 0):
            found = F.interpolate(found, size=(size, size), mode="area").contiguous(memory_format=torch.channels_last)
        if mixup:
            share = float(generator.beta(mixup, mixup))
            found = share * found + (1 - share) * found.flip(0)
        return found

    def loss(outputs: Tensor, given: Any, rows: Tensor) -> Tensor:
        return share * loss_of(outputs, given, rows) + (1 - share) * loss_of(outputs, given, rows.flip(0))

    problem.inputs = inputs  # type: ignore[method-assign]
    if mixup:
        problem.label_smoothing = 1e-12  # no closed form
        problem.loss = loss  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
