"""Screening: one training, evaluated with several averages of its weights at once.

    python benchmarks/screen.py OUT.json --data DIR --seed 11 --set learner.learning_rate=1e-3
    python benchmarks/screen.py results/screening                  the records in a folder, as a table

An average changes nothing in the training, so one run answers for all of them; each is given the bytes of an average in
bfloat16. Protocol `screening` (bench/recipes.py); `--size full` takes the network, stream, bytes and compute of the
paper, `third` ResNet-20, a third of the stream, of the steps and of the bytes that are left for samples there. A
finished OUT.json is left alone. `--mixup` tries a part that is not built.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budgeted import streams
from budgeted.bench.recipes import screening
from budgeted.bench.win_recipes import full_size
from budgeted.learner.evaluate import evaluate
from budgeted.learner.learner import Learner
from budgeted.network import Average
from budgeted.problems import Classification
from budgeted.runs.environment import environment
from budgeted.runs.folder import RunFolder
from budgeted.runs.run import Run

#: name: decay, warm-up
AVERAGES = {
    "0.99": (0.99, 10.0),
    "0.998, of a 30th": (0.998, 31.0),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="")
    parser.add_argument("--stream", default="gaussian")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--retrieval", default="class-balanced")
    parser.add_argument("--codec")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--size", choices=("fast", "third", "full"), default="fast")
    parser.add_argument("--mixup", type=float, default=0.0, help="alpha of mixup")
    given = parser.parse_args()
    if given.out.is_dir():
        print(table(given.out))
    elif not given.out.exists():
        screen(given)


def table(folder: Path) -> str:
    """A_AUC and A_last of every record without an average, with that of 0.99, and with one over a 30th of the steps."""
    columns = ("none", "0.99", "0.998, of a 30th")
    lines = ["| record | changed | slots | steps | A_AUC % | A_last % |", "| --- | --- | ---: | ---: | --- | --- |"]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        given = found["given"]
        changed = [*given["set"], *(f"{key}={given[key]}" for key in ("codec", "size") if given.get(key))]
        changed += [f"batch_size={given['batch_size']}"] if given["batch_size"] != 16 else []
        accuracies = (
            " / ".join(f"{found[metric][name]:.1f}" if name in found[metric] else "-" for name in columns)
            for metric in ("A_AUC", "A_last")
        )
        said = ", ".join(changed) or "none"
        lines.append(f"| {path.stem} | {said} | {found['slots']:,} | {found['steps']:,} | {' | '.join(accuracies)} |")
    return "\n".join(lines)


def screen(given: argparse.Namespace) -> None:
    config = replace(
        screening(dict(pair.split("=", 1) for pair in given.set)),
        stream=given.stream, seed=given.seed, data=given.data, batch_size=given.batch_size,
        retrieval=given.retrieval, codec=given.codec,
    )  # fmt: skip
    if given.size == "full":
        size = full_size(config.method)
        config = replace(
            config, model=size.model, limit=None, compute=size.compute, memory=size.memory, eval_every=2_000
        )
    if given.size == "third":
        config = replace(config, limit=16_667, compute="66.1TFLOP", memory="3370000B", eval_every=1_000)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, RunFolder(Path(folder) / "run"), environment(1, "cpu"))
    learner, network = run.learner, run.learner.network
    averages = {name: Average(learner.model, decay=d, warm_up=w) for name, (d, w) in AVERAGES.items()}
    own = None if isinstance(network.average, Average) else network.average  # schedule-free has its own
    network.average = own
    inner = network.update

    def update() -> None:
        inner()
        for each in averages.values():
            each.follow(learner.model)
            each.update(learner.model)

    network.update = update  # type: ignore[method-assign]
    if given.mixup:
        mix(learner, given.mixup)
    curves: dict[str, list[float]] = {}

    respond = learner.method.respond

    def mirrored(model: Any, inputs: Tensor) -> Tensor:
        """The mean of what is answered to a picture and to its mirror image."""
        return respond(model, inputs).softmax(1) + respond(model, inputs.flip(3)).softmax(1)

    def look(name: str) -> None:
        score, _ = evaluate(
            learner, run.tested.images, run.tested.labels, run.dataset.classes, "bfloat16", everything=False
        )
        curves.setdefault(name, []).append(round(100 * score.accuracy, 2))

    start = time.perf_counter()
    with streams.arriving(run.dataset, run.stream, threads=0) as samples:
        for count, (sample, label) in enumerate(samples, start=1):
            learner.learn(sample, label)
            if count % config.eval_every:
                continue
            look("none")
            for name, average in averages.items():
                average.follow(learner.model)
                network.average = average
                look(name)
            learner.method.respond = mirrored  # type: ignore[method-assign]
            look(f"{name}, mirrored")
            learner.method.respond = respond  # type: ignore[method-assign]
            network.average = own
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


def mix(learner: Learner, alpha: float) -> None:
    """Mixtures of two images, and of their losses (Zhang et al. 2018)."""
    problem = learner.problem
    assert isinstance(problem, Classification)
    inputs_of, loss_of, share = problem.inputs, problem.loss, 1.0

    def inputs(samples: Any, generator: np.random.Generator | None = None) -> Tensor:
        nonlocal share
        found = inputs_of(samples, generator)
        if generator is None:
            return found
        share = float(generator.beta(alpha, alpha))
        return share * found + (1 - share) * found.flip(0)

    def loss(outputs: Tensor, given: Any, rows: Tensor) -> Tensor:
        return share * loss_of(outputs, given, rows) + (1 - share) * loss_of(outputs, given, rows.flip(0))

    problem.label_smoothing = 1e-12  # no closed form
    problem.inputs, problem.loss = inputs, loss  # type: ignore[method-assign]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
