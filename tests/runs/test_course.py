"""The course of a run before there is data, against counting sample by sample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from budgeted import streams
from budgeted.learner.rehearsal import Course
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from budgeted.runs.plan import course_in, course_of


def course(order: str, samples: int = 60, every: int = 25) -> Course:
    return course_of(streams.info("digits"), samples, order, every)


def known(made: Course, arrived: int) -> int:
    return len(set(made.labels[:arrived].tolist()))


@pytest.mark.parametrize("order", ["gaussian", "disjoint", "blurry", "domain"])
def test_every_class_comes_as_often_and_the_mean_rows_are_those_met(order: str) -> None:
    made = course(order)
    assert np.bincount(made.labels).tolist() == [6] * 10
    at_steps = np.mean([known(made, arrived) for arrived in range(1, 61)])
    assert made.mean_rows(trains=True) == pytest.approx(at_steps, abs=0.5)


def test_boundaries_and_evaluations_are_those_of_a_run() -> None:
    disjoint, gaussian = course("disjoint"), course("gaussian")
    assert disjoint.boundaries == gaussian.boundaries == (12, 24, 36, 48)
    assert disjoint.evaluations == (12, 24, 25, 36, 48, 50, 60)
    for task in range(5):
        assert len(set(disjoint.labels[12 * task : 12 * task + 12].tolist())) == 2
    assert [known(disjoint, boundary) for boundary in disjoint.boundaries] == [2, 4, 6, 8]


def test_steps_that_wait_for_an_evaluation_meet_its_head() -> None:
    made = course("gaussian")
    at = [next(each for each in made.evaluations if each > position) for position in range(60)]
    assert made.mean_rows(trains=False) == pytest.approx(np.mean([known(made, each) for each in at]), abs=0.5)
    assert made.mean_rows(trains=False) >= made.mean_rows(trains=True)


@pytest.mark.parametrize("order", ["gaussian", "disjoint"])
def test_where_the_data_are_there_the_course_is_that_of_the_run(order: str, tmp_path: Path) -> None:
    data = streams.load("digits")
    made = course_in(data, 60, order, 2, 25)
    assert made is not None
    assert made.known
    config = RunConfig(method="vanilla", stream=order, model="mlp", limit=60, seed=2, eval_every=25, iterations=0.0)
    met: list[int] = []
    classes: list[int] = []

    def note(progress: runs.Progress) -> None:
        labels = progress.learner.class_labels
        classes.append(len(labels))
        met[:] = labels

    runs.start(config, tmp_path / "run", note)
    assert [known(made, arrived) for arrived in range(1, 61)] == classes
    assert list(dict.fromkeys(made.labels.tolist())) == met
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [record["samples"] for record in records] == list(made.evaluations)


def test_data_that_cannot_say_what_arrives_are_passed_over() -> None:
    data = streams.load("digits")
    assert course_in(data, len(data.train_labels) + 1, "gaussian", 1, 25) is None
    assert course_in(data, 9, "gaussian", 1, 25) is None  # no stream has so few: there are ten classes
    assert course_in(replace(data, sequential=True), 60, "gaussian", 1, 25) is None


@pytest.mark.parametrize("samples", [1, 3, 19, 1000])
def test_any_length_has_a_course(samples: int) -> None:
    made = course("gaussian", samples=samples)
    assert len(made.labels) == samples
    assert made.evaluations[-1] == samples
    assert all(0 < boundary < samples for boundary in made.boundaries)
    assert 1 <= made.mean_rows(trains=True) <= min(10, samples)
