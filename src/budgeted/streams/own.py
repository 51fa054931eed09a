"""One way from a listing to a data set, whatever the container: classes, split, pixels, statistics.

- Classes are the labels of the training samples, in the container's declared order or sorted (numbers by number).
- Where the container says nothing of a test part, `test_share` of each class is set aside: drawn by a fixed seed, at
  least one and never all; a class of one sample has none.
- Pixels are decoded when they are used, unless all of a part fit into `HELD` bytes.
- Mean and deviation of the channels are those of up to `LOOKED_AT` training images, as many of each class, the first
  of each: the same numbers whether images are held or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from budgeted.errors import BudgetedError
from budgeted.streams.dataset import DataError, Dataset, Part, Request, assemble, channel_statistics
from budgeted.streams.lazy import LazyImages
from budgeted.streams.listing import TEST, Listing, in_order
from budgeted.streams.orders import first_of_each_class, random_keys, ranks_in_class
from budgeted.streams.pixels import Pixels, sides, unlike

#: A part whose decoded images take more bytes than this is decoded as it is used.
HELD = 256 * 2**20
#: Training images whose mean and deviation stand for all.
LOOKED_AT = 1024
#: Images whose sizes are all looked at where none was given; above that a size has to be said.
MOST_MEASURED = 20_000


def dataset_of(
    listing: Listing,
    request: Request,
    name: str,
    *,
    channels: int = 3,
    leave_out: Sequence[str] = (),
    statistics: bool = True,
    pretraining: str | None = None,
) -> Dataset:
    """A data set of a listing; `name` is what errors call the container.

    leave_out: classes that are no part of it. statistics: computed; otherwise those of `request.info` stay.
    pretraining: the domain whose training samples come before the stream and are kept apart.
    """
    words = np.array(listing.words, object)
    wanted = np.array([word not in leave_out for word in listing.words])[listing.codes]
    is_test = _is_test(listing, request)
    before = np.zeros(len(listing), bool)
    if pretraining is not None and listing.domains is not None and pretraining in listing.domain_words:
        before = (listing.domains == listing.domain_words.index(pretraining)) & ~is_test
    train_rows = np.flatnonzero(wanted & ~is_test & ~before)
    test_rows = np.flatnonzero(wanted & is_test)
    if len(train_rows) == 0:
        raise DataError(f"{name}: no training samples in it: check the path, the layout or the split")
    met = set(words[np.unique(listing.codes[train_rows])])
    classes = [word for word in listing.declared if word in met] if listing.declared else in_order(met)
    if request.test:
        _check_test(listing, test_rows, met, name)
    if request.size:
        pixels = Pixels(request.size, request.resize, channels)
    else:
        looked_at = np.union1d(train_rows, test_rows) if request.test else train_rows
        side = _common_size(listing, looked_at, request.skip_bad)
        pixels = Pixels(side, request.resize, channels, exact=listing.sequential)
    label_of = np.array([classes.index(word) if word in met else -1 for word in listing.words], np.int64)
    domain_names = in_order(word for word in listing.domain_words if word)
    domain_of = np.array([domain_names.index(word) if word else -1 for word in listing.domain_words], np.int64)

    places = listing.places()

    def part(rows: NDArray[np.int64]) -> Part:
        images = LazyImages(places, _compact(rows), pixels)
        domains = None if listing.domains is None else domain_of[listing.domains[rows]]
        if domains is not None and (outside := domains < 0).any():
            if not outside.all():
                stray = listing.where(int(rows[np.flatnonzero(outside)[0]]))
                raise DataError(f"{stray} is in no domain, others are: use one layout for all")
            domains = None
        return Part(
            images if _on_demand(request, images) else images[:],
            label_of[listing.codes[rows]],
            domains,
            None if listing.times is None else np.array(listing.times[rows]),
        )

    train = part(train_rows) if request.train else None
    test = part(test_rows) if request.test else None
    made = assemble(request.info, classes, train, test, domain_names)
    made = replace(
        made, sequential=listing.sequential, pretraining=part(np.flatnonzero(wanted & before)) if before.any() else None
    )
    if not statistics or train is None:
        return made
    mean, std = _statistics(train, request.skip_bad)
    return replace(made, info=replace(made.info, mean=mean, std=std))


def _is_test(listing: Listing, request: Request) -> NDArray[np.bool_]:
    if listing.parts is not None:
        return np.asarray(listing.parts == TEST)
    return split(listing.codes, request.test_share)


def split(codes: NDArray[np.integer], share: float) -> NDArray[np.bool_]:
    """Which samples are set aside for testing: `share` of each class, rounded, at least one of two or more."""
    if not 0 < share < 1:
        raise BudgetedError(f"a test share of {share}: choose one between 0 and 1, such as 0.2")
    _, member, counts = np.unique(codes, return_inverse=True, return_counts=True)
    quotas = np.clip(np.floor(counts * share + 0.5).astype(np.int64), 1, np.maximum(counts - 1, 1))
    quotas[counts < 2] = 0
    ranks = ranks_in_class(codes, random_keys(0, "test share", len(codes)))
    return np.asarray(ranks < quotas[member])


def _check_test(listing: Listing, rows: NDArray[np.int64], met: set[str], name: str) -> None:
    if len(rows) == 0:
        raise DataError(f"{name}: no test samples in it: give every class two samples or more, or a test part")
    for code in np.unique(listing.codes[rows]):
        if (word := listing.words[int(code)]) not in met:
            raise DataError(f"{name}: test class {word!r} has no training images: remove it or add some")


def _compact(rows: NDArray[np.int64]) -> NDArray[np.integer] | range:
    """Rows that follow each other need no list of them."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return range(int(rows[0]), int(rows[-1]) + 1)
    return rows.astype(np.int32) if len(rows) and rows[-1] < 2**31 else rows


def _on_demand(request: Request, images: LazyImages) -> bool:
    if request.skip_bad:
        return True  # what is bad is passed over when it arrives, not when the set is opened
    if request.on_demand is not None:
        return request.on_demand
    return int(np.prod(images.shape, dtype=np.int64)) > HELD


def _statistics(train: Part, skip_bad: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    images: list[NDArray[np.uint8]] = []
    bad = ""
    for row in first_of_each_class(train.labels, LOOKED_AT):
        try:
            images.append(train.images[int(row)])
        except DataError as problem:
            if not skip_bad:
                raise
            bad = bad or str(problem)
    if not images:
        raise DataError(f"none of the first images of each class can be read; the first: {bad}")
    return channel_statistics(np.stack(images))


def _common_size(listing: Listing, rows: NDArray[np.int64], skip_bad: bool) -> int:
    """The side that all pictures have, which must be squares; of an iterator that of the first, and each is compared
    with it when it arrives."""
    if len(rows) > MOST_MEASURED and not listing.sequential:
        raise DataError(f"{len(rows):,} images and no size: say to how many pixels they are resized (--size, size=)")
    first: tuple[int, int] | None = None
    bad = ""
    for row in rows:
        where = listing.where(int(row))
        try:
            found = sides(listing.read(int(row)), where)
        except DataError as problem:
            if not skip_bad:
                raise
            bad = bad or str(problem)
            continue
        first = first or found
        if found != first or found[0] != found[1]:
            raise DataError(unlike(where, found, first))
        if listing.sequential:
            break
    if first is None:
        raise DataError(f"none of the {len(rows):,} images can be read; the first: {bad}")
    return first[0]
