"""The published annotation files, where they are at hand: counts, tasks, and our questions against theirs."""

from __future__ import annotations

import json
from collections import Counter
from gzip import decompress
from itertools import pairwise
from pathlib import Path

import pytest

from budgeted.streams.bongard.answers import chrf, token_f1
from budgeted.streams.bongard.facts import facts_of
from budgeted.streams.bongard.items import HOI, OPENWORLD, every_triple, items_of
from budgeted.streams.bongard.published import read_hoi, read_items, read_openworld
from budgeted.streams.bongard.tasks import dealt, task_starts

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "bongard"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no annotation files beside this checkout")


def path(kind: str, part: str, name: str = "HOI") -> Path:
    return FOLDER / f"Bongard-{name}__{kind}__Bongard-{name}_{part}.json.gz"


def test_hoi() -> None:
    train, test = read_hoi(path("ma_splits", "train_seed2")), read_hoi(path("ma_splits", "test"))
    assert task_starts(train) == [0, 1114, 1674, 2418, 3009]
    found = facts_of(train, test)
    assert (found.train, found.test, found.concepts, found.concepts_in_test, found.new_in_test) == (
        3604,
        617,
        50,
        50,
        0,
    )
    assert (found.rarest, found.most_common) == (1, 566)
    assert (found.pictures, found.in_both, found.touched, found.two_labels) == (10054, 183, 197, 112)
    assert len({problem.id for problem in train}) == 3604
    tasks = [train[start:end] for start, end in pairwise((*task_starts(train), len(train)))]
    assert [len({problem.concept for problem in task}) for task in tasks] == [10] * 5
    ordered = dealt(train, seed=1)
    assert len({problem.concept for problem in ordered[: task_starts(ordered)[1]]}) == 10
    pictures = {name for item in items_of(train, "pn", HOI) for name in item.pictures}
    assert len({name for problem in train for name in problem.pictures}) == 6678 >= len(pictures)


def test_hoi_questions() -> None:
    test = read_hoi(path("ma_splits", "test"))
    theirs, ours = read_items(path("ma__5_set", "test")), items_of(test, "pn", HOI)
    assert len(theirs) == len(ours) == 1234
    assert {item.question for item in ours} == {item.question for item in theirs}
    assert [(a.concept, a.answer, a.pictures[4]) for a in ours] == [
        (b.concept, b.answer, b.pictures[4]) for b in theirs
    ]
    for item, problem in zip(theirs, (one for one in test for _ in range(2)), strict=True):
        index = [problem.pictures.index(name) for name in item.pictures]
        assert max(index[:2]) < 6 < min(index[2:4])
        assert max(index[2:4]) < 13
    theirs, ours = read_items(path("ma_text__5_set", "test")), items_of(test, "ca", HOI)
    assert len(theirs) == len(ours) == 617
    assert Counter(len(item.choices) for item in ours) == {4: 453, 3: 162, 2: 2}
    assert sum(1 / len(item.choices) for item in ours) / 617 == pytest.approx(0.273, abs=1e-3)
    for a, b, problem in zip(ours, theirs, test, strict=True):
        assert (a.concept, a.answer, len(a.choices), len(b.pictures)) == (b.concept, b.answer, len(b.choices), 4)
        if len(set(problem.actions)) <= 4:
            assert a.question == b.question
        assert set(b.choices) <= set(problem.actions)


def test_openworld() -> None:
    train, test = (read_openworld(path("ma_splits", part, "OpenWorld")) for part in ("train_seed1", "test"))
    assert (len(train), len(test)) == (193, 69)
    starts = task_starts(train)
    groups = [{problem.concept for problem in train[a:b]} for a, b in pairwise((*starts, len(train)))]
    assert ["".join(sorted(group)) for group in groups] == ["36", "48", "05", "19", "27"]
    names = [name.rpartition("/")[2] for problem in (*train, *test) for name in problem.pictures]
    assert max(len(name.encode()) for name in names) == 255
    assert any("?" in name for name in names)
    assert any("%" in name for name in names)
    theirs, ours = read_items(path("ma__5_set", "test", "OpenWorld")), items_of(test, "pn", OPENWORLD)
    assert len(theirs) == len(ours) == 414
    assert [item.id for item in ours] == [item.id for item in theirs]  # theirs come twice in the file
    assert {item.question for item in ours} == {item.question for item in theirs}
    assert [item.pictures for item in ours[::2]] == [item.pictures for item in theirs[::2]]
    assert len(every_triple(train, "pn", OPENWORLD)) == 13_510
    assert len(every_triple(train, "ca", OPENWORLD)) == 6_755
    assert len(every_triple(test, "ca", OPENWORLD)) == 2_415


def test_sentence_scores_tell_right_from_wrong() -> None:
    """The words of a concept as a near-right answer, another problem's caption as a wrong one."""
    entries = [
        entry
        for part in ("train_seed1", "test")
        for entry in json.loads(decompress(path("ma_splits", part, "OpenWorld").read_bytes()))
    ]
    assert len(entries) == 262
    for score, least in ((token_f1, 0.9997), (chrf, 0.9995)):
        right = [score(entry["concept"], entry["caption"]) for entry in entries]
        wrong = [score(other["caption"], one["caption"]) for one, other in pairwise([*entries, entries[0]])]
        pairs = sum((r > w) + 0.5 * (r == w) for r in right for w in wrong)
        assert pairs / (len(right) * len(wrong)) >= least
