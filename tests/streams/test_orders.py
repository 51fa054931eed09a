"""Orders: permutations that are pure functions of (labels, seed), with the published shapes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.streams import orders
from budgeted.streams.cifar import CIFAR10_CLASSES
from budgeted.streams.registry import info

LABELS = st.lists(st.integers(0, 6), min_size=1, max_size=60).map(lambda each: np.array(each, np.int64))
SEEDS = st.integers(0, 2**40)
EACH_ORDER: list[Callable[[orders.Indices, int], orders.Indices]] = [
    orders.gaussian,
    lambda labels, seed: orders.disjoint(labels, seed, tasks=len(np.unique(labels)) // 2 + 1),
    lambda labels, seed: orders.blurry(labels, seed, tasks=len(np.unique(labels)) // 2 + 1, major=0.7),
    lambda labels, seed: orders.domain(labels, labels % 3, seed),
]


def global_numpy_state() -> tuple[bytes, int]:
    inner = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return inner["key"].tobytes(), inner["pos"]


@pytest.mark.parametrize("order", EACH_ORDER)
@settings(max_examples=40, deadline=None)
@given(labels=LABELS, seed=SEEDS)
def test_every_order_is_a_pure_permutation(
    order: Callable[[orders.Indices, int], orders.Indices], labels: orders.Indices, seed: int
) -> None:
    before = labels.copy()
    python_state, numpy_state = random.getstate(), global_numpy_state()
    indices = order(labels, seed)
    assert indices.dtype == np.int64
    assert sorted(indices.tolist()) == list(range(len(labels)))
    assert np.array_equal(indices, order(labels, seed))
    assert np.array_equal(labels, before)
    assert random.getstate() == python_state
    assert global_numpy_state() == numpy_state


@pytest.mark.parametrize("order", EACH_ORDER)
def test_another_seed_gives_another_order(
    order: Callable[[orders.Indices, int], orders.Indices],
) -> None:
    labels = np.repeat(np.arange(10), 20)
    found = {order(labels, seed).tobytes() for seed in range(20)}
    assert len(found) == 20


GOLDEN = {
    "gaussian": [9, 10, 1, 11, 0, 2, 8, 7, 3, 6, 5, 4],
    "disjoint": [11, 2, 1, 9, 10, 0, 8, 7, 4, 3, 6, 5],
    "blurry": [8, 11, 2, 9, 0, 5, 7, 1, 4, 3, 10, 6],
    "domain": [8, 2, 7, 1, 6, 0, 11, 4, 9, 3, 10, 5],
    "limit": [0, 1, 4, 5, 6, 8, 11],
}


def test_orders_do_not_change_between_releases() -> None:
    labels = np.repeat(np.arange(4), 3)
    assert orders.gaussian(labels, 1).tolist() == GOLDEN["gaussian"]
    assert orders.disjoint(labels, 1, tasks=2).tolist() == GOLDEN["disjoint"]
    assert orders.blurry(labels, 1, tasks=2, major=0.6).tolist() == GOLDEN["blurry"]
    assert orders.domain(labels, labels % 2, 1).tolist() == GOLDEN["domain"]
    assert orders.limit(labels, 7, 1).tolist() == GOLDEN["limit"]


PUBLISHED_CLASS_ORDERS = {
    1: "frog automobile cat dog ship truck deer bird horse airplane",
    2: "ship cat truck bird frog dog airplane automobile horse deer",
    3: "horse ship frog deer cat bird dog airplane automobile truck",
}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cifar10_classes_come_in_the_published_order(seed: int) -> None:
    found = [CIFAR10_CLASSES[label] for label in info("cifar10").class_order(seed)]
    assert found == PUBLISHED_CLASS_ORDERS[seed].split()


def test_general_class_order_shuffles_the_label_order() -> None:
    expected = list(range(100))
    random.Random(7).shuffle(expected)
    assert info("cifar100").class_order(7).tolist() == expected
    assert orders.class_order([30, 10, 20], 5).tolist() == orders.class_order(np.array([30, 10, 20]), 5).tolist()


def test_gaussian_arrival_times_have_mean_i_over_n_and_the_set_deviation() -> None:
    classes, per_class = 10, 5000
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))
    order = orders.class_order(classes, 1)
    times = orders.arrival_times(labels, 1, class_order=order)
    for position, label in enumerate(order):
        of_class = times[labels == label]
        # Five standard errors of a mean and of a standard deviation.
        assert abs(of_class.mean() - position / classes) < 5 * 0.1 / np.sqrt(per_class)
        assert abs(of_class.std() - 0.1) < 5 * 0.1 / np.sqrt(2 * per_class)
        standardised = np.sort((of_class - position / classes) / 0.1)
        assert abs(float(np.mean(standardised < 1)) - 0.8413) < 0.03
    assert np.array_equal(orders.gaussian(labels, 1, class_order=order), np.argsort(times, kind="stable"))


def test_gaussian_without_deviation_is_class_after_class_and_shuffled_inside() -> None:
    labels = np.repeat(np.arange(3), 50)
    indices = orders.gaussian(labels, 4, sd=0.0, class_order=[2, 0, 1])
    assert labels[indices].tolist() == [2] * 50 + [0] * 50 + [1] * 50
    assert not np.array_equal(indices[:50], np.sort(indices[:50]))


def test_times_of_samples_are_independent_of_the_class_order_seed() -> None:
    labels = np.repeat(np.arange(4), 500)
    one = orders.arrival_times(labels, 1, class_order=[0, 1, 2, 3]) - labels / 4
    two = orders.arrival_times(labels, 2, class_order=[0, 1, 2, 3]) - labels / 4
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.12


@pytest.mark.parametrize(("classes", "tasks", "expected"), [(10, 5, [2] * 5), (7, 3, [3, 2, 2]), (4, 4, [1] * 4)])
def test_disjoint_tasks_share_no_class_and_follow_the_class_order(
    classes: int, tasks: int, expected: list[int]
) -> None:
    labels = np.repeat(np.arange(classes), 6)
    order = orders.class_order(classes, 3)
    task_of = orders.disjoint_tasks(labels, 3, tasks=tasks)
    by_task = [set(labels[task_of == task].tolist()) for task in range(tasks)]
    assert [len(each) for each in by_task] == expected
    assert [sorted(each) for each in by_task] == [
        sorted(chunk.tolist()) for chunk in np.split(order, np.cumsum(expected)[:-1])
    ]
    indices = orders.disjoint(labels, 3, tasks=tasks)
    assert np.all(np.diff(task_of[indices]) >= 0)


def test_disjoint_shuffle_inside_a_task_is_uniform() -> None:
    """Where sample 0 of a task of four lands, over many seeds: each place equally often (chi-squared)."""
    labels = np.zeros(4, np.int64)
    places = [int(np.flatnonzero(orders.disjoint(labels, seed, tasks=1) == 0)[0]) for seed in range(2000)]
    counts = np.bincount(places, minlength=4)
    assert np.sum((counts - 500) ** 2 / 500) < 16.27  # 99.9 % of chi-squared with 3 degrees of freedom


def test_blurry_shares_are_the_published_ones_exactly() -> None:
    labels = np.repeat(np.arange(10), 5000)
    own = orders.disjoint_tasks(labels, 1)
    tasks = orders.blurry_tasks(labels, 1)
    for label in range(10):
        counts = np.bincount(tasks[labels == label], minlength=5)
        home = own[labels == label][0]
        assert counts[home] == 4600
        assert np.delete(counts, home).tolist() == [100] * 4


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 400), tasks=st.integers(2, 6), percent=st.integers(0, 100), seed=SEEDS)
def test_blurry_remainders_go_to_the_following_tasks(size: int, tasks: int, percent: int, seed: int) -> None:
    labels = np.repeat(np.arange(tasks), size)
    own = orders.disjoint_tasks(labels, seed, tasks=tasks)
    found = orders.blurry_tasks(labels, seed, tasks=tasks, major=percent / 100)
    leaving = (size * (100 - percent) + 50) // 100
    for label in range(tasks):
        home = int(own[labels == label][0])
        expected = [0] * tasks
        expected[home] = size - leaving
        for given_away in range(leaving):  # dealt out one at a time, from the task after its own
            expected[(home + 1 + given_away % (tasks - 1)) % tasks] += 1
        assert np.bincount(found[labels == label], minlength=tasks).tolist() == expected


def test_domains_come_in_order_and_are_shuffled_inside() -> None:
    labels = np.zeros(60, np.int64)
    domains = np.tile([3, 1, 2], 20)
    indices = orders.domain(labels, domains, 2)
    assert domains[indices].tolist() == [1] * 20 + [2] * 20 + [3] * 20
    assert not np.array_equal(indices[:20], np.sort(indices[:20]))


def brute_force_quotas(available: list[int], n: int) -> list[int]:
    """n handed out one at a time to the class that has least and still has some, first in label order."""
    quotas = [0] * len(available)
    for _ in range(n):
        which = min((i for i, room in enumerate(available) if quotas[i] < room), key=lambda i: (quotas[i], i))
        quotas[which] += 1
    return quotas


@settings(max_examples=80, deadline=None)
@given(sizes=st.lists(st.integers(1, 15), min_size=1, max_size=6), seed=SEEDS, data=st.data())
def test_limit_is_balanced_seeded_and_nested(sizes: list[int], seed: int, data: st.DataObject) -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)) * 2, sizes))
    n = data.draw(st.integers(len(sizes), len(labels)))
    chosen = orders.limit(labels, n, seed)
    assert len(chosen) == n == len(set(chosen.tolist()))
    assert np.all(np.diff(chosen) > 0)
    counts = [int(np.sum(labels[chosen] == 2 * i)) for i in range(len(sizes))]
    assert counts == brute_force_quotas(sizes, n)
    assert np.array_equal(chosen, orders.limit(labels, n, seed))
    if n > len(sizes):
        assert set(orders.limit(labels, n - 1, seed).tolist()) < set(chosen.tolist())


def test_limit_draws_different_samples_with_another_seed() -> None:
    labels = np.repeat(np.arange(5), 100)
    assert set(orders.limit(labels, 50, 1).tolist()) != set(orders.limit(labels, 50, 2).tolist())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda labels: orders.limit(labels, 13, 0), "only 12"),
        (lambda labels: orders.limit(labels, 3, 0), "below the 4 classes"),
        (lambda labels: orders.disjoint(labels, 0, tasks=5), "between 1 and 4"),
        (lambda labels: orders.disjoint(labels, 0, tasks=0), "between 1 and 4"),
        (lambda labels: orders.blurry(labels, 0, tasks=2, major=1.5), "between 0 and 1"),
        (lambda labels: orders.gaussian(labels, 0, sd=-1), "≥ 0"),
        (lambda labels: orders.gaussian(labels, 0, sd=float("nan")), "≥ 0"),
        (lambda labels: orders.gaussian(labels, -1), "seed"),
        (lambda labels: orders.gaussian(labels, 0, class_order=[0, 1, 2]), "class 3"),
        (lambda labels: orders.gaussian(labels, 0, class_order=[0, 1, 2, 3, 3]), "twice"),
        (lambda labels: orders.domain(labels, [1, 2], 0), "one domain per sample"),
        (lambda labels: orders.gaussian(labels / 2.0, 0), "integers"),
        (lambda labels: orders.gaussian([], 0), "non-empty"),
    ],
)
def test_impossible_orders_are_refused(call: Callable[[orders.Indices], object], message: str) -> None:
    with pytest.raises(BudgetedError, match=message):
        call(np.repeat(np.arange(4), 3))
