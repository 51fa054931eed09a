"""`budgeted data`: fetch a data set, look at every sample of one, or see what it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn
from tyro.conf import Positional, arg

from budgeted import streams
from budgeted.budget import format_bytes
from budgeted.errors import BudgetedError
from budgeted.streams.bongard import Pictures, facts_of, task_starts
from budgeted.streams.bongard.sets import PUBLISHED, Published
from budgeted.streams.check import check, check_files
from budgeted.streams.entry import Entry, split_options
from budgeted.streams.picture import draw
from budgeted.streams.picture_mark import drawn_here
from budgeted.streams.registry import fetch_files, find

_LOOK = 64
"""pixels at which pictures are looked at where no size is said: what is bad does not depend on it"""


@dataclass(frozen=True)
class Data:
    """Fetch a data set, check every sample of one, or see what it is and how its classes arrive.

    Examples: budgeted data fetch cifar10; budgeted data check folder:photos; budgeted data info digits --seed 2
    """

    what: Annotated[Positional[Literal["fetch", "check", "info"]], arg(metavar="WHAT")]
    """fetch: from its official address, resumed where it was cut. check: decode all of it. info: facts, picture."""
    dataset: Annotated[Positional[str], arg(metavar="NAME")]
    """A name of `budgeted list datasets`, a folder, or any other that `budgeted run --dataset` takes."""
    data: Path | None = None
    """Folder with the data sets; the user's cache folder if not given."""
    size: int | None = None
    """Side in pixels to which pictures are resized."""
    resize: Literal["squash", "crop"] = "squash"
    """How a picture becomes a square: squash, or crop (its middle)."""
    test_share: float = 0.2
    """The share of each class that is set aside for testing, where the data have no test part."""
    stream: str = "gaussian"
    """With info: in which order samples arrive."""
    seed: int = 1
    """With info: seed of the order."""
    picture: Path | None = None
    """With info: where to write the picture; NAME.png if not given."""
    show: int = 20
    """With check: how many bad samples are named; all are counted."""
    json: bool = False
    """Print JSON for a script; info then draws only if --picture is given."""

    def run_(self) -> None:
        {"fetch": self._fetch, "check": self._check, "info": self._info}[self.what]()

    @property
    def _folder(self) -> Path:
        return self.data.expanduser() if self.data is not None else streams.default_data_dir()

    # -- fetch ---------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        entry = find(split_options(self.dataset)[0])
        if entry.licence and not self.json:
            print(f"licence: {entry.licence} ({entry.home})")
        if not entry.downloads:
            raise BudgetedError(f"{self.dataset} cannot be fetched: {entry.by_hand or 'it needs no download'}")
        with _bar(DownloadColumn(), TransferSpeedColumn()) as show:
            fetch_files(entry, self._folder, show)
        loaded = self._load(entry)
        facts = {"name": self.dataset, "folder": str(self._folder), **_sizes(loaded)}
        print(json.dumps(facts) if self.json else f"{self.dataset} is in {self._folder}: {_counted(loaded)}")

    # -- check ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        entry = find(split_options(self.dataset)[0])
        right, wrong = check_files(entry, self._folder)
        if wrong:
            raise BudgetedError(wrong[0])
        loaded = self._load(entry, look=True)
        with _bar(MofNCompleteColumn()) as show:
            total = len(loaded.train_images) + len(loaded.test_images)
            report = check(loaded, entry.info, lambda count: show(count, total))
        if self.size is None and entry.info is None and any(width != height for width, height in report.sizes):
            report.odd["pictures that are no squares: a run needs --size PIXELS"] = sum(
                count for (width, height), count in report.sizes.items() if width != height
            )
        if len(report.sizes) > 1 and self.size is None and entry.info is None:
            smallest, largest = min(report.sizes), max(report.sizes)
            report.odd[
                f"sizes from {smallest[0]}x{smallest[1]} to {largest[0]}x{largest[1]}: a run needs --size PIXELS"
            ] = len(report.sizes)
        if self.json:
            found = {"looked_at": report.looked_at, "bad": report.bad, "odd": report.odd, "files": right}
            print(json.dumps(found, indent=1))
        else:
            for path in right:
                print(f"{path}: checksum right")
            for line in report.bad[: self.show]:
                print(f"bad: {line}")
            for line in report.lines():
                print(f"odd: {line}")
            print(f"{report.looked_at:,} samples looked at, {len(report.bad):,} bad; {_counted(loaded)}")
        if report.bad:
            raise BudgetedError(
                f"{len(report.bad):,} of {report.looked_at:,} samples of {self.dataset} are bad: mend or remove them, "
                "or let `budgeted run --skip-bad` pass over them"
            )

    def _load(self, entry: Entry, look: bool = False) -> streams.Dataset:
        sized = entry.info is None or entry.resizes
        if self.size is not None and self.size < 1:
            raise BudgetedError(f"--size must be 1 or more, got {self.size}")
        size = self.size or (_LOOK if look and entry.info is None else None)
        if self.size is not None and not sized:
            raise BudgetedError(f"{self.dataset} has images of one size: leave --size out")
        return streams.load(
            self.dataset,
            self.data,
            size=size,
            resize=self.resize,
            test_share=self.test_share,
            on_demand=True if sized else None,
            skip_bad=look,
        )

    # -- info ----------------------------------------------------------------------------------------------------

    def _info(self) -> None:
        name, _ = split_options(self.dataset)
        if name in PUBLISHED:
            self._bongard(PUBLISHED[name])
            return
        entry = find(name)
        facts: dict[str, Any] = {"name": self.dataset, "home": entry.home, "licence": entry.licence}
        facts["downloads"] = [
            {"address": source.url, "bytes": source.size, "md5": source.md5}
            for source in (entry.downloads[0] if entry.downloads else ())
        ]
        try:
            loaded = self._load(entry)
        except streams.DataMissing as missing:
            if entry.info is None:
                raise
            facts["official"] = _sizes_of(entry.info)
            facts["missing"] = str(missing)
            loaded = None
        if loaded is not None:
            facts.update(_sizes(loaded))
            facts["picture"] = self._draw(loaded)
        print(json.dumps(facts, indent=1) if self.json else "\n".join(_lines(facts)))

    def _bongard(self, published: Published) -> None:
        """What the published problems really are, whatever is asked about them; pictures need not be there."""
        try:
            parts = published.problems(published.folder(self._folder))
        except streams.DataMissing as missing:
            remedy = find(f"{published.name}-pn").by_hand
            raise BudgetedError(f"{published.name} is not in {self._folder} (looked for {missing}): {remedy}") from None
        found, starts = facts_of(*parts), task_starts(parts[0])
        pictures = Pictures(published.folder(self._folder))
        absent = len(pictures.missing([problem for part in parts for problem in part]))
        if self.json:
            known = {"name": published.name, "home": published.home, **dataclasses.asdict(found)}
            print(json.dumps({**known, "tasks_start_at": starts, "missing_pictures": absent}, indent=1))
            return
        print("\n".join([published.title, *found.lines(), f"tasks start at {', '.join(map(str, starts))}"]))
        print(f"{absent:,} of the pictures are not in {pictures.folder}" if absent else "all pictures are there")
        print(f"home: {published.home}")
        print(f"questions about them: {published.name}-pn, {published.name}-ca")

    def _draw(self, loaded: streams.Dataset) -> str | None:
        if self.json and self.picture is None:
            return None
        path = self.picture or Path(f"{streams.short_name(self.dataset)}.png")
        if self.picture is None and path.exists() and not drawn_here(path):
            raise BudgetedError(f"{path} is there already and none of ours: say where to draw, with --picture FILE.png")
        order = "arrival" if loaded.sequential else self.stream
        draw(loaded, streams.stream_of(loaded, order, self.seed), path)
        return str(path)


def _sizes_of(info: streams.DatasetInfo) -> dict[str, Any]:
    return {
        "classes": info.classes,
        "input": list(info.input_shape),
        "train": info.train_size,
        "test": info.test_size,
        "domains": info.domains,
    }


def _sizes(loaded: streams.Dataset) -> dict[str, Any]:
    per_class = np.bincount(loaded.train_labels, minlength=loaded.classes)
    return {
        **_sizes_of(loaded.info),
        "class_names": list(loaded.class_names),
        "of_a_class": [int(per_class.min()), int(per_class.max())],
        "mean": list(loaded.mean),
        "std": list(loaded.std),
        "decoded_on_demand": not isinstance(loaded.train_images, np.ndarray),
    }


def _counted(loaded: streams.Dataset) -> str:
    info = loaded.info
    return f"{info.train_size:,} training and {info.test_size:,} test samples of {info.classes:,} classes"


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    known = facts.get("official", facts)
    counts = f"{known['classes']:,} classes, {known['train']:,} training and {known['test']:,} test samples"
    domains = f", {known['domains']} domains" if known["domains"] > 1 else ""
    yield f"{facts['name']}: {counts} of {'x'.join(map(str, known['input']))}{domains}"
    if "class_names" in facts:
        names = facts["class_names"]
        low, high = facts["of_a_class"]
        yield f"classes: {', '.join(names[:12])}{' …' if len(names) > 12 else ''}; {low:,} to {high:,} samples of each"
        yield "pixels: " + ("decoded when they are used" if facts["decoded_on_demand"] else "held in memory")
    for key in ("home", "licence", "missing"):
        if facts.get(key):
            yield f"{key}: {facts[key]}"
    for each in facts["downloads"]:
        size = "" if each["bytes"] is None else f", {format_bytes(each['bytes'])}"
        yield f"download: {each['address']}{size}{', md5 ' + each['md5'] if each['md5'] else ''}"
    if facts.get("picture"):
        yield f"picture: {facts['picture']}"


@contextmanager
def _bar(*columns: Any) -> Iterator[Any]:
    """A bar on a terminal; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)
