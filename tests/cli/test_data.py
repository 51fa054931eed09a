"""`budgeted data`: what it prints, draws and refuses."""

from __future__ import annotations

import hashlib
import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from budgeted import streams
from budgeted.cli import main
from budgeted.streams import registry
from budgeted.streams.download import Source
from budgeted.streams.picture import BINS, SHOWN, arrivals
from tests.streams.pictures import encoded, rows_in, write
from tests.streams.test_download import Served, served  # noqa: F401  a fixture
from tests.streams.test_official_layouts import zipped


def test_info_draws_the_classes_and_their_arrival(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "info", "digits", "--stream", "disjoint"]) == 0
    out = capsys.readouterr().out
    assert "10 classes, 1,437 training and 360 test samples of 1x8x8" in out
    assert "licence: Creative Commons" in out
    with Image.open(tmp_path / "digits.png") as picture:
        drawn = np.asarray(picture.convert("RGB")).astype(int)
    data = streams.load("digits")
    stream = streams.stream_of(data, "disjoint", 1)
    counts = arrivals(data, stream)
    assert counts.sum() == len(stream)
    assert counts.shape == (10, BINS)
    for position in (0, 700, 1436):
        assert counts[data.train_labels[stream[position]], position * BINS // len(stream)] > 0
    # In the row of the class that comes first, the strip is blue at its beginning and empty at its end.
    row = drawn[44 + 20, -482:-6]
    assert row[:60].mean(axis=0)[0] < 200
    assert (row[-60:] == 240).all()


def test_info_may_draw_into_the_folder_that_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(rows_in(tmp_path)[0].path.parents[1])
    for _ in range(2):
        assert main(["data", "info", "."]) == 0
    assert [path.name for path in Path().glob("*.png")] == ["data.png"]
    assert streams.load(".").info.train_size == 15


COUNTED = """
    import numpy as np

    def samples():
        with open("begun", "a") as file:
            file.write("x")
        for i in range(60):
            yield np.full((8, 8, 3), 4 * i, np.uint8), "abcdef"[i % 6]

    class Samples:
        def __iter__(self):
            return samples()

    again = Samples()
"""


@pytest.mark.parametrize("name", ["samples", "again"])
def test_info_goes_through_an_iterator_once_for_its_picture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(textwrap.dedent(COUNTED))
    assert main(["data", "info", f"mine.py:{name}", "--json"]) == 0
    without = len((tmp_path / "begun").read_text())
    assert main(["data", "info", f"mine.py:{name}", "--picture", "it.png"]) == 0
    assert without == 2  # for the labels, and for mean and deviation
    assert len((tmp_path / "begun").read_text()) - without == without + 1
    with Image.open(tmp_path / "it.png") as picture:
        drawn = np.asarray(picture.convert("RGB")).astype(int)
    data = streams.load(f"mine.py:{name}")
    shades, labels = data.train_images[:][:, 0, 0, 0].tolist(), data.train_labels.tolist()
    assert len(set(shades)) == len(shades) == 48
    for row, label in enumerate(dict.fromkeys(labels)):
        of_it = [shade for shade, each in zip(shades, labels, strict=True) if each == label][:SHOWN]
        for column, shade in enumerate(of_it):
            assert (drawn[44 + 44 * row + 20, 180 + 44 * column + 20] == shade).all()


def test_info_of_what_is_not_there_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", "imagenet", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1,281,167 training" in out
    assert "md5 1d675b47d978889d74fa0da5fadfb00e" in out
    assert main(["data", "info", "cifar10", "--data", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["official"]["train"] == 50_000
    assert facts["downloads"][0]["md5"] == "c32a1d4ab5d03f1284b67883e8d87530"


def test_check_names_what_is_bad_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_in(tmp_path)
    assert main(["data", "check", f"folder:{tmp_path / 'tree'}"]) == 0
    assert "18 samples looked at, 0 bad; 15 training and 3 test samples of 3 classes" in capsys.readouterr().out
    rows[4].path.write_bytes(b"")
    write(rows[0].path.with_name("wide.png"), encoded(1, "PNG", 9, 20))
    assert main(["data", "check", str(tmp_path / "tree")]) == 2
    said = capsys.readouterr()
    assert f"bad: {rows[4].path}: not a whole image (0 bytes" in said.out
    assert "sizes from 8x8 to 9x20: a run needs --size PIXELS" in said.out
    assert "1 of 19 samples" in said.err
    assert said.err.count("\n") == 1
    assert main(["data", "check", str(tmp_path / "tree"), "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["bad"]) == 1


def test_check_compares_files_with_their_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "cifar-10-binary.tar.gz", b"something else")
    assert main(["data", "check", "cifar10", "--data", str(tmp_path)]) == 2
    assert "instead of c32a1d4ab5d03f1284b67883e8d87530: fetch it again" in capsys.readouterr().err


def test_fetch_downloads_unpacks_and_resumes(
    served: Served,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    members = {
        f"tiny/{part}/{word}/{i}.png": encoded(i) for part in ("train", "val") for word in "ab" for i in range(2)
    }
    content = zipped(members)
    served.content = {"/tiny.zip": content}
    source = Source(f"{served.address}/tiny.zip", hashlib.md5(content).hexdigest(), "tiny.zip", len(content), "tiny")
    known = registry.DATASETS["tinyimagenet"]
    entry = streams.Entry(
        known.info, lambda request: streams.folder.read(request, ("tiny",)), ((source,),), resizes=True, licence="free"
    )
    monkeypatch.setitem(registry.DATASETS._known, "tinyimagenet", entry)
    served.cuts = [100]
    monkeypatch.setattr("budgeted.streams.download.time.sleep", lambda _: None)
    assert main(["data", "fetch", "tinyimagenet", "--data", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "licence: free" in said
    assert "4 training and 4 test samples of 2 classes" in said
    assert served.asked == [None, "bytes=100-"]
    assert (tmp_path / "tiny/train/a/0.png").read_bytes() == encoded(0)
    assert main(["data", "fetch", "tinyimagenet", "--data", str(tmp_path)]) == 0
    assert len(served.asked) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["fetch", "imagenet"], "imagenet cannot be fetched: ask for access at https://image-net.org"),
        (["fetch", "digits"], "it needs no download"),
        (["info", "nothing-like-it"], "unknown data set 'nothing-like-it'"),
        (["check", "folder:nowhere"], "nowhere is no folder"),
        (["info", "digits", "--size", "3"], "leave --size out"),
        (["info", "digits", "--picture", "no/such/place.png"], "cannot be written"),
    ],
)
def test_mistakes_are_one_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
