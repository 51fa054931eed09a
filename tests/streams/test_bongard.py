"""Bongard: questions by the published rules, files in the published formats, pictures under odd names."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from budgeted import cli, streams
from budgeted.errors import BudgetedError
from budgeted.streams import DataError, DataMissing
from budgeted.streams.bongard.facts import facts_of
from budgeted.streams.bongard.items import HOI, OPENWORLD, SHORT, every_triple, items_of
from budgeted.streams.bongard.pictures import FILL, Pictures, with_pictures
from budgeted.streams.bongard.problem import PLACE, Problem
from budgeted.streams.bongard.published import read_hoi, read_items, read_openworld
from budgeted.streams.bongard.questions import read
from budgeted.streams.bongard.tasks import dealt, task_starts

# as long as a file system allows, with everything that an address may hold
ODD = "pos__0__2023-03-18__https:__host__a?fit=1080%2C1080&ssl=1__".ljust(251, "x") + ".png"


def hoi_entry(number: int = 1, action: str = "kick", others: tuple[str, ...] = ("hold", "block")) -> dict[str, Any]:
    negative = [others[i % len(others)] for i in range(7)]
    return {
        "id": number,
        "type": "bongard_hoi_train.json",
        "image_files": [f"images/set/{number}-{i}.png" for i in range(14)],
        "object_class": ["ball"] * 14,
        "action_class": [action] * 7 + negative,
    }


def openworld_entry() -> dict[str, Any]:
    names = [f"images/0001/{'pos' if i < 7 else 'neg'}__{i}.png" for i in range(14)]
    return {
        "uid": "0001", "commonSense": "6", "concept": "statue", "caption": "A statue.", "urls": [],
        "imageFiles": [f"images/0001/{ODD}", *names[1:]],
    }  # fmt: skip


def written(folder: Path, entries: Any, name: str = "problems.json.gz") -> Path:
    path = folder / name
    text = json.dumps(entries).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path


# -- questions --------------------------------------------------------------------------------------------------


def test_positive_or_negative_by_the_rules(tmp_path: Path) -> None:
    (problem,) = read_hoi(written(tmp_path, [hoi_entry()]))
    index = {name: number for number, name in enumerate(problem.pictures)}
    drawn = set()
    for seed in range(200):
        positive, negative = items_of([problem], "pn", HOI, seed)
        assert (positive.answer, negative.answer) == ("Positive", "Negative")
        for item, query in ((positive, 6), (negative, 13)):
            chosen = [index[name] for name in item.pictures]
            assert chosen[4] == query
            assert len(set(chosen[:2]) & set(range(6))) == 2
            assert len(set(chosen[2:4]) & set(range(7, 13))) == 2
            assert item.question.count(PLACE) == 5
            drawn.add(tuple(chosen[:2]))
    assert len(drawn) == 30  # every ordered pair of six comes up


def test_choices_are_the_problems_own_actions_at_most_four() -> None:
    others = ("a", "b", "c", "d", "e", "f")
    problem = Problem("p", "kick ball", tuple("abcdefghijklmn"), ("kick",) * 7 + (*others, "a"))
    seen: Counter[str] = Counter()
    for seed in range(300):
        (item,) = items_of([problem], "ca", HOI, seed)
        assert len(item.choices) == 4
        assert item.choices == tuple(sorted(item.choices))
        assert item.answer == "kick"
        assert f"Choice List: [{', '.join(item.choices)}]" in item.question
        assert item.question.count(PLACE) == len(item.pictures) == 4
        seen.update(item.choices)
    assert seen["kick"] == 300
    assert min(seen[other] for other in others) > 100  # 150 expected of each


def test_sentences_have_no_choices_and_three_questions_of_either_kind(tmp_path: Path) -> None:
    (problem,) = read_openworld(written(tmp_path, [openworld_entry()]))
    (sentence,) = items_of([problem], "ca", OPENWORLD)
    assert (sentence.answer, sentence.choices, sentence.concept) == ("A statue.", (), "6")
    items = items_of([problem], "pn", OPENWORLD)
    assert [item.id for item in items] == [f"0001-{i}-{kind}" for i in (0, 2, 4) for kind in ("positive", "negative")]
    index = {name: number for number, name in enumerate(problem.pictures)}
    assert [[index[name] for name in item.pictures] for item in items[::2]] == [
        [0, 1, 7, 8, 6], [2, 3, 9, 10, 6], [4, 5, 11, 12, 6],
    ]  # fmt: skip
    assert len(every_triple([problem], "pn", OPENWORLD)) == 70
    assert len({item.pictures for item in every_triple([problem], "ca", OPENWORLD)}) == 15  # the third is not shown


def test_questions_of_a_problem_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    problems = read_hoi(written(tmp_path, [hoi_entry(number) for number in range(4)]))
    whole = items_of(problems, "pn", SHORT, seed=5)
    assert items_of(problems[2:], "pn", SHORT, seed=5) == whole[4:]
    assert items_of(problems, "pn", SHORT, seed=6) != whole
    with pytest.raises(BudgetedError, match="unknown kind of question 'np'"):
        items_of(problems, "np", SHORT)  # type: ignore[arg-type]


# -- tasks ------------------------------------------------------------------------------------------------------


def test_tasks_are_disjoint_and_found_again() -> None:
    problems = [Problem(f"{i}", f"concept {i % 10}", ("x",) * 14) for i in range(100)]
    ordered = dealt(problems, seed=1)
    assert sorted(ordered, key=lambda one: int(one.id)) == problems
    assert dealt(problems, seed=1) == ordered != dealt(problems, seed=2)
    assert task_starts(ordered) == [0, 20, 40, 60, 80]
    tasks = [{one.concept for one in ordered[start : start + 20]} for start in task_starts(ordered)]
    assert all(len(task) == 2 for task in tasks)
    assert len(set().union(*tasks)) == 10
    with pytest.raises(BudgetedError, match="not in the order of 5 disjoint tasks"):
        task_starts(problems)
    with pytest.raises(BudgetedError, match="10 concepts cannot be dealt to 11 tasks"):
        dealt(problems, seed=1, tasks=11)


# -- files ------------------------------------------------------------------------------------------------------


def test_five_pictures_for_four_places_and_ids_that_repeat(tmp_path: Path) -> None:
    asked = f"Positive: {PLACE}{PLACE}\nNegative: {PLACE}{PLACE}\nChoice List: [hold, kick] Your answer is:"
    query = f"{PLACE}{PLACE}{PLACE}{PLACE}{PLACE} Choice list:[Positive, Negative]. Your answer is:"

    def entry(question: str, answer: str) -> dict[str, Any]:
        return {
            "id": "0467-0", "commonSense": "6", "image": [f"dataset/Set/images/{i}.jpg" for i in range(5)],
            "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}],
        }  # fmt: skip

    path = written(tmp_path, [entry(asked, "kick"), entry(query, "Positive"), entry(query, "Negative")], "items.json")
    concept, positive, negative = read_items(path)
    assert concept.pictures == ("images/0.jpg", "images/1.jpg", "images/2.jpg", "images/3.jpg")
    assert (concept.id, concept.choices) == ("0467-0", ("hold", "kick"))
    assert len(positive.pictures) == 5
    assert (positive.id, negative.id) == ("0467-0-positive", "0467-0-negative")
    assert positive.choices == ("Positive", "Negative")


def broken(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**hoi_entry(), **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([hoi_entry(), broken(image_files=["a"] * 13)], "entry 1 .*13 pictures"),
        ([broken(action_class=None)], "entry 0 .*no 'action_class'"),
        ([broken(action_class=["kick"] * 14)], "do not share an action that the negative ones lack"),
        ([broken(object_class=["ball"] * 13 + ["bat"])], "2 objects"),
        ([broken(image_files="abc")], "a list of names is something else"),
        (["text"], "entry 0"),
        ({"a": 1}, "this is a dict"),
        ([], "its list is empty"),
    ],
)
def test_what_is_not_the_format_is_named(tmp_path: Path, entries: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_hoi(written(tmp_path, entries))


def test_files_that_are_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="is not there"):
        read_hoi(tmp_path / "none.json")
    for name, content in (
        ("cut.json.gz", gzip.compress(b"[]" * 999)[:20]),
        ("bad.json", b"[{"),
        ("bytes.json", b"\xff"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="no whole json file"):
            read_openworld(tmp_path / name)


# -- pictures ---------------------------------------------------------------------------------------------------


def test_pictures_under_their_own_names(tmp_path: Path) -> None:
    assert len(ODD.encode()) == 255
    (problem,) = read_openworld(written(tmp_path, [openworld_entry()]))
    pictures = Pictures(tmp_path / "set", pixels=8)
    assert sorted(pictures.missing([problem])) == sorted(problem.pictures)
    for number, name in enumerate(problem.pictures):
        path = pictures.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 8), (10 * number, 0, 200)).save(path, format="PNG")
    assert pictures.missing([problem]) == []
    found = pictures.picture(f"images/0001/{ODD}")
    assert found.shape == (8, 8, 3)
    assert found.dtype == np.uint8
    assert tuple(found[0, 0]) == FILL  # padded at the sides, not stretched
    assert tuple(found[4, 4]) == (0, 0, 200)
    gone = problem.pictures[9]
    pictures.path(gone).unlink()
    assert pictures.missing([problem]) == [gone]
    assert with_pictures([problem], pictures) == ()
    with pytest.raises(DataMissing, match=r"neg__9\.png is not there"):
        pictures.picture(gone)
    with pytest.raises(DataError, match="leads out of the folder"):
        pictures.path("../../etc/passwd")


def test_facts_of_a_small_set(tmp_path: Path) -> None:
    train = read_hoi(written(tmp_path, [hoi_entry(1), hoi_entry(2, "hold", ("kick",))]))
    shared = {**hoi_entry(3), "image_files": [*hoi_entry(3)["image_files"][:13], "images/set/1-0.png"]}
    test = read_hoi(written(tmp_path, [shared, hoi_entry(4, "throw")]))
    found = facts_of(train, test)
    assert (found.train, found.test, found.concepts, found.concepts_in_test, found.new_in_test) == (2, 2, 2, 2, 1)
    assert (found.pictures, found.used, found.in_both, found.touched, found.two_labels) == (55, 28, 1, 1, 1)
    assert "1 pictures lie in training and test; they touch 1 of 2 test problems" in found.lines()


# -- as data sets -----------------------------------------------------------------------------------------------


def published_folder(at: Path) -> Path:
    """Five actions, one a task, two problems each, in the published layout; and one to test on, with small pictures."""
    folder = at / "bongard-hoi"
    (folder / "ma_splits").mkdir(parents=True)
    actions = ("kick", "hold", "block", "throw", "sign")
    train = [
        hoi_entry(2 * task + i, action, (actions[task - 1],)) for task, action in enumerate(actions) for i in (0, 1)
    ]
    written(folder / "ma_splits", train, "Bongard-HOI_train_seed2.json.gz")
    written(folder / "ma_splits", [hoi_entry(90, "hold", ("kick", "sign"))], "Bongard-HOI_test.json")
    for number in (*range(10), 90):
        for place in range(14):
            path = folder / f"images/set/{number}-{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (6, 4), (number, place, 0)).save(path)
    return at


def test_a_published_set_as_a_stream(tmp_path: Path) -> None:
    data = streams.load("bongard-hoi-pn", published_folder(tmp_path), size=8)
    assert (data.info.train_size, data.info.test_size, data.info.pictures, data.input_shape) == (20, 2, 5, (3, 8, 8))
    assert data.class_names == ("block ball", "hold ball", "kick ball", "sign ball", "throw ball")
    assert streams.stream_of(data, "domain", 3).boundaries() == (4, 8, 12, 16)
    problems = read_hoi(tmp_path / "bongard-hoi/ma_splits/Bongard-HOI_train_seed2.json.gz")
    item = items_of(problems, "pn", HOI)[5]
    sample, label = data.sample(5)
    assert read(sample["text"].numpy()) == (item.question, item.answer)
    assert data.class_names[label] == item.concept
    pictures = Pictures(tmp_path / "bongard-hoi", 8)
    assert np.array_equal(sample["pictures"][4].numpy().transpose(1, 2, 0), pictures.picture(item.pictures[4]))
    assert len(data.test_images[:]) == 2
    every = np.arange(20)
    whole = data.train_images.digest(every)  # type: ignore[attr-defined]
    Image.new("RGB", (6, 4), (99, 0, 0)).save(pictures.path(item.pictures[4]))
    assert data.train_images.digest(every) != whole  # type: ignore[attr-defined]
    assert len(streams.load("bongard-hoi-ca?items=every", tmp_path, size=8).train_labels) == 10 * 35


def test_a_published_set_that_is_not_all_there(tmp_path: Path) -> None:
    folder = published_folder(tmp_path)
    (folder / "bongard-hoi/images/set/3-7.png").unlink()
    with pytest.raises(DataMissing, match=r"looked for .*3-7\.png\): put the published Bongard-HOI_train_seed2"):
        streams.load("bongard-hoi-ca", folder, size=8)
    with pytest.raises(DataMissing, match=r"looked for .*train_seed4\.json\)"):
        streams.load("bongard-hoi-ca?order=4", folder)
    with pytest.raises(BudgetedError, match="give the number of a published order"):
        streams.load("bongard-hoi-ca?order=two", folder)
    with pytest.raises(BudgetedError, match="every"):
        streams.load("bongard-hoi-ca?items=evry", folder, size=8)


def test_what_a_published_set_is_without_its_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = published_folder(tmp_path)
    (folder / "bongard-hoi/images/set/3-7.png").unlink()
    assert cli.main(["data", "info", "bongard-hoi", "--data", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "10 problems to train on, 1 to test on" in said
    assert "tasks start at 0, 2, 4, 6, 8" in said
    assert "1 of the pictures are not in" in said
    assert cli.main(["data", "info", "bongard-openworld", "--data", str(folder)]) == 2
    assert "put the published Bongard-OpenWorld_train_seed1.json" in capsys.readouterr().err
