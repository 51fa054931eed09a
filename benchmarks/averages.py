"""One training, evaluated with several averages of its weights at once: which window is best?

    python benchmarks/averages.py OUT.json --data DIR --seed 11 --set learner.learning_rate=1e-3

An average changes nothing in the training, so one run answers for all of them; each is given the bytes of one in
bfloat16. Protocol cpu-fast with class-balanced retrieval; a finished OUT.json is left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from budgeted import streams
from budgeted.bench.recipes import balanced, cpu_fast
from budgeted.learner.evaluate import evaluate
from budgeted.network import Average
from budgeted.runs.environment import environment
from budgeted.runs.folder import RunFolder
from budgeted.runs.run import Run

#: name: decay, warm-up, whether it begins anew when a class comes
AVERAGES = {
    "0.99": (0.99, 10.0, False),
    "0.995": (0.995, 10.0, False),
    "0.998": (0.998, 10.0, False),
    "1/9 of the past": (0.99999, 10.0, False),
    "1/19 of the past": (0.99999, 20.0, False),
    "0.995 anew": (0.995, 10.0, True),
}


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
    averages = {name: Average(model, decay=decay, warm_up=warm_up) for name, (decay, warm_up, _) in AVERAGES.items()}
    inner = network.update
    network.average = None

    classes = 0

    def update() -> None:
        nonlocal classes
        came, classes = len(learner.class_labels) > classes, len(learner.class_labels)
        inner()
        for name, each in averages.items():
            each.follow(model)
            if came and AVERAGES[name][2]:
                each.restart(model)
            each.update(model)

    network.update = update  # type: ignore[method-assign]
    curves: dict[str, list[float]] = {"none": [], **{name: [] for name in averages}}
    start = time.perf_counter()
    with streams.arriving(run.dataset, run.stream, threads=0) as samples:
        for count, (sample, label) in enumerate(samples, start=1):
            learner.learn(sample, label)
            if count % config.eval_every == 0:
                for name in curves:
                    network.average = averages.get(name)
                    if network.average is not None:
                        network.average.follow(model)
                    score, _ = evaluate(learner, run.test_images, run.test_labels, run.dataset.classes)
                    curves[name].append(round(100 * score.accuracy, 2))
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
