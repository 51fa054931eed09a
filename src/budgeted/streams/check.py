"""Look at every sample before a run does: what is bad, what is odd, what is there twice.

Bad is what a run would refuse (or pass over with --skip-bad). Odd is what a run takes in a way that is worth knowing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from budgeted.streams.dataset import DataError, Dataset, DatasetInfo
from budgeted.streams.download import md5_of
from budgeted.streams.entry import Entry
from budgeted.streams.files import open_regular
from budgeted.streams.image_file import opened_image, quiet_pillow
from budgeted.streams.lazy import LazyImages
from budgeted.streams.pixels import upright

_ODD_MODES = {"CMYK": "CMYK, read as RGB", "P": "with a palette, read as RGB", "YCCK": "YCCK, read as RGB"}
_AT_ONCE = 256


@dataclass
class Report:
    """What was found."""

    looked_at: int = 0
    bad: list[str] = field(default_factory=list)
    odd: Counter[str] = field(default_factory=Counter)
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """One line for each kind of odd thing."""
        return [f"{count:,} {what}" for what, count in sorted(self.odd.items())]


def check(dataset: Dataset, official: DatasetInfo | None = None, seen: Callable[[int], None] | None = None) -> Report:
    """Decode every sample of a data set that was loaded with `on_demand` and `skip_bad`.

    official: the facts that a named set should have. seen: told of the samples looked at.
    """
    report = Report()
    digests: set[bytes] = set()
    for images in (dataset.train_images, dataset.test_images):
        if isinstance(images, LazyImages):
            _look(images, report, digests, seen, threads=1 if dataset.sequential else 2)
        else:
            report.looked_at += len(images)
    _classes(dataset, report)
    if official is not None:
        for what, here, there in (
            ("training samples", dataset.info.train_size, official.train_size),
            ("test samples", dataset.info.test_size, official.test_size),
            ("classes", dataset.classes, official.classes),
        ):
            if here != there:
                report.odd[f"{what}, where the official set has {there:,}"] = here
    return report


def check_files(entry: Entry, data_dir: Path) -> tuple[list[str], list[str]]:
    """Of the official files that are in `data_dir`: those with the right checksum, and lines about the others."""
    right, wrong = [], []
    for source in {source.path: source for way in entry.downloads for source in way}.values():
        path = data_dir / source.path
        if not path.is_file() or not source.md5:
            continue
        found = md5_of(path)
        if found == source.md5:
            right.append(source.path)
        else:
            wrong.append(f"{path} has md5 {found} instead of {source.md5}: fetch it again")
    return right, wrong


def _look(
    images: LazyImages, report: Report, digests: set[bytes], seen: Callable[[int], None] | None, threads: int
) -> None:
    def one(index: int) -> tuple[str | None, list[str], tuple[int, int] | None, bytes]:
        return _one(images, index)

    quiet_pillow()
    with ThreadPoolExecutor(threads) as pool:
        for found in _in_windows(pool, one, len(images)):
            bad, odd, size, digest = found
            report.looked_at += 1
            if bad is not None:
                report.bad.append(bad)
            report.odd.update(odd)
            if size is not None:
                report.sizes[size] += 1
            if digest:
                if digest in digests:
                    report.odd["samples with the bytes of an earlier one"] += 1
                digests.add(digest)
            if seen is not None:
                seen(report.looked_at)


def _in_windows(pool: ThreadPoolExecutor, function: Callable[[int], Any], count: int) -> Iterator[Any]:
    """A few at a time: a pool that is given all at once keeps all that came of it."""
    indices = iter(range(count))
    while window := list(islice(indices, _AT_ONCE)):
        yield from pool.map(function, window)


def _one(images: LazyImages, index: int) -> tuple[str | None, list[str], tuple[int, int] | None, bytes]:
    odd: list[str] = []
    size: tuple[int, int] | None = None
    digest = b""
    try:
        source = images.source(index)
        if isinstance(source, str | Path):
            with open_regular(source) as file:
                digest = hashlib.file_digest(file, "sha256").digest()[:16]  # type: ignore[arg-type]
        elif isinstance(source, bytes):
            digest = hashlib.sha256(source).digest()[:16]
        if isinstance(source, str | bytes):
            with opened_image(source, images.where(index)) as image:
                size = image.size
                odd = list(_odd(image))
        images[index]
    except DataError as problem:
        return str(problem), odd, size, digest
    except OSError as problem:
        reason = problem.strerror or type(problem).__name__
        return (
            f"{images.where(index)} cannot be read ({reason}): restore it, or take it off the list",
            odd,
            size,
            digest,
        )
    return None, odd, size, digest


def _odd(image: Image.Image) -> Iterator[str]:
    if image.mode in _ODD_MODES:
        yield f"images {_ODD_MODES[image.mode]}"
    if getattr(image, "is_animated", False):
        yield "animated images, of which the first frame is taken"
    if not upright(image):
        yield "images turned upright as their EXIF says"


def _classes(dataset: Dataset, report: Report) -> None:
    train = np.bincount(dataset.train_labels, minlength=dataset.classes)
    test = np.bincount(dataset.test_labels, minlength=dataset.classes)
    without = [dataset.class_names[i] for i in np.flatnonzero((train > 0) & (test == 0))]
    if without:
        names = ", ".join(map(repr, without[:5])) + (" …" if len(without) > 5 else "")
        report.odd[f"classes that never appear in the test part ({names}), so that nothing is known of them"] = len(
            without
        )
