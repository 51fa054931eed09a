"""What a data set is: uint8 images [N, C, H, W], int64 labels, and the facts that planning needs.

Labels, domains and times are cheap and there at once. Images may be an array, or anything that makes one when it is
indexed (`lazy.LazyImages`): a run asks for one `sample(i)` at a time and holds no other pixels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from budgeted.errors import BudgetedError
from budgeted.streams.one_line import one_line
from budgeted.streams.orders import Indices, class_order
from budgeted.streams.records import as_sample


class DataError(BudgetedError):
    """A data file that cannot be what it should be."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))  # names and messages in it may come from the file


class DataMissing(DataError):
    """A data set that is not on disk."""


class Images(Protocol):
    """uint8 images [N, C, H, W]: a numpy array, or `lazy.LazyImages`, which decodes what is asked for; or samples of
    several parts, `records.Records`.

    Index with an int, a slice, a list or an index array; `images[:]` is always a numpy array.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Any: ...


@dataclass(frozen=True)
class DatasetInfo:
    """A data set without its data."""

    name: str
    classes: int
    #: (channels, height, width)
    input_shape: tuple[int, int, int]
    train_size: int
    test_size: int
    #: Per channel, of values scaled to 0…1.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    #: Whether a horizontal flip keeps the label (photographs: yes; digits: no).
    flips: bool
    #: Domains that training samples come in (the buckets of CLEAR); 1 for none.
    domains: int = 1
    #: The listing that `class_order` shuffles; empty for label order.
    class_listing: tuple[int, ...] = ()
    #: What is learned from it, unless a run says otherwise.
    problem: str = "classification"
    #: Pictures of one sample.
    pictures: int = 1
    #: The longest text of a sample, where it has one: its bytes are what every sample reserves.
    longest_text: str = ""

    @property
    def nbytes_per_sample(self) -> int:
        """Bytes of one stored sample (uint8); its label is priced by the memory that holds it."""
        channels, height, width = self.input_shape
        return self.pictures * channels * height * width + len(self.longest_text.encode())

    def class_order(self, seed: int) -> Indices:
        """The order in which streams of this seed introduce the classes."""
        return class_order(self.class_listing or self.classes, seed)


@dataclass(frozen=True, eq=False)
class Part:
    """The training or the test samples."""

    images: Images
    labels: Indices
    domains: Indices | None = None
    #: When each sample was made, in any unit that rises.
    times: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Request:
    """What a reader is asked for."""

    info: DatasetInfo
    data_dir: Path
    train: bool = True
    test: bool = True
    #: Side in pixels to which images are resized; None: the data set's own.
    size: int | None = None
    #: How images that are no square of that side become one: see `pixels`.
    resize: str = "squash"
    #: Decode images when they are used; None: only those too many for memory.
    on_demand: bool | None = None
    #: A bad sample is passed over when it arrives (and counted by whoever asks for it) instead of ending the run.
    skip_bad: bool = False
    #: The share of each class that is set aside for testing where the data say nothing of a test part.
    test_share: float = 0.2
    #: What stood behind the `?` of the name.
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set, its pixels in memory or decoded on demand. A part that was not loaded has no samples."""

    #: As for planning, but with the sizes, classes and shape of what was really read.
    info: DatasetInfo
    class_names: tuple[str, ...]
    train_images: Images
    train_labels: Indices
    test_images: Images
    test_labels: Indices
    #: Domain of each sample, ascending in time, or None.
    train_domains: Indices | None = None
    test_domains: Indices | None = None
    domain_names: tuple[str, ...] = ()
    train_times: NDArray[np.float64] | None = None
    #: Whether samples come in one order only, as out of an iterator: then a stream has to take them as they come.
    sequential: bool = False
    #: Labelled samples from before the stream (bucket 0 of CLEAR), never part of it.
    pretraining: Part | None = None

    def sample(self, index: int) -> tuple[Any, int]:
        """One training sample, decoded now: uint8 [C, H, W], or several parts by name; and its label."""
        return as_sample(self.train_images[index]), int(self.train_labels[index])

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def classes(self) -> int:
        return self.info.classes

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.info.input_shape

    @property
    def mean(self) -> tuple[float, ...]:
        return self.info.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.info.std

    @property
    def flips(self) -> bool:
        return self.info.flips

    @property
    def nbytes_per_sample(self) -> int:
        return self.info.nbytes_per_sample


def assemble(
    info: DatasetInfo,
    class_names: Sequence[str],
    train: Part | None,
    test: Part | None,
    domain_names: Sequence[str] = (),
) -> Dataset:
    """A checked `Dataset` from what a reader found."""
    loaded = [part for part in (train, test) if part is not None]
    if not loaded:
        raise BudgetedError(f"{info.name}: neither training nor test samples asked for; leave train or test on")
    channels, height, width = (int(side) for side in loaded[0].images.shape[1:])
    shape = (channels, height, width)
    for part in loaded:
        _check(info.name, part, shape, len(class_names))
    nothing = Part(np.empty((0, *shape), np.uint8), np.empty(0, np.int64))
    train_part, test_part = train or nothing, test or nothing
    found = replace(
        info,
        classes=len(class_names),
        input_shape=shape,
        train_size=len(train_part.labels) if train else info.train_size,
        test_size=len(test_part.labels) if test else info.test_size,
        domains=_count_domains(train_part) if train else info.domains,
        class_listing=info.class_listing if len(info.class_listing) == len(class_names) else (),
    )
    return Dataset(
        found,
        tuple(class_names),
        train_part.images,
        train_part.labels,
        test_part.images,
        test_part.labels,
        train_part.domains,
        test_part.domains,
        tuple(domain_names),
        train_part.times,
    )


def channel_statistics(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact per-channel mean and standard deviation of images scaled to 0…1."""
    values = np.arange(256) / 255.0
    means, deviations = [], []
    for channel in range(images.shape[1]):
        # A histogram of 256 bytes holds all there is to know, without a float copy of the images.
        weights = np.zeros(256, np.int64)
        for start in range(0, len(images), 4096):
            weights += np.bincount(images[start : start + 4096, channel].ravel(), minlength=256)
        mean = float(np.average(values, weights=weights))
        deviation = float(np.sqrt(np.average((values - mean) ** 2, weights=weights)))
        means.append(mean)
        deviations.append(deviation if deviation > 0 else 1.0)  # a blank channel must not divide by zero
    return tuple(means), tuple(deviations)


def default_data_dir() -> Path:
    """Where data sets live unless said otherwise: $BUDGETED_DATA, or a folder in the user's cache."""
    if chosen := os.environ.get("BUDGETED_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "budgeted" / "data"


def wrong_bytes(where: str, expected: str, found: int, remedy: str) -> DataError:
    """The error for a file of the wrong length."""
    return DataError(f"{where}: expected {expected} bytes, found {found:,}: {remedy}")


def _check(name: str, part: Part, shape: tuple[int, int, int], classes: int) -> None:
    if len(part.images) != len(part.labels):
        raise DataError(f"{name}: {len(part.images)} images but {len(part.labels)} labels: fetch the data again")
    if len(part.labels) == 0:
        raise DataError(f"{name}: no samples in one of its parts: fetch the data again")
    if tuple(part.images.shape[1:]) != shape:
        raise DataError(f"{name}: training images are {shape}, test images {tuple(part.images.shape[1:])}")
    low, high = int(part.labels.min()), int(part.labels.max())
    if low < 0 or high >= classes:
        stray = low if low < 0 else high
        raise DataError(f"{name}: label {stray} is outside 0…{classes - 1}: the file is damaged, fetch it again")


def _count_domains(part: Part) -> int:
    return 1 if part.domains is None else len(np.unique(part.domains))
