"""One registry of data sets: a decorator, an entry point, a file, a module, an object, an address."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from budgeted import streams
from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import DATASETS, DataError, DataMissing, Dataset, Request, from_arrays
from budgeted.streams.entry import split_options
from budgeted.streams.registry import absolute_name

IMAGES = np.arange(6 * 3 * 5 * 5, dtype=np.uint8).reshape(6, 3, 5, 5)
LABELS = ["x", "y", "x", "y", "x", "y"]
SOURCE = """
    import numpy as np
    from budgeted.streams import from_arrays

    IMAGES = np.arange(6 * 3 * 5 * 5, dtype=np.uint8).reshape(6, 3, 5, 5)
    LABELS = ["x", "y", "x", "y", "x", "y"]

    def made():
        return from_arrays(IMAGES, LABELS, IMAGES, LABELS, name="made")

    def asked(request):
        assert request.options == {"shade": "dark"}
        return made()

    def samples():
        yield from zip(IMAGES, LABELS)

    SAMPLES = list(zip(IMAGES, LABELS))
    DATASET = made()

    def wrong():
        return 7
"""


def made() -> Dataset:
    return from_arrays(IMAGES, LABELS, IMAGES, LABELS, name="made")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DATASETS, "_known", dict(DATASETS))


def same(data: Dataset) -> bool:
    return data.class_names == ("x", "y") and np.array_equal(data.train_images[:], IMAGES)


@pytest.mark.usefixtures("registered")
def test_a_decorator_gives_a_name() -> None:
    DATASETS.register("mine")(made)
    assert same(streams.load("mine"))
    assert "mine" in streams.names()
    assert streams.info("mine").classes == 2
    with pytest.raises(BudgetedError, match="there is a data set 'mine' already"):
        DATASETS.register("mine")(lambda: made())
    with pytest.raises(UnknownName, match="did you mean 'mine'"):
        streams.load("mien")


@pytest.mark.usefixtures("registered")
def test_a_scheme_of_ones_own() -> None:
    def twice(place: str, request: Request) -> Dataset:
        assert place == "a:b/c"
        assert request.size == 9
        return made()

    DATASETS.register("twice:")(twice)
    assert same(streams.load("twice:a:b/c", size=9))
    assert "twice:" not in streams.names()


def test_an_entry_point_of_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("theirs", f"{__name__}:made", "budgeted.datasets"),
        EntryPoint("them:", f"{__name__}:at", "budgeted.datasets"),
    ]
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])

    def found(group: str, name: str | None = None) -> list[EntryPoint]:
        return [each for each in points if group == each.group and name in (None, each.name)]

    monkeypatch.setattr("budgeted.registry.entry_points", found)
    monkeypatch.setattr("budgeted.streams.registry.entry_points", found)
    assert same(streams.load("theirs"))
    assert same(streams.load("them:place"))
    assert "theirs" in streams.names()


def at(place: str, request: Request) -> Dataset:
    assert place == "place"
    return made()


@pytest.mark.parametrize("name", ["made", "asked?shade=dark", "DATASET"])
def test_a_file_of_ones_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SOURCE))
    assert same(streams.load(f"{tmp_path / 'mine.py'}:{name}"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_data_module.py").write_text(textwrap.dedent(SOURCE))
    assert same(streams.load(f"own_data_module:{name}"))


@pytest.mark.parametrize("name", ["samples", "SAMPLES"])
def test_a_file_that_gives_samples(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SOURCE))
    data = streams.load(f"{tmp_path / 'mine.py'}:{name}")
    assert (data.class_names, len(data.train_labels), len(data.test_labels)) == (("x", "y"), 4, 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [("none", "has no 'none'"), ("wrong", "gives int, no samples"), ("IMAGES", "no (x, y)")],
)
def test_what_a_file_does_wrong_is_one_line(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(SOURCE))
    with pytest.raises(BudgetedError) as caught:
        streams.load(f"{tmp_path / 'mine.py'}:{name}")
    assert words in str(caught.value)


def test_objects() -> None:
    assert same(streams.load(made()))
    assert same(streams.load(made))
    assert len(streams.load([(x, y) for x, y in zip(IMAGES, LABELS, strict=True)]).train_labels) == 4
    with pytest.raises(DataError, match="neither a word nor a whole number"):
        streams.load([(IMAGES[0], None)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cifar10", ("cifar10", {})),
        ("wds:a-?.tar", ("wds:a-?.tar", {})),
        ("wds:a-?.tar?test=b-?.tar&label=cls", ("wds:a-?.tar", {"test": "b-?.tar", "label": "cls"})),
        ("hf:a/b?image=a%26b", ("hf:a/b", {"image": "a&b"})),
    ],
)
def test_options_stand_behind_a_question_mark(text: str, expected: Any) -> None:
    assert split_options(text) == expected


def test_names_are_made_absolute_and_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "rows.csv").write_text("")
    assert absolute_name("folder:photos") == f"folder:{tmp_path}/photos"
    assert absolute_name("photos") == f"{tmp_path}/photos"
    assert absolute_name("manifest:rows.csv?label=a") == f"manifest:{tmp_path}/rows.csv?label=a"
    assert absolute_name("wds:s-{0..3}.tar") == f"wds:{tmp_path}/s-{{0..3}}.tar"
    assert absolute_name("wds:s3://b/s.tar") == "wds:s3://b/s.tar"
    assert absolute_name("hf:a/b") == "hf:a/b"
    assert absolute_name("cifar10") == "cifar10"
    (tmp_path / "a:b").mkdir()
    (tmp_path / "cifar10").mkdir()
    assert absolute_name("a:b") == f"{tmp_path}/a:b"
    assert absolute_name("cifar10") == "cifar10"
    with pytest.raises(DataMissing, match="holds neither"):
        streams.load("a:b")
    for name, short in (
        ("cifar10", "cifar10"),
        ("folder:/a/My photos/", "My_photos"),
        ("manifest:x/rows.csv?label=a", "rows"),
        ("mine.py:NAME", "NAME"),
        ("hf:user/name", "name"),
        ("/some/data.npz", "data"),
    ):
        assert streams.short_name(name) == short
