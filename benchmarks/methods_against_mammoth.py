"""ER, DER++, LiDER over DER++ and X-DER here and in Mammoth: accuracy and CPU seconds per iteration, side by side.

As `methods_against_avalanche.py`: one problem per seed that both sides read, five tasks of two classes, 10 samples that
arrive and 10 replayed ones in a step (DER++ and what is over it: 10 for their labels and 10 for their logits), a memory
of 200 samples, one pass, plain SGD. The network is three convolutions without batch norm; what a block puts out is
before the ReLU, which is what Mammoth's LiDER reads. Every image is cropped at random, in the views of X-DER too.

Mammoth is no package: give the folder of its repository. Its models are driven by their own verbs (`meta_begin_task`,
`meta_observe`, `meta_end_task`), and its memory, optimizer and augmentation (kornia) are used as they come. Its data
sets, command line and logging are left out: importing them downloads weights of other networks. Its environment:

    python3 -m venv mammoth-env
    mammoth-env/bin/pip install torch==VERSION                 # the CPU build used here
    mammoth-env/bin/pip install numpy pillow tqdm pyyaml
    mammoth-env/bin/pip install --no-deps torchvision==MATCHING kornia kornia_rs timm==0.9.8
    mammoth-env/bin/pip install --no-deps --editable .         # this project, for the constants of both

    python benchmarks/methods_against_mammoth.py --mammoth FOLDER --mammoth-python mammoth-env/bin/python \\
        --out results/FOLDER
    ... --seeds 30 --only "ours: (er|der|lider)"
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from argparse import Namespace
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from against_avalanche import CLASSES, NEW, REPLAYED, SLOTS, normalised
from side_by_side import TASKS, Build, OurSide, Problem, keep, measure, work
from side_by_side_tables import Comparison, tables
from torch import Tensor, nn

RATE = 0.1
CROP = 4  # pixels around an image of 32, so one around the digits of 8
DARK = {"alpha": 0.5, "beta": 0.5}
LIPSCHITZ = {"target_weight": 0.3, "lipschitz_weight": 0.1}
EXTENDED = {"alpha": 0.3, "beta": 0.8, "consistency": 0.05, "margin": 0.3, "margin_weight": 0.1, "contrasted": 0}


class Convolutions(nn.Sequential):
    """Three, and a linear head, as both sides have it; Mammoth asks for the maps before each ReLU, too."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        channels, height, width = shape
        super().__init__(
            OrderedDict(
                first=nn.Conv2d(channels, 16, 3, 2, 1),
                second=nn.Sequential(nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)),
                third=nn.Sequential(nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1)),
                vector=nn.Sequential(nn.ReLU(), nn.Flatten()),
                head=nn.Linear(32 * (-(-height // 4)) * (-(-width // 4)), CLASSES),
            )
        )

    def forward(self, inputs: Tensor, returnt: str = "out") -> Any:
        if returnt == "out":
            return super().forward(inputs)
        maps = [inputs]
        for block in (self.first, self.second, self.third):
            maps.append(block(maps[-1]))
        return self.head(self.vector(maps[-1])), maps[1:]

    def set_return_prerelu(self, enable: bool) -> None:
        """They always are."""


def drawn(shape: tuple[int, int, int], seed: int) -> nn.Module:
    """With first weights that keep the size of what goes through: torch's own let it shrink, and 140 steps are few."""
    torch.manual_seed(seed)
    network = Convolutions(shape)
    for each in network.modules():
        if isinstance(each, nn.Conv2d):
            nn.init.kaiming_normal_(each.weight, nonlinearity="relu")
            nn.init.zeros_(each.bias)  # type: ignore[arg-type]
    return network


def filled_at_the_end() -> type[Any]:
    """X-DER whose memory gets a task's samples when the task has ended, with the logits of then, as Mammoth's does."""
    from budgeted.methods.x_der import ExtendedDarkExperienceReplay

    class FilledAtTheEnd(ExtendedDarkExperienceReplay):
        def begin(self, learner: Any) -> None:
            super().begin(learner)
            self._arrived: list[tuple[Tensor, int]] = []
            self._select = learner.selection.select
            learner.selection.select = lambda *offered: None  # nothing enters before the task has ended

        def admits(self, sample: Tensor, row: int) -> Tensor | None:
            self._arrived.append((sample, row))
            return super().admits(sample, row)

        def end_task(self) -> None:
            learner: Any = self.learner
            shut, learner.selection.select = learner.selection.select, self._select
            self._newest = learner.answers("retrieval", torch.stack([sample for sample, _ in self._arrived]))
            learner._offer(self._arrived, range(len(self._arrived)))
            learner.selection.select = shut
            self._arrived.clear()
            super().end_task()

    return FilledAtTheEnd


class Tasks:
    """What Mammoth's models ask of a data set."""

    N_CLASSES, N_TASKS, N_CLASSES_PER_TASK, SETTING = CLASSES, TASKS, CLASSES // TASKS, "class-il"

    def __init__(self, problem: Problem) -> None:
        self.SIZE = tuple(problem.images.shape[2:])
        self.train_loader: list[tuple[Tensor, Tensor, Tensor]] = []

    def get_offsets(self, task: int) -> tuple[int, int]:
        return task * self.N_CLASSES_PER_TASK, (task + 1) * self.N_CLASSES_PER_TASK

    def get_normalization_transform(self) -> Any:
        from torchvision import transforms

        return transforms.Normalize((0.5,), (0.25,))

    def get_denormalization_transform(self) -> Any:
        return Namespace(mean=(0.5,), std=(0.25,))


class TheirSide:
    """A model of Mammoth on groups of ten."""

    def __init__(self, name: str, own: dict[str, Any], problem: Problem) -> None:
        from torchvision import transforms

        channels, height, width = problem.images.shape[1:]
        tasks = Tasks(problem)
        crop = transforms.RandomCrop((height, width), padding=CROP * height // 32)
        varied = transforms.Compose([crop, transforms.ToTensor(), tasks.get_normalization_transform()])
        given = {
            "buffer_size": SLOTS, "minibatch_size": REPLAYED, "batch_size": NEW, "lr": problem.rate, "optimizer": "sgd",
            "optim_wd": 0.0, "optim_mom": 0.0, "optim_nesterov": False, "label_perc": 1, "nowand": 1, "debug_mode": 0,
        }  # fmt: skip
        self.iterations, self._problem, self._tasks = 0, problem, tasks
        self._model = mammoth(name)(
            problem.start(Convolutions((channels, height, width))),
            nn.CrossEntropyLoss(),
            Namespace(**given, **own),
            transforms.Compose([transforms.ToPILImage(), varied]),
            dataset=tasks,
        )
        # X-DER's own views change colours, and refuse images of one channel
        self._model.gpu_augmentation = self._model.transform
        self._model.train()

    def learn(self, task: int) -> None:
        images, labels = self._problem.task(task)
        groups = list(zip(images.float().div_(255).split(NEW), labels.split(NEW), strict=True))
        self._tasks.train_loader = [(self._model.transform(each), of_each, each) for each, of_each in groups]
        self._model.meta_begin_task(self._tasks)
        for each, of_each in groups:
            self._model.meta_observe(self._model.transform(each), of_each, each.clone())
            self.iterations += 1
        self._model.meta_end_task(self._tasks)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self._model(normalised(images))
        return logits


def mammoth(name: str) -> Any:
    """A class of Mammoth, by the file that it is in."""
    import importlib

    from models.utils.continual_model import ContinualModel  # type: ignore[import-not-found]

    found = vars(importlib.import_module(f"models.{name}")).values()
    return next(
        each
        for each in found
        if isinstance(each, type) and getattr(each, "NAME", None) == name and issubclass(each, ContinualModel)
    )


def open_mammoth(folder: Path) -> dict[str, str]:
    """Its modules can be imported from here on; its data sets, which would be downloaded, are not there."""
    from importlib.metadata import version

    absent = ModuleType("datasets")
    absent.__dict__.update(get_dataset=None, get_dataset_names=None, get_dataset_config_names=None)
    sys.modules["datasets"] = absent
    sys.path.insert(0, str(folder.resolve()))
    mammoth("er")
    return {name: version(name) for name in ("kornia", "torchvision")}


our = partial(OurSide, network=Convolutions, crop_padding=CROP)
three_parts: dict[str, Any] = {"batch": NEW + 2 * REPLAYED, "stream_share": NEW / (NEW + 2 * REPLAYED)}
OURS: dict[str, Build] = {
    "er": partial(our, "er"),
    "der++": partial(our, "der++", own=DARK, **three_parts),
    "lider": partial(our, "lider", own=DARK | LIPSCHITZ, **three_parts),
    "x-der": partial(our, "x-der", own=EXTENDED, **three_parts),
    "x-der, filled at a task's end": partial(
        our, "x-der", own=EXTENDED, kind=filled_at_the_end, selection="greedy-balanced", **three_parts
    ),
}
THEIR_LIPSCHITZ = {"beta_lip_lambda": 0.3, "alpha_lip_lambda": 0.1, "headless_init_act": "relu", "grad_iter_step": -2}
THEIR_EXTENDED = {
    "alpha": 0.3, "beta": 0.8, "simclr_temp": 5.0, "gamma": 0.85, "simclr_batch_size": 2 * REPLAYED,
    "simclr_num_aug": 2, "lambd": 0.05, "constr_eta": 0.1, "constr_margin": 0.3, "dp_weight": 0,
    "past_constraint": True, "future_constraint": True, "align_bn": False,
}  # fmt: skip
THEIRS: dict[str, Build] = {
    "er": partial(TheirSide, "er", {}),
    "der++": partial(TheirSide, "derpp", DARK),
    "lider": partial(TheirSide, "derpp_lider", DARK | THEIR_LIPSCHITZ),
    "lider, no targets": partial(TheirSide, "derpp_lider", DARK | THEIR_LIPSCHITZ | {"beta_lip_lambda": 0.0}),
    "x-der": partial(TheirSide, "xder", THEIR_EXTENDED),
}
METHODS = tuple(Comparison(f"ours: {name}", f"theirs: {name}") for name in ("er", "der++", "lider", "x-der"))
ABLATIONS = (
    Comparison("ours: x-der, filled at a task's end", "theirs: x-der"),
    Comparison("ours: x-der, filled at a task's end", "ours: x-der"),
    Comparison("ours: lider", "ours: der++"),
    Comparison("theirs: lider", "theirs: der++"),
    Comparison("theirs: lider", "theirs: lider, no targets"),
    Comparison("ours: lider", "theirs: lider, no targets"),
)
KINDS = {"Methods": METHODS, "Ablations": ABLATIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mammoth", type=Path, help="folder of Mammoth's repository")
    parser.add_argument("--mammoth-python", default=sys.executable, help="interpreter of an environment for it")
    parser.add_argument("--dataset", choices=["digits", "mnist", "fashion-mnist"], default="digits")
    parser.add_argument("--data-dir", type=Path, help="where the data set is, if it is not the digits")
    parser.add_argument("--limit", type=int, help="samples in the stream; all of them if not given")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each variant: at least two")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=RATE, help="learning rate")
    parser.add_argument("--only", default="", help="only comparisons whose first name matches this, such as 'x-der'")
    parser.add_argument("--out", type=Path, help="folder for DATASET_SEEDS.json, .md and _runs.jsonl")
    parser.add_argument("--again", type=Path, help="such a .json: make its tables anew from the runs beside it")
    parser.add_argument("--work", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        versions = partial(open_mammoth, arguments.mammoth)
        work(*{"ours": (OURS, None), "theirs": (THEIRS, versions)}[arguments.work])
        return
    if arguments.seeds < 2:
        parser.error("a spread needs at least two seeds")
    if arguments.again:
        tables(json.loads(arguments.again.read_text()), arguments.again, KINDS)
        return
    if not arguments.mammoth or not arguments.out:
        parser.error("give --mammoth and --out")
    from budgeted import streams

    dataset = streams.load(arguments.dataset, arguments.data_dir)
    pythons = {"ours": sys.executable, "theirs": arguments.mammoth_python}
    runs, versions = measure(
        {s: [python, __file__, "--work", s, "--mammoth", str(arguments.mammoth)] for s, python in pythons.items()},
        [pair for pair in (*METHODS, *ABLATIONS) if re.search(arguments.only, pair.first)],
        dataset,
        partial(drawn, dataset.input_shape),
        seeds=range(arguments.first_seed, arguments.first_seed + arguments.seeds),
        limit=arguments.limit,
        rate=arguments.rate,
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
            "sgd_learning_rate": arguments.rate,
            "crop_padding": CROP,
            "der++": DARK,
            "lider": LIPSCHITZ,
            "x-der": EXTENDED,
        },
        "versions": versions,
    }
    name = f"{arguments.dataset}_{arguments.seeds}.json"
    keep(runs, record, arguments.out / name, KINDS)


if __name__ == "__main__":
    main()
