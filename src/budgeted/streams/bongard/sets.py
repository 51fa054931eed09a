"""The Bongard sets by name: questions of one kind over drawn or published problems, as a data set of a stream.

The key of a question, and so the class of a sample, is its concept. Published problems come in an order of five tasks,
which are the domains of the set: `--stream domain` goes by them, `--stream arrival` keeps the published order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams.bongard.drawn import PIXELS, TASKS, DrawnBongard, drawn_bongard
from budgeted.streams.bongard.items import HOI, OPENWORLD, SHORT, Kind, Wording, every_triple, items_of
from budgeted.streams.bongard.pictures import Pictures
from budgeted.streams.bongard.problem import Item, Problem
from budgeted.streams.bongard.published import read_hoi, read_openworld
from budgeted.streams.bongard.questions import Questions, held, words_of
from budgeted.streams.bongard.tasks import task_starts
from budgeted.streams.dataset import DataMissing, Dataset, DatasetInfo, Images, Request
from budgeted.streams.entry import Entry
from budgeted.streams.orders import Indices

PROBLEM = "questions"
"""the problem that is learned from these sets"""
CLIP_MEAN, CLIP_STD = (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)
SIDE = 336
"""pixels of a published picture's side, as LLaVA-1.5 reads it"""
_PLACES = {"pn": 5, "ca": 4}


@cache
def drawn_world(seed: int = 1) -> DrawnBongard:
    """The drawn problems that `bongard-drawn-pn` and `bongard-drawn-ca` ask about, and known ones for before them."""
    return drawn_bongard(seed, known=1500, train=20, test=10)


@dataclass(frozen=True)
class Published:
    """A published set: its files, and how its questions are worded."""

    name: str
    title: str
    order: int
    """the published order that is at hand"""
    read: Callable[[Path], tuple[Problem, ...]]
    wording: Wording
    concepts: int
    train: int
    test: int
    home: str

    def problems(self, folder: Path, order: int | None = None) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
        """To train and to test on."""
        train = self.file(folder, f"{self.title}_train_seed{order or self.order}.json")
        return self.read(train), self.read(self.file(folder, f"{self.title}_test.json"))

    def folder(self, data_dir: Path) -> Path:
        """Where its files are."""
        for name in (self.name, self.title):
            if (data_dir / name).is_dir():
                return data_dir / name
        return data_dir

    def file(self, folder: Path, name: str) -> Path:
        places = [at / f"{name}{end}" for at in (folder / "ma_splits", folder) for end in ("", ".gz")]
        for place in places:
            if place.is_file():
                return place
        raise DataMissing(str(places[0]))


PUBLISHED = {
    each.name: each
    for each in (
        Published(
            "bongard-hoi", "Bongard-HOI", 2, read_hoi, HOI, 50, 3604, 617, "https://github.com/NVlabs/Bongard-HOI"
        ),
        Published(
            "bongard-openworld", "Bongard-OpenWorld", 1, read_openworld, OPENWORLD, 10, 193, 69,
            "https://github.com/joyjayng/Bongard-OpenWorld",
        ),
    )
}  # fmt: skip


def _read_drawn(kind: Kind, request: Request) -> Dataset:
    world = drawn_world()
    train, test = (items_of(part, kind, SHORT) for part in (world.train, world.test))
    hold = partial(held, picture=world.picture, pixels=PIXELS)
    return _dataset(request.info, train, test, hold)


def _read_published(published: Published, kind: Kind, request: Request) -> Dataset:
    folder = published.folder(request.data_dir)
    order = request.options.get("order", str(published.order))
    if not order.isdigit():
        raise BudgetedError(f"{published.name}?order={order}: give the number of a published order, such as 2")
    asked = request.options.get("items", "published")
    if asked not in ("published", "every"):
        raise UnknownName("choice of items", asked, ("published", "every"))
    problems = published.problems(folder, int(order))
    pictures = Pictures(folder, request.size or SIDE)
    absent = pictures.missing([problem for part in problems for problem in part])
    if absent:
        more = f" and {len(absent) - 1:,} more pictures" if len(absent) > 1 else ""
        raise DataMissing(f"{pictures.path(absent[0])}{more}")
    make = items_of if asked == "published" else every_triple
    train, test = (make(part, kind, published.wording) for part in problems)
    info = replace(request.info, input_shape=(3, pictures.pixels, pictures.pixels))
    return _dataset(info, train, test, partial(Questions, picture=pictures.picture, pixels=pictures.pixels))


def _dataset(info: DatasetInfo, train: Sequence[Item], test: Sequence[Item], samples: Callable[..., Images]) -> Dataset:
    every = [*train, *test]
    longest = max((words_of(item) for item in every), key=lambda text: len(text.encode()))
    concepts = tuple(sorted({item.concept for item in every}))
    number = {concept: index for index, concept in enumerate(concepts)}
    starts = task_starts(train)
    found = replace(
        info, classes=len(concepts), train_size=len(train), test_size=len(test), longest_text=longest, domains=TASKS
    )

    def labels(items: Sequence[Item]) -> Indices:
        return np.array([number[item.concept] for item in items], np.int64)

    task_of = np.searchsorted(starts, np.arange(len(train)), side="right") - 1
    of_concept = {item.concept: int(task) for item, task in zip(train, task_of, strict=True)}
    text = len(longest.encode())
    return Dataset(
        found,
        concepts,
        samples(train, text=text),
        labels(train),
        samples(test, text=text),
        labels(test),
        task_of.astype(np.int64),
        np.array([of_concept.get(item.concept, 0) for item in test], np.int64),
        tuple(f"task {task + 1}" for task in range(TASKS)),
    )


def _info(name: str, classes: int, side: int, kind: Kind, train: int, test: int, longest: str) -> DatasetInfo:
    return DatasetInfo(
        name, classes, (3, side, side), train, test, CLIP_MEAN, CLIP_STD, flips=False, domains=TASKS,
        problem=PROBLEM, pictures=_PLACES[kind], longest_text=longest,
    )  # fmt: skip


def _specimen(kind: Kind, wording: Wording, words: Sequence[str], sentence: str = "") -> str:
    """About the longest text of a set, for a plan before the data are there."""
    actions = (*[words[0]] * 7, *(list(words[1:]) * 7)[:7]) if words else ()
    problem = Problem("", "", ("",) * 14, actions, sentence)
    return max((words_of(item) for item in items_of([problem], kind, wording)), key=len)


def _drawn_entry(kind: Kind) -> Entry:
    times = 2 if kind == "pn" else 1
    longest = _specimen(kind, SHORT, ("violet", "orange", "azure", "lime"))
    info = _info(f"bongard-drawn-{kind}", 30, PIXELS, kind, times * 600, times * 300, longest)
    return Entry(info, partial(_read_drawn, kind), licence="drawn here, from a seed")


def _published_entry(published: Published, kind: Kind) -> Entry:
    sentences = published.wording is OPENWORLD
    words: tuple[str, ...] = () if sentences else ("transporting", "inspecting", "straddling", "holding")
    longest = _specimen(kind, published.wording, words, "x" * 120 if sentences else "")
    times = 2 * published.wording.rounds if kind == "pn" else 1
    sizes = times * published.train, times * published.test
    files = f"{published.title}_train_seed{published.order}.json and {published.title}_test.json"
    return Entry(
        _info(f"{published.name}-{kind}", published.concepts, SIDE, kind, *sizes, longest),
        partial(_read_published, published, kind),
        by_hand=f"put the published {files} and its folder images/ into {published.name}/ there",
        resizes=True,
        home=published.home,
        options=("order", "items"),
    )


_KINDS: tuple[Kind, ...] = ("pn", "ca")
ENTRIES = (
    *(_drawn_entry(kind) for kind in _KINDS),
    *(_published_entry(published, kind) for published in PUBLISHED.values() for kind in _KINDS),
)
