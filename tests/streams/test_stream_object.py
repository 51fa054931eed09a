"""The stream: seekable, with task boundaries where an order has them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted import streams
from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import orders

LABELS = np.repeat(np.arange(6), 20)
DOMAINS = np.tile(np.arange(4), 30)


@pytest.mark.parametrize("order", streams.order_names())
@settings(max_examples=20, deadline=None)
@given(start=st.integers(0, 120), seed=st.integers(0, 50))
def test_a_stream_from_any_sample_on_is_the_tail_of_the_whole(order: str, start: int, seed: int) -> None:
    stream = streams.make_stream(order, LABELS, seed, domains=DOMAINS, tasks=3)
    whole = list(stream)
    tail = stream.from_sample(start)
    assert len(stream) == 120
    assert tail.tolist() == stream[start:].tolist() == whole[start:]
    assert start == 120 or stream[start] == whole[start]
    assert np.shares_memory(tail, stream.indices) or start == 120  # a view: nothing before it is read


def test_streams_are_what_the_orders_say() -> None:
    cases = {
        "gaussian": orders.gaussian(LABELS, 5),
        "disjoint": orders.disjoint(LABELS, 5, tasks=3),
        "blurry": orders.blurry(LABELS, 5, tasks=3),
        "domain": orders.domain(LABELS, DOMAINS, 5),
        "arrival": np.arange(len(LABELS)),
    }
    assert tuple(cases) == streams.order_names()
    for name, expected in cases.items():
        stream = streams.make_stream(name, LABELS, 5, domains=DOMAINS, tasks=3)
        assert (stream.order, stream.seed) == (name, 5)
        assert np.array_equal(stream.indices, expected)


def test_boundaries_are_where_the_task_changes() -> None:
    disjoint = streams.make_stream("disjoint", LABELS, 1, tasks=3)
    assert disjoint.boundaries() == (40, 80)
    assert disjoint.tasks is not None
    assert disjoint.tasks.tolist() == [0] * 40 + [1] * 40 + [2] * 40
    assert [disjoint.task_at(i) for i in (0, 39, 40, 119)] == [0, 0, 1, 2]
    assert streams.make_stream("domain", LABELS, 1, domains=DOMAINS).boundaries() == (30, 60, 90)
    blurry = streams.make_stream("blurry", LABELS, 1, tasks=3, major=0.9)
    assert blurry.tasks is not None
    task_of = orders.blurry_tasks(LABELS, 1, tasks=3, major=0.9)
    assert np.array_equal(blurry.tasks, task_of[blurry.indices])
    assert len(blurry.boundaries()) == 2


def test_a_gaussian_stream_has_nominal_times_instead_of_tasks() -> None:
    stream = streams.make_stream("gaussian", LABELS, 1, class_order=[5, 4, 3, 2, 1, 0])
    assert stream.tasks is None
    assert stream.task_at(3) is None
    assert stream.boundaries() == ()
    assert stream.nominal is not None
    assert np.allclose(stream.nominal, (5 - LABELS[stream.indices]) / 6)


def test_a_limited_stream_is_balanced_and_points_into_all_samples() -> None:
    for order in streams.order_names():
        stream = streams.make_stream(order, LABELS, 2, domains=DOMAINS, limit=30, tasks=3)
        assert len(stream) == 30
        assert np.bincount(LABELS[stream.indices]).tolist() == [5] * 6
        assert set(stream) == set(orders.limit(LABELS, 30, 2).tolist())


def test_streams_cannot_be_changed_and_are_known_by_their_digest() -> None:
    stream = streams.make_stream("gaussian", LABELS, 1)
    with pytest.raises(ValueError, match="read-only"):
        stream.indices[0] = 7
    assert stream.fingerprint() == streams.make_stream("gaussian", LABELS, 1).fingerprint()
    assert stream.fingerprint() != streams.make_stream("gaussian", LABELS, 2).fingerprint()


def test_the_stream_of_a_data_set_uses_its_own_class_order() -> None:
    data = streams.load("digits")
    stream = streams.stream_of(data, "disjoint", 1)
    first = set(data.train_labels[stream[: stream.boundaries()[0]]].tolist())
    assert first == set(data.info.class_order(1)[:2].tolist())
    assert len(stream) == len(data.train_labels) == 1437


def test_refusals() -> None:
    with pytest.raises(UnknownName, match="gaussian"):
        streams.make_stream("gausian", LABELS, 1)
    with pytest.raises(BudgetedError, match="domain for each sample"):
        streams.make_stream("domain", LABELS, 1)
    with pytest.raises(BudgetedError, match="one per sample"):
        streams.make_stream("domain", LABELS, 1, domains=[1, 2])
    stream = streams.make_stream("gaussian", LABELS, 1)
    with pytest.raises(BudgetedError, match="outside"):
        stream.from_sample(121)
    with pytest.raises(IndexError):
        stream[120]
