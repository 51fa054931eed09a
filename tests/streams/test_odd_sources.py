"""Users' own data that were once refused, blamed, dropped or waited for without a reason."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from PIL import Image

from budgeted import streams
from budgeted.errors import BudgetedError
from budgeted.streams import Bad, DataError, Dataset, own
from budgeted.streams.check import check
from budgeted.streams.image_file import MOST_PIXELS
from budgeted.streams.lazy import LazyImages
from budgeted.streams.pixels import Pixels
from budgeted.streams.registry import absolute_name
from tests.streams.pictures import encoded, pixels, write


def photos(root: Path, count: int = 5) -> Path:
    """cat/ and dog/ of so many pictures."""
    for i in range(2 * count):
        write(root / ("cat", "dog")[i % 2] / f"{i // 2}.png", encoded(i))
    return root


def arrived(data: Dataset) -> tuple[list[int], list[Bad]]:
    """The labels of the samples that come, and those that are bad."""
    with streams.arriving(data, range(len(data.train_labels)), skip_bad=True) as samples:
        found = list(samples)
    return [int(each[1]) for each in found if not isinstance(each, Bad)], [e for e in found if isinstance(e, Bad)]


# -- bad samples are passed over, and counted -----------------------------------------------------------------------


def test_a_size_is_found_among_bad_pictures(tmp_path: Path) -> None:
    write(photos(tmp_path) / "cat" / "9.png", b"")
    with pytest.raises(DataError, match=r"9\.png: not a whole image"):
        streams.load(f"folder:{tmp_path}")
    data = streams.load(f"folder:{tmp_path}", skip_bad=True)
    assert data.input_shape == (3, 8, 8)
    report = check(data)
    assert (report.looked_at, len(report.bad)) == (11, 1)
    write(tmp_path / "cat" / "10.png", encoded(1, "PNG", 9, 9))  # not bad: another size has to be said
    with pytest.raises(DataError, match=r"is 9x9, the first 8x8|is 8x8, the first 9x9"):
        streams.load(f"folder:{tmp_path}", skip_bad=True)


@pytest.mark.parametrize("size", [None, 8])
def test_where_nothing_can_be_read_the_first_reason_is_told(size: int | None, tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", b"path,label\n" + b"".join(b"no/%d.png,a\n" % i for i in range(4)))
    with pytest.raises(DataError, match=r"none of .* can be read; the first: .*no/\d\.png does not exist"):
        streams.load(f"manifest:{table}", size=size, skip_bad=True)


def test_a_digest_takes_a_sample_that_its_container_cannot_give(tmp_path: Path) -> None:
    images = [encoded(i) for i in range(8)]
    table = {"image": [None if i == 3 else image for i, image in enumerate(images)], "label": list("abababab")}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    data = streams.load(f"manifest:{tmp_path / 't.parquet'}", size=8, skip_bad=True)
    found = []
    for part in (data.train_images, data.test_images):
        assert isinstance(part, LazyImages)
        found.append(part.digest(np.arange(len(part))))
    again = streams.load(f"manifest:{tmp_path / 't.parquet'}", size=8, skip_bad=True).train_images
    assert isinstance(again, LazyImages)
    assert again.digest(np.arange(len(again))) == found[0]
    assert (
        len(arrived(data)[1]) + (len(data.test_labels) - len(streams.held(data.test_images, np.arange(2), True)[1]))
        == 1
    )


def test_test_images_that_are_left_out_are_told(tmp_path: Path) -> None:
    for i in range(6):
        write(tmp_path / "train" / "ab"[i % 2] / f"{i}.png", encoded(i))
        write(tmp_path / "test" / "ab"[i % 2] / f"{i}.png", encoded(i) if i != 4 else b"")
    data = streams.load(str(tmp_path), size=8, skip_bad=True)
    bad: list[str] = []
    images, places = streams.held(data.test_images, np.arange(6), True, bad)
    assert (len(images), places.tolist()) == (5, [0, 1, 3, 4, 5])
    assert [reason.partition(":")[0] for reason in bad] == [str(tmp_path / "test" / "a" / "4.png")]
    assert len(streams.held(data.test_images, np.arange(6), True)[1]) == 5
    with pytest.raises(DataError, match=r"none of the test images can be read; the first: .*4\.png"):
        streams.held(data.test_images, np.array([2]), True)


def test_a_link_to_nothing_is_a_missing_file(tmp_path: Path) -> None:
    (photos(tmp_path) / "cat" / "9.png").symlink_to("nowhere.png")
    (tmp_path / "cat" / "8.png").symlink_to("8.png")  # in a circle
    with pytest.raises(DataError, match=r"[89]\.png"):
        streams.load(f"folder:{tmp_path}", size=8)
    report = check(streams.load(f"folder:{tmp_path}", skip_bad=True))
    assert (report.looked_at, len(report.bad)) == (12, 2)


# -- an interrupted run does not wait for an iterator -----------------------------------------------------------------

BLOCKS = """
    import pathlib, threading, time
    import numpy as np

    def samples():
        for i in range(40):
            if i == 12 and threading.current_thread().name.startswith("decode"):
                pathlib.Path("blocked").touch()
                time.sleep(3600)
            yield np.full((8, 8, 3), i, np.uint8), "ab"[i % 2]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_iterator_that_blocks_does_not_keep_an_interrupted_run(number: int, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(BLOCKS))
    words = "run --dataset mine.py:samples --stream arrival --method er --model mlp --iterations 1 --slots 20 --seed 1"
    process = subprocess.Popen(
        [sys.executable, "-m", "budgeted", *words.split(), "--eval-every", "4", "--skip-bad", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever is in the background ignores it
    )
    try:
        for _ in range(1200):
            if (tmp_path / "blocked").exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.poll() is None, process.communicate()[0].decode()
        time.sleep(0.5)  # to where the learner waits for it
        process.send_signal(number)
        said = process.communicate(timeout=60)[0].decode()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode > 0, said
    assert "Traceback" not in said


def test_threads_are_waited_for_where_nothing_went_wrong_and_no_longer_than_that() -> None:
    blocked, let_go = threading.Event(), threading.Event()

    def samples() -> Iterator[tuple[NDArray[np.uint8], str]]:
        for i in range(20):
            if i == 10 and threading.current_thread().name.startswith("decode"):
                blocked.set()
                let_go.wait(60)
            yield pixels(i), "ab"[i % 2]

    data = streams.load(samples, on_demand=True)
    with contextlib.suppress(KeyboardInterrupt), streams.arriving(data, range(16), ahead=12) as some:
        coming = iter(some)
        assert len([next(coming) for _ in range(3)]) == 3
        assert blocked.wait(60)
        raise KeyboardInterrupt
    decoding = [thread for thread in threading.enumerate() if thread.name.startswith("decode")]
    assert len(decoding) == 1
    assert decoding[0].daemon
    let_go.set()
    decoding[0].join(60)
    with streams.arriving(data, range(10)) as all_of_them:
        assert len(list(all_of_them)) == 10
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


# -- what a user's code raises ----------------------------------------------------------------------------------------


class Items:
    """As of torchvision: items by number, one of which cannot be had."""

    def __init__(self, bad: tuple[int, ...] = (), **more: Any) -> None:
        self._bad = bad
        self.__dict__.update(more)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Any, str]:
        if index in self._bad:
            raise OSError("the disk is gone")
        return pixels(index), "ab"[index % 2]


@pytest.mark.parametrize("bad", [(0, 1), (5,), (4, 11)])
@pytest.mark.parametrize("more", [{}, {"targets": list("ab" * 6)}])
def test_what_an_item_raises_is_named_and_may_be_passed_over(bad: tuple[int, ...], more: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"the data set sample {bad[0]}: OSError: the disk is gone"):
        streams.load(Items(bad, **more))
    data = streams.load(Items(bad, **more), skip_bad=True)
    report = check(data)
    assert (report.looked_at, len(report.bad)) == (12, len(bad))
    assert all("OSError: the disk is gone" in each for each in report.bad)
    assert isinstance(data.train_images, LazyImages)
    labels, _ = arrived(data)
    whole = streams.load(Items())
    for index, label in enumerate(data.train_labels):
        number = int(data.train_images.where(index).rpartition(" ")[2])
        assert label == number % 2 or number in bad
    assert len(labels) <= len(data.train_labels) <= len(whole.train_labels) + len(bad)
    with pytest.raises(
        DataError, match="none of the 12 samples can be read; the first: the data set sample 0: OSError"
    ):
        streams.load(Items(tuple(range(12))), skip_bad=True)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_an_iterator_that_raises_cannot_go_on(skip_bad: bool) -> None:
    ends = 99

    def samples() -> Iterator[tuple[NDArray[np.uint8], str]]:
        for i in range(12):
            if i == ends:
                raise ValueError("no more\nof it")
            yield pixels(i), "ab"[i % 2]

    data = streams.load(samples, on_demand=True, skip_bad=skip_bad, test=False)
    ends = 6
    with (
        pytest.raises(BudgetedError, match="the data set cannot go on behind its 6 samples: ValueError: no more of it"),
        streams.arriving(data, range(8), skip_bad=skip_bad) as some,
    ):
        list(some)
    with pytest.raises(DataError, match="cannot go on behind its 6 samples: ValueError: no more of it"):
        streams.load(samples, skip_bad=skip_bad)
    ends = 99
    assert np.array_equal(data.train_images[7], data.train_images[7:8][0])


def test_a_given_image_that_cannot_be_decoded_is_named() -> None:
    def cut(i: int) -> Image.Image:
        return Image.open(io.BytesIO(encoded(i)[: 150 if i == 3 else None]))

    samples = [(cut(i), "ab"[i % 2]) for i in range(8)]
    with pytest.raises(DataError, match=r"the data set sample 3: OSError: .*truncated"):
        streams.load(samples)
    data = streams.load(samples, skip_bad=True)
    assert len(check(data).bad) == 1
    for part in (data.train_images, data.test_images):
        assert isinstance(part, LazyImages)
        part.digest(np.arange(len(part)))


def test_full_memory_is_no_damaged_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    photos(tmp_path)
    monkeypatch.setattr(Image.Image, "convert", full)
    with pytest.raises(MemoryError, match=r"\.png: no memory is left to decode it"):
        streams.load(str(tmp_path), size=8, skip_bad=True)


def test_a_size_that_no_image_may_have_is_refused_before_anything_is_read() -> None:
    def never() -> None:
        raise AssertionError

    for size, words in ((10**6, "choose 9,459 or less"), (0, "choose 1 or more")):
        with pytest.raises(DataError, match=words):
            streams.load(never, size=size)
    assert Pixels(9459).size ** 2 <= MOST_PIXELS < 9460**2


# -- odd objects ------------------------------------------------------------------------------------------------------


def test_a_path_is_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = streams.load(str(photos(tmp_path / "photos")))
    found = streams.load(tmp_path / "photos")
    assert found.name == expected.name == "photos"
    assert np.array_equal(found.train_images[:], expected.train_images[:])
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(streams.load("~/photos").train_labels) == 8


class Table:
    """As of pandas: of a length, but its items are columns."""

    def __len__(self) -> int:
        return 3

    def keys(self) -> list[str]:
        return ["x", "y"]

    def __getitem__(self, key: str) -> Any:
        raise KeyError(key)


@pytest.mark.parametrize("given", [{"x": 1, "y": 2}, Table(), lambda: {"x": 1}])
def test_a_table_is_no_sequence_of_samples(given: Any) -> None:
    with pytest.raises(BudgetedError, match=r"is a (dict|Table), no samples: give a sequence of \(x, y\)"):
        streams.load(given)


@pytest.mark.parametrize("labels", [lambda: list("ab" * 6), {"a": 0}, None, "ab", 7])
def test_labels_that_are_no_list_of_all_are_not_taken_for_one(labels: Any) -> None:
    assert streams.load(Items(labels=labels)).train_labels.tolist() == streams.load(Items()).train_labels.tolist()


DAYS = ["2021-03-01", "2020-01-01", "1999-12-31", "2020-01-02"]


@pytest.mark.parametrize(
    "made", [str, datetime.fromisoformat, date.fromisoformat, np.datetime64, lambda day: np.datetime64(day, "ns")]
)
@pytest.mark.parametrize("iterated", [False, True])
def test_times_are_taken_as_a_manifest_takes_them(made: Callable[[str], Any], iterated: bool) -> None:
    samples = [(pixels(i), "a", made(day)) for i, day in enumerate(DAYS)]
    data = streams.load((lambda: iter(samples)) if iterated else samples, test=False, test_share=0.01)
    assert data.train_times is not None
    every = [datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() for day in DAYS]
    assert set(data.train_times) < set(every)
    assert len(data.train_times) == 3


@pytest.mark.parametrize("time", [np.inf, float("nan"), "tomorrow", [1, 2], np.datetime64("NaT"), object(), 10**400])
def test_what_is_no_time_is_refused(time: Any) -> None:
    with pytest.raises(DataError, match=r"the data set sample 1.*time"):
        streams.load([(pixels(0), "a", 1.0), (pixels(1), "a", time)])


def test_every_way_to_give_pixels_is_one_input(tmp_path: Path) -> None:
    colour, grey = pixels(1), pixels(2)[:, :, 0]
    path = write(tmp_path / "1.png", encoded(1))
    chw = np.ascontiguousarray(colour.transpose(2, 0, 1))
    for size in (8, 5):
        expected = Pixels(size).of(encoded(1))
        for given in (
            path,
            str(path),
            bytearray(encoded(1)),
            memoryview(encoded(1)),
            colour,
            chw,
            Image.fromarray(colour),
        ):
            assert np.array_equal(Pixels(size).of(given, "it"), expected)
            assert streams.load([(given, "a")] * 4, size=size).input_shape == (3, size, size)
        plain = Image.fromarray(grey).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
        for array in (grey, grey[None], grey[:, :, None]):
            assert np.array_equal(Pixels(size).of(array, "it"), np.asarray(plain).transpose(2, 0, 1))
            assert Pixels(size, channels=1).of(array, "it").shape == (1, size, size)
    for given in (path, bytearray(encoded(1)), grey, grey[None], chw):
        assert streams.load([(given, "a")] * 4).input_shape == (3, 8, 8)
    small = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)  # both ends could be channels
    assert np.array_equal(streams.load([(small, "a")] * 4).train_images[0], small.transpose(2, 0, 1))
    assert np.array_equal(streams.load([(small.transpose(2, 0, 1), "a")] * 4).train_images[0], small.transpose(2, 0, 1))


@pytest.mark.parametrize(
    "given", [np.zeros((0, 8, 3), np.uint8), np.zeros((3, 0, 0), np.uint8), np.zeros(8, np.uint8),
              np.zeros((2, 8, 8), np.uint8), Image.new("RGB", (0, 0)), np.zeros((), np.uint8)]
)  # fmt: skip
@pytest.mark.parametrize("size", [None, 8])
def test_pixels_that_are_none_are_refused(given: Any, size: int | None) -> None:
    with pytest.raises(DataError, match=r"the data set sample \d.*at least one"):
        streams.load([(given, "a")] * 4, size=size)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_an_iterator_gives_pictures_of_one_size_or_a_size_is_said(skip_bad: bool) -> None:
    def samples() -> Iterator[tuple[Any, str]]:
        if skip_bad:
            yield b"", "a"
        yield from ((encoded(i, "PNG", 8 + i // 7, 8 + i // 7), "a") for i in range(10))

    with pytest.raises(BudgetedError, match="is 9x9, the first 8x8: pass size=PIXELS"):
        arrived(streams.load(samples, skip_bad=skip_bad))
    assert streams.load(samples, size=8, skip_bad=skip_bad).input_shape == (3, 8, 8)


# -- folders ----------------------------------------------------------------------------------------------------------


def test_train_without_a_test_folder_is_a_folder_without_a_split(tmp_path: Path) -> None:
    expected = streams.load(str(photos(tmp_path / "plain")))
    data = streams.load(str(photos(tmp_path / "x" / "train").parent))
    assert np.array_equal(data.train_images[:], expected.train_images[:])
    assert np.array_equal(data.test_images[:], expected.test_images[:])


@pytest.mark.parametrize("train", ["train", "Train", "TRAINING", "training"])
@pytest.mark.parametrize("test", ["Test", "testing", "valid", "Validation", "VAL"])
def test_folders_of_a_split_in_any_case(train: str, test: str, tmp_path: Path) -> None:
    photos(tmp_path / train)
    photos(tmp_path / test, 1)
    data = streams.load(str(tmp_path))
    assert (len(data.train_labels), len(data.test_labels), data.train_domains) == (10, 2, None)
    (tmp_path / train).rename(tmp_path / "learn")
    with pytest.raises(DataError, match="has no train/ beside it"):
        streams.load(str(tmp_path))


def test_a_class_may_be_called_train_and_two_trains_are_refused(tmp_path: Path) -> None:
    photos(tmp_path / "vehicles")
    (tmp_path / "vehicles" / "cat").rename(tmp_path / "vehicles" / "Train")
    assert streams.load(str(tmp_path / "vehicles")).class_names == ("Train", "dog")
    for name in ("train", "Train"):
        photos(tmp_path / "two" / name)
    with pytest.raises(DataError, match="holds Train/ and train/: rename or remove one"):
        streams.load(str(tmp_path / "two"))


@pytest.mark.parametrize("name", [".", "folder:.", "./", "folder:../photos"])
def test_the_folder_that_one_is_in(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = streams.load(str(photos(tmp_path / "photos")))
    monkeypatch.chdir(tmp_path / "photos")
    assert np.array_equal(streams.load(name).train_images[:], expected.train_images[:])
    (photos(tmp_path / "split" / "train").parent / "test").symlink_to("train")
    monkeypatch.chdir(tmp_path / "split")
    assert len(streams.load(".").test_labels) == 10


@pytest.mark.parametrize("stray", ["cat/more/9.png", "cat/a/b/9.png"])
@pytest.mark.parametrize("above", ["", "train/", "train/2021/"])
def test_pictures_below_pictures_are_refused(stray: str, above: str, tmp_path: Path) -> None:
    photos(tmp_path / above)
    write(tmp_path / above / stray, encoded(9))
    with pytest.raises(
        DataError, match=r"9\.png lies below the class .*cat: put the images of a class into one folder"
    ):
        streams.load(str(tmp_path))


@pytest.mark.parametrize("parts", [("",), ("train",), ("train/2021",), ("train", "test"), ("Train", "val")])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_pictures_beside_the_folders_are_refused(parts: tuple[str, ...], skip_bad: bool, tmp_path: Path) -> None:
    for part in parts:
        photos(tmp_path / part)
    above = {tmp_path, *(tmp_path / part.partition("/")[0] for part in parts)}
    for folder in above:
        for name in (".DS_Store", "._9.png", "Thumbs.db", "desktop.ini", "notes.txt"):
            write(folder / name, b"no image")
    data = streams.load(str(tmp_path), skip_bad=skip_bad)
    assert len(data.train_labels) + len(data.test_labels) == 10 * len(parts)
    for folder in above:
        stray = write(folder / "9.PNG", encoded(9))
        with pytest.raises(DataError, match=r"9\.PNG lies beside .* and so in no class: put it into the folder of its"):
            streams.load(str(tmp_path), skip_bad=skip_bad)
        other = write(stray.with_name("10.png"), b"")
        with pytest.raises(DataError, match=r"10\.png lies beside .* and so in no class \(so do 1 more\): put it"):
            streams.load(str(tmp_path), skip_bad=skip_bad)
        stray.unlink()
        other.unlink()


def test_photographs_of_every_usual_ending_are_read_or_refused(tmp_path: Path) -> None:
    for i, name in enumerate(("8.jfif", "9.JPE")):
        write(photos(tmp_path) / "cat" / name, encoded(20 + i, "JPEG"))
    assert len(streams.load(str(tmp_path), on_demand=True).train_labels) == 6 + 4
    write(tmp_path / "dog" / "9.HEIC", b"\0\0\0\x18ftypheic")
    with pytest.raises(DataError, match=r"9\.HEIC: not a whole image .*of no known format.*: .*save it as JPEG or PNG"):
        streams.load(str(tmp_path))
    report = check(streams.load(str(tmp_path), skip_bad=True))
    assert (report.looked_at, len(report.bad)) == (13, 1)


def test_unlabelled_pictures_for_testing_are_left_alone_where_others_are_labelled(tmp_path: Path) -> None:
    photos(tmp_path / "train")
    photos(tmp_path / "val", 1)
    for i in range(3):
        write(tmp_path / "test" / f"{i}.png", encoded(i))  # as of ImageNet
    assert len(streams.load(str(tmp_path)).test_labels) == 2
    shutil.rmtree(tmp_path / "val")
    with pytest.raises(DataError, match=r"no test/ or val/ folder with images in CLASS/ beside train/: add one"):
        streams.load(str(tmp_path))


# -- names ------------------------------------------------------------------------------------------------------------


def test_options_that_are_paths_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "photos").mkdir(parents=True)
    for name in ("rows.csv", "x&y.txt", "rows.json"):
        (tmp_path / name).write_text("a\n")
    for name, expected in (
        ("manifest:rows.csv?root=a&label=b", f"manifest:{tmp_path}/rows.csv?root={tmp_path}/a&label=b"),
        ("manifest:rows.csv?classes=x%26y.txt", f"manifest:{tmp_path}/rows.csv?classes={tmp_path}/x%26y.txt"),
        ("wds:s-*.tar?test=v-?.tar&label=cls", f"wds:{tmp_path}/s-*.tar?test={tmp_path}/v-?.tar&label=cls"),
        ("wds:~/s-*.tar?test=~/v.tar", f"wds:{tmp_path}/home/s-*.tar?test={tmp_path}/home/v.tar"),
        ("wds:s3://b/s.tar?test=s3://b/v.tar", "wds:s3://b/s.tar?test=s3://b/v.tar"),
        ("hf:json?files=rows.json&test=test", f"hf:json?files={tmp_path}/rows.json&test=test"),
        ("hf:a/b?files=there.json", "hf:a/b?files=there.json"),
        ("folder:~/photos", f"folder:{tmp_path}/home/photos"),
        ("~/photos", f"{tmp_path}/home/photos"),
    ):
        assert absolute_name(name) == expected
        assert absolute_name(expected) == expected


@pytest.mark.parametrize("scheme", ["folder:", "manifest:", "wds:", "hf:", "npz:", "folder:?a=b"])
def test_an_address_without_a_place_is_one_plain_line(scheme: str) -> None:
    bare = scheme.partition("?")[0]
    for asked in (streams.load, streams.info):
        with pytest.raises(BudgetedError, match=f"^{bare} names no data: write {bare}[A-Z]+$"):
            asked(scheme)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pics.zip", "unpack it and give folder:PATH"),
        ("pics.tar.gz", "unpack it and give folder:PATH"),
        ("x.csv.gz", "unpack it and give the file"),
        ("x.jsonl", "columns path and label, and give manifest:FILE"),
        ("mine.py", "as FILE.py:NAME"),
        ("one.JPG", "this is one picture: give the folder"),
    ],
)
def test_a_file_that_nobody_reads_says_what_is_wanted(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        streams.load(str(write(tmp_path / name, b"x")))


def test_too_many_tasks_say_what_a_command_line_can_do() -> None:
    with pytest.raises(
        BudgetedError, match=r"5 tasks for 2 classes: choose another order .*--stream.*tasks= between 1 and 2"
    ):
        streams.make_stream("disjoint", [0, 1, 0, 1], 1)


def test_what_is_measured_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "MOST_MEASURED", 5)
    with pytest.raises(DataError, match="images and no size"):
        streams.load(str(photos(tmp_path)), skip_bad=True)
