"""Orders: in which sequence samples arrive, as pure functions of (labels, seed).

Every order holds each sample index exactly once and depends on nothing but its arguments: not on global
random state, not on the order of a directory listing, not on the version of numpy. (Only the raw output of
PCG64 is drawn from, which numpy promises never to change; its distributions may change.)
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgeted.errors import BudgetedError

Indices = NDArray[np.int64]


def class_order(classes: int | np.integer | Sequence[int] | Indices, seed: int) -> Indices:
    """The order in which a stream introduces its classes: `random.Random(seed)` shuffles their listing.

    `classes` is the listing before the shuffle, or a number n for the listing 0, 1, …, n-1. A data set whose
    published orders start from another listing carries it (`DatasetInfo.class_listing`), as CIFAR-10 does.
    """
    listing = list(range(classes)) if isinstance(classes, int | np.integer) else [int(each) for each in classes]
    random.Random(_checked_seed(seed)).shuffle(listing)
    return np.array(listing, dtype=np.int64)


def gaussian(
    labels: ArrayLike, seed: int, *, sd: float = 0.1, class_order: Sequence[int] | Indices | None = None
) -> Indices:
    """Boundary-free: a sample of the class at position i of n arrives at a time ~ Normal(i / n, sd).

    Times are not truncated, only their order matters. Equal times (sd = 0) fall in random order.
    """
    return _arrange(arrival_times(labels, seed, sd=sd, class_order=class_order), seed, "gaussian ties")


def disjoint(
    labels: ArrayLike, seed: int, *, tasks: int = 5, class_order: Sequence[int] | Indices | None = None
) -> Indices:
    """`tasks` tasks of consecutive classes of the class order, no class in two, shuffled inside each task.

    When n classes do not divide evenly, the first n mod `tasks` tasks have one class more than the others.
    """
    return by_task(disjoint_tasks(labels, seed, tasks=tasks, class_order=class_order), seed)


def blurry(
    labels: ArrayLike,
    seed: int,
    *,
    tasks: int = 5,
    major: float = 0.92,
    class_order: Sequence[int] | Indices | None = None,
) -> Indices:
    """As `disjoint`, but each class keeps only the share `major` in its own task and visits all others.

    Of a class of m samples, m · (1 - major) rounded half up leave their task (exact decimal arithmetic). They
    are divided evenly among the other tasks; what does not divide goes, one each, to the tasks following its
    own, cyclically. 5,000 samples, 5 tasks, 0.92: 4,600 in the class's own task, 100 in each other one.
    """
    return by_task(blurry_tasks(labels, seed, tasks=tasks, major=major, class_order=class_order), seed)


def domain(labels: ArrayLike, domains: ArrayLike, seed: int) -> Indices:
    """Domains one after the other in ascending order of their number, shuffled inside each."""
    return by_task(domain_tasks(labels, domains), seed)


def by_task(tasks: Indices, seed: int) -> Indices:
    """Tasks one after the other, shuffled inside each."""
    return _arrange(tasks, seed, "in task")


def by_time(times: NDArray[np.float64]) -> Indices:
    """Samples as they came: by rising time, those of one time in the order in which they lie."""
    return np.argsort(times, kind="stable").astype(np.int64)


def limit(labels: ArrayLike, n: int, seed: int) -> Indices:
    """A class-balanced subset of n samples as ascending indices, drawn before an order is laid on it.

    Every class gives the same number; what does not divide goes, one each, to the first classes in label
    order. A class with too few samples gives all it has and the others make up for it evenly. A smaller n
    is a subset of a larger one under the same seed.
    """
    known = _checked_labels(labels)
    _checked_seed(seed)
    classes, member_of, available = np.unique(known, return_inverse=True, return_counts=True)
    if n > len(known):
        raise BudgetedError(f"limit of {n} samples, but there are only {len(known)}: lower the limit")
    if n < len(classes):
        raise BudgetedError(
            f"limit of {n} samples is below the {len(classes)} classes: allow at least one for each class"
        )
    ranks = ranks_in_class(known, random_keys(seed, "limit", len(known)))
    return np.flatnonzero(ranks < _level_quotas(available, n)[member_of]).astype(np.int64)


def ranks_in_class(labels: ArrayLike, keys: NDArray[np.uint64] | None = None) -> Indices:
    """Of every sample how many of its class come before it: by key, or as they lie."""
    _, member_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    grouped = np.argsort(member_of, kind="stable") if keys is None else np.lexsort((keys, member_of))
    ranks = np.empty(len(grouped), dtype=np.int64)
    ranks[grouped] = np.arange(len(grouped)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks


def first_of_each_class(labels: ArrayLike, count: int | None) -> Indices:
    """The first samples of each class in turn, `count` of them or all, as ascending indices."""
    every = np.asarray(labels)
    chosen: Indices = np.sort(np.lexsort((every, ranks_in_class(every)))[:count])
    return chosen


def arrival_times(
    labels: ArrayLike, seed: int, *, sd: float = 0.1, class_order: Sequence[int] | Indices | None = None
) -> NDArray[np.float64]:
    """The arrival time of every sample in a `gaussian` order."""
    if not (np.isfinite(sd) and sd >= 0):
        raise BudgetedError(f"sd of a gaussian order must be a number ≥ 0, not {sd}")
    nominal = nominal_times(labels, seed, class_order=class_order)
    keys = random_keys(seed, "gaussian times", len(nominal))
    # The middle of one of 2⁵³ equal cells: never 0 or 1, where the inverse of the normal would be infinite.
    uniform = ((keys >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    from scipy.special import ndtri  # takes as long to load as all of ours

    return nominal + sd * np.asarray(ndtri(uniform), dtype=np.float64)


def nominal_times(
    labels: ArrayLike, seed: int, *, class_order: Sequence[int] | Indices | None = None
) -> NDArray[np.float64]:
    """i / n of every sample: the mean arrival time of its class in a `gaussian` order."""
    positions, n = _positions(_checked_labels(labels), seed, class_order)
    return positions / n


def disjoint_tasks(
    labels: ArrayLike, seed: int, *, tasks: int = 5, class_order: Sequence[int] | Indices | None = None
) -> Indices:
    """The task of every sample in a `disjoint` order."""
    positions, n = _positions(_checked_labels(labels), seed, class_order)
    if not 1 <= tasks <= n:
        raise BudgetedError(
            f"{tasks} tasks for {n} classes: choose another order (--stream gaussian or arrival), or in Python tasks= "
            f"between 1 and {n}"
        )
    classes_per_task = n // tasks + (np.arange(tasks) < n % tasks)
    task_of_position: Indices = np.repeat(np.arange(tasks, dtype=np.int64), classes_per_task)
    return task_of_position[positions]


def blurry_tasks(
    labels: ArrayLike,
    seed: int,
    *,
    tasks: int = 5,
    major: float = 0.92,
    class_order: Sequence[int] | Indices | None = None,
) -> Indices:
    """The task of every sample in a `blurry` order."""
    if not 0 <= major <= 1:
        raise BudgetedError(f"major share of a blurry order must be between 0 and 1, not {major}")
    known = _checked_labels(labels)
    own_task = disjoint_tasks(known, seed, tasks=tasks, class_order=class_order)
    if tasks == 1:
        return own_task
    # str() gives the decimal that was written: 1 - 0.92 must be 8 %, not 7.999… %.
    leaving_share = 1 - Fraction(str(float(major)))
    result: Indices = np.array(own_task)
    grouped = np.lexsort((random_keys(seed, "blurry", len(known)), known))
    class_starts = np.flatnonzero(np.diff(known[grouped], prepend=known[grouped][0] - 1))
    for members in np.split(grouped, class_starts[1:]):
        own = int(own_task[members[0]])
        leaving = int(len(members) * leaving_share + Fraction(1, 2))
        each, remainder = divmod(leaving, tasks - 1)
        taken = 0
        for step in range(1, tasks):
            share = each + (step <= remainder)
            result[members[taken : taken + share]] = (own + step) % tasks
            taken += share
    return result


def domain_tasks(labels: ArrayLike, domains: ArrayLike) -> Indices:
    """The task of every sample in a `domain` order: the rank of its domain."""
    known = _checked_labels(labels)
    given = np.asarray(domains)
    if given.shape != known.shape:
        raise BudgetedError(f"{len(known)} labels but domains of shape {given.shape}: give one domain per sample")
    _, ranks = np.unique(given, return_inverse=True)
    return ranks.astype(np.int64)


def random_keys(seed: int, purpose: str, count: int) -> NDArray[np.uint64]:
    """`count` random 64-bit keys that depend on (seed, purpose) alone; two purposes share nothing."""
    entropy = np.random.SeedSequence([_checked_seed(seed), *purpose.encode()])
    return np.asarray(np.random.PCG64(entropy).random_raw(count), dtype=np.uint64)


def _arrange(primary: NDArray[np.float64] | Indices, seed: int, purpose: str) -> Indices:
    """Indices sorted by `primary`, equal values in random order."""
    return np.lexsort((random_keys(seed, purpose, len(primary)), primary)).astype(np.int64)


def _positions(labels: Indices, seed: int, given_order: Sequence[int] | Indices | None) -> tuple[Indices, int]:
    """Each sample's class as its position in the class order, and the number of classes in that order."""
    order = class_order(np.unique(labels), seed) if given_order is None else np.asarray(given_order, dtype=np.int64)
    sorter = np.argsort(order, kind="stable")
    in_order = order[sorter]
    if np.any(in_order[1:] == in_order[:-1]):
        raise BudgetedError("a class appears twice in the class order: list each class once")
    place = np.minimum(np.searchsorted(in_order, labels), len(order) - 1)
    if len(order) == 0 or np.any(in_order[place] != labels):
        strays = np.setdiff1d(labels, order)
        raise BudgetedError(f"class {strays[0]} of the labels is not in the class order: list every class")
    return sorter[place].astype(np.int64), len(order)


def _level_quotas(available: NDArray[np.intp], n: int) -> NDArray[np.int64]:
    """n divided over classes as evenly as `available` allows."""
    low, high = 0, n
    while low < high:  # the highest level to which every class can be filled without exceeding n
        level = (low + high + 1) // 2
        if int(np.minimum(available, level).sum()) <= n:
            low = level
        else:
            high = level - 1
    quotas = np.minimum(available, low).astype(np.int64)
    open_classes = np.flatnonzero(available > low)
    quotas[open_classes[: n - int(quotas.sum())]] += 1
    return quotas


def _checked_labels(labels: ArrayLike) -> Indices:
    known = np.asarray(labels)
    if known.ndim != 1 or len(known) == 0 or not np.issubdtype(known.dtype, np.integer):
        raise BudgetedError(f"labels must be a non-empty list of integers, not {known.dtype} of shape {known.shape}")
    return known.astype(np.int64)


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise BudgetedError(f"seed must be a whole number ≥ 0, not {seed!r}")
    return int(seed)
