"""ER, DER++, MIR, EWC and GDumb here and in avalanche-lib: accuracy and CPU seconds per iteration, side by side.

One problem per seed is written to a file that both sides read: a stream of five tasks of two classes, every task cut to
whole groups of ten, in one order; a perceptron with 256 hidden units and its first weights; test samples. 10 samples
that arrive and 10 replayed ones in a step, a memory of 200 samples, one pass, plain SGD, no augmentation. Whatever else
differs is a variant by its own name: `OURS` and `THEIRS` say what is set, `COMPARISONS` which are held together, first
the five methods with the closest settings there are, then single differences taken away (ablations).

avalanche's sides have all taken off that can be: no evaluation, no transform, floats made beforehand. Its strategies
are used as they come; where an ablation changes one, the class is a subclass below.

Each side is a process of its own, and they take turns, run by run. How to get avalanche-lib: `against_avalanche.py`.

    python benchmarks/methods_against_avalanche.py --avalanche-python avalanche-env/bin/python --out results/FOLDER
    ... --dataset mnist --data-dir FOLDER --limit 3000 --seeds 10
    ... --dataset mnist --data-dir FOLDER --limit 3000 --seeds 30 --only mir
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from against_avalanche import CLASSES, HIDDEN, NEW, REPLAYED, SLOTS, normalised
from side_by_side import TASKS, Build, OurSide, Problem, keep, measure, work
from side_by_side_tables import Comparison, tables
from torch import Tensor, nn

RATES = {"digits": 0.1, "mnist": 0.01, "fashion-mnist": 0.01}
ALPHA = BETA = 0.5  # of DER++
CANDIDATES = 50  # of MIR
STRENGTH = 100.0  # of EWC: half of it is avalanche's lambda
Plugins = Callable[[], list[Any]]


def one_draw_for_both_terms() -> type[Any]:
    """DER++ whose replayed samples all keep labels and logits, instead of one half each."""
    from budgeted.methods.der import LOGITS, DarkExperienceReplay
    from budgeted.methods.method import Step

    class OneDraw(DarkExperienceReplay):
        def loss(self, step: Step, logits: Tensor) -> Tensor:
            loss = F.cross_entropy(logits[: step.new], step.labels[: step.new])
            if len(logits) == step.new:
                return loss
            replayed = logits[step.new :]
            loss = loss + self.beta * F.cross_entropy(replayed, step.labels[step.new :])
            return loss + self.alpha * F.mse_loss(replayed, step.columns[LOGITS])

    return OneDraw


def of_whole_tasks(fisher: bool, memory: bool) -> type[Any]:
    """EWC whose F is summed over tasks, each computed at the task's last weights on the task's own samples (`fisher`);
    whose memory gets a task's samples when the task has ended (`memory`)."""
    from budgeted.methods.ewc import ElasticWeightConsolidation
    from budgeted.methods.method import Step

    class OfWholeTasks(ElasticWeightConsolidation):
        def begin(self, learner: Any) -> None:
            super().begin(learner)
            self._batches: list[tuple[Tensor, Tensor]] = []
            self._arrived: list[tuple[Tensor, int]] = []
            self._select = learner.selection.select
            if memory:  # nothing enters before the task has ended
                learner.selection.select = lambda *offered: None

        def admits(self, sample: Tensor, row: int) -> Tensor | None:
            self._arrived.append((sample, row))
            return super().admits(sample, row)

        def after_backward(self, step: Step) -> None:
            self._batches.append((step.inputs[: step.new], step.labels[: step.new]))
            super().after_backward(step)

        def end_task(self) -> None:
            summed = {name: values.clone() for name, values in self.importance.items()}
            super().end_task()
            if fisher:
                for images, labels in self._batches:
                    with self.learner.network.aside(), torch.enable_grad():
                        loss = F.cross_entropy(self.learner.network.model(images), labels)
                        gradients = torch.autograd.grad(loss, list(self._parameters().values()))
                    for values, gradient in zip(summed.values(), gradients, strict=True):
                        values.addcmul_(gradient, gradient, value=1 / len(self._batches))
                self.importance = summed
            if memory:
                shut, self.learner.selection.select = self.learner.selection.select, self._select
                self.learner._offer(self._arrived, [None] * len(self._arrived))
                self.learner.selection.select = shut
            self._batches.clear()
            self._arrived.clear()

    return OfWholeTasks


class TheirSide:
    """A strategy of avalanche, on groups of ten (`online`) or on whole tasks."""

    def __init__(
        self,
        plugins: Plugins | None,
        problem: Problem,
        *,
        online: bool = True,
        shuffle: bool = True,
        task_labels: bool = False,
        of_memory: bool = False,
    ) -> None:
        from avalanche.benchmarks import benchmark_from_datasets, split_online_stream
        from avalanche.benchmarks.utils import as_classification_dataset
        from avalanche.benchmarks.utils.data import make_avalanche_dataset
        from avalanche.benchmarks.utils.data_attribute import DataAttribute
        from avalanche.training.supervised import DER, Naive

        pixels = problem.images[0].numel()
        model = problem.start(
            nn.Sequential(nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        )
        given: dict[str, Any] = {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=problem.rate, fused=True),
            "train_mb_size": NEW + REPLAYED if of_memory else NEW,
            "train_epochs": problem.epochs if of_memory else 1,
            "evaluator": None,
        }
        if plugins is None:
            self.strategy = DER(mem_size=SLOTS, batch_size_mem=REPLAYED, alpha=ALPHA, beta=BETA, **given)
        else:
            self.strategy = Naive(plugins=plugins(), **given)
        datasets = []
        for images, labels in map(problem.task, range(TASKS)):
            attributes = [DataAttribute(labels.tolist(), "targets")]
            if task_labels:
                attributes.append(DataAttribute([0] * len(labels), "targets_task_labels", use_in_getitem=True))
            tensors = torch.utils.data.TensorDataset(normalised(images), labels)
            datasets.append(as_classification_dataset(make_avalanche_dataset(tensors, data_attributes=attributes)))
        self._stream = benchmark_from_datasets(train=datasets).train_stream
        self._split: Callable[[list[Any]], Iterable[Any]] = list
        if online:
            self._split = partial(split_online_stream, experience_size=NEW, shuffle=False, drop_last=True)
        self._options = {} if shuffle else {"shuffle": False}

    @property
    def iterations(self) -> int:
        return int(self.strategy.clock.train_iterations)

    def learn(self, task: int) -> None:
        for experience in self._split([self._stream[task]]):
            self.strategy.train(experience, eval_streams=[], **self._options)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        self.strategy.model.eval()
        logits: Tensor = self.strategy.model(normalised(images))
        return logits


def their_er() -> list[Any]:
    from avalanche.training.plugins import ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer

    return [ReplayPlugin(SLOTS, batch_size_mem=REPLAYED, storage_policy=ReservoirSamplingBuffer(SLOTS))]


def their_mir(all_classes: bool = False) -> list[Any]:
    from avalanche.training.plugins import MIRPlugin

    class AllClasses(MIRPlugin):  # type: ignore[misc]
        """Candidates of every class, also of those in the last group."""

        def after_training_exp(self, strategy: Any, **options: Any) -> None:
            self.storage_policy.update(strategy, **options)
            self.replay_loader = iter(
                torch.utils.data.DataLoader(self.storage_policy.buffer, batch_size=self.subsample, shuffle=True)
            )

    return [(AllClasses if all_classes else MIRPlugin)(REPLAYED, SLOTS, CANDIDATES)]


def their_ewc(replay: bool, watched: bool = False) -> list[Any]:
    from avalanche.training.plugins import EWCPlugin

    class Watched(EWCPlugin):  # type: ignore[misc]
        """Notes the largest penalty."""

        largest = 0.0

        def before_backward(self, strategy: Any, **options: Any) -> None:
            before = float(strategy.loss.detach())
            super().before_backward(strategy, **options)
            self.largest = max(self.largest, float(strategy.loss.detach()) - before)

    elastic = (Watched if watched else EWCPlugin)(STRENGTH / 2, mode="online", decay_factor=1.0)
    return [*(their_er() if replay else []), elastic]


def their_gdumb() -> list[Any]:
    from avalanche.training.plugins import GDumbPlugin

    return [GDumbPlugin(SLOTS)]


DARK = {"alpha": ALPHA, "beta": BETA}
ELASTIC = {"strength": STRENGTH}
ALONE: dict[str, Any] = {"batch": NEW, "stream_share": 1.0}
BALANCED = "greedy-balanced"
OURS: dict[str, Build] = {
    "er": partial(OurSide, "er"),
    "der++": partial(OurSide, "der++", own=DARK, selection=BALANCED),
    "der++, one draw for both terms": partial(
        OurSide, "der++", own=DARK, selection=BALANCED, kind=one_draw_for_both_terms
    ),
    "der++, its own reservoir": partial(OurSide, "der++", own=DARK),
    "mir": partial(OurSide, "mir", retrieval={"candidates": CANDIDATES}, selection=BALANCED),
    "mir, rate x 2": partial(OurSide, "mir", retrieval={"candidates": CANDIDATES}, selection=BALANCED, times_rate=2.0),
    "mir, its own reservoir": partial(OurSide, "mir", retrieval={"candidates": CANDIDATES}),
    "ewc": partial(OurSide, "ewc", own=ELASTIC),
    "ewc, memory of whole tasks": partial(
        OurSide, "ewc", own=ELASTIC, kind=partial(of_whole_tasks, fisher=False, memory=True)
    ),
    "ewc, F and memory of whole tasks": partial(
        OurSide, "ewc", own=ELASTIC, kind=partial(of_whole_tasks, fisher=True, memory=True)
    ),
    "ewc without replay": partial(OurSide, "ewc", own=ELASTIC, **ALONE),
    "ewc without replay, F of whole tasks": partial(
        OurSide, "ewc", own=ELASTIC, kind=partial(of_whole_tasks, fisher=True, memory=False), **ALONE
    ),
    "gdumb": partial(OurSide, "gdumb", own={"last_rate": 1.0}),
    "gdumb, its own cosine": partial(OurSide, "gdumb"),
}
THEIRS: dict[str, Build] = {
    "er": partial(TheirSide, their_er),
    "er on whole tasks": partial(TheirSide, their_er, online=False),
    "der++": partial(TheirSide, None, task_labels=True),
    "mir": partial(TheirSide, their_mir),
    "mir, candidates of all classes": partial(TheirSide, partial(their_mir, True)),
    "ewc on whole tasks": partial(TheirSide, partial(their_ewc, True), online=False),
    "ewc on groups of ten": partial(TheirSide, partial(their_ewc, True, watched=True)),
    "ewc without replay": partial(TheirSide, partial(their_ewc, False), online=False, shuffle=False),
    "gdumb on whole tasks": partial(TheirSide, their_gdumb, online=False, of_memory=True),
}
METHODS = (
    Comparison("ours: er", "theirs: er"),
    Comparison("ours: der++", "theirs: der++"),
    Comparison("ours: mir", "theirs: mir"),
    Comparison("ours: ewc", "theirs: ewc on whole tasks"),
    Comparison("ours: gdumb", "theirs: gdumb on whole tasks"),
)
ABLATIONS = (
    Comparison("ours: der++, one draw for both terms", "theirs: der++"),
    Comparison("ours: der++, its own reservoir", "ours: der++"),
    Comparison("ours: mir, rate x 2", "theirs: mir"),
    Comparison("ours: mir, rate x 2", "ours: mir"),
    Comparison("ours: mir", "theirs: mir, candidates of all classes"),
    Comparison("ours: mir, rate x 2", "theirs: mir, candidates of all classes"),
    Comparison("theirs: mir", "theirs: mir, candidates of all classes"),
    Comparison("ours: mir, its own reservoir", "ours: mir"),
    Comparison("theirs: er on whole tasks", "theirs: er"),
    Comparison("theirs: ewc on whole tasks", "theirs: er on whole tasks"),
    Comparison("ours: ewc", "ours: er"),
    Comparison("ours: ewc, memory of whole tasks", "theirs: ewc on whole tasks"),
    Comparison("ours: ewc, memory of whole tasks", "ours: ewc"),
    Comparison("ours: ewc, F and memory of whole tasks", "theirs: ewc on whole tasks"),
    Comparison("ours: ewc", "theirs: ewc on groups of ten"),
    Comparison("ours: ewc without replay", "theirs: ewc without replay"),
    Comparison("ours: ewc without replay, F of whole tasks", "theirs: ewc without replay"),
    Comparison("ours: gdumb, its own cosine", "ours: gdumb"),
)
KINDS = {"Methods": METHODS, "Ablations": ABLATIONS}


def versions() -> dict[str, str]:
    import avalanche

    return {"avalanche-lib": avalanche.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avalanche-python", help="interpreter of an environment with avalanche-lib")
    parser.add_argument("--dataset", choices=RATES, default="digits")
    parser.add_argument("--data-dir", type=Path, help="where the data set is, if it is not the digits")
    parser.add_argument("--limit", type=int, help="samples in the stream; all of them if not given")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each variant: at least two")
    parser.add_argument("--only", default="", help="only comparisons whose first name has this in it, such as mir")
    parser.add_argument("--out", type=Path, help="folder for DATASET.json, DATASET.md and DATASET_runs.jsonl")
    parser.add_argument("--again", type=Path, help="a DATASET.json: make its tables anew from the runs beside it")
    parser.add_argument("--work", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(*{"ours": (OURS, None), "theirs": (THEIRS, versions)}[arguments.work])
        return
    if arguments.seeds < 2:
        parser.error("a spread needs at least two seeds")
    if arguments.again:
        tables(json.loads(arguments.again.read_text()), arguments.again, KINDS)
        return
    if not arguments.avalanche_python or not arguments.out:
        parser.error("give --avalanche-python and --out; against_avalanche.py --help says how to get the first")
    from budgeted import models, streams

    dataset = streams.load(arguments.dataset, arguments.data_dir)
    pythons = {"ours": sys.executable, "theirs": arguments.avalanche_python}
    runs, found = measure(
        {side: [python, __file__, "--work", side] for side, python in pythons.items()},
        [pair for pair in (*METHODS, *ABLATIONS) if arguments.only in pair.first],
        dataset,
        lambda seed: models.build("mlp", classes=CLASSES, input_shape=dataset.input_shape, seed=seed),
        seeds=range(arguments.seeds),
        limit=arguments.limit,
        rate=RATES[arguments.dataset],
    )
    record = {
        "dataset": arguments.dataset,
        "limit": arguments.limit,
        "seeds": arguments.seeds,
        "settings": {
            "tasks": TASKS,
            "slots": SLOTS,
            "new": NEW,
            "replayed": REPLAYED,
            "sgd_learning_rate": RATES[arguments.dataset],
            "alpha": ALPHA,
            "beta": BETA,
            "candidates": CANDIDATES,
            "strength": STRENGTH,
        },
        "versions": found,
    }
    name = f"{arguments.dataset}{'_' if arguments.only else ''}{arguments.only}.json"
    keep(runs, record, arguments.out / name, KINDS)


if __name__ == "__main__":
    main()
