"""One set of pictures, every container: the same data set, bit for bit; and what each container alone can say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pytest

from budgeted import streams
from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import DataError, DataMissing, own
from budgeted.streams.lazy import LazyImages
from tests.hostile.attack import digest
from tests.streams.pictures import WORDS, Row, encoded, in_every_container, pixels, rows_in, write, write_tar


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return rows_in(tmp_path_factory.mktemp("containers"))


@pytest.fixture(scope="module")
def containers(rows: list[Row]) -> dict[str, str]:
    return in_every_container(rows[0].path.parents[2], rows)


def test_the_same_bits_come_out_of_every_container(containers: dict[str, str], rows: list[Row]) -> None:
    def samples() -> Iterator[tuple[bytes, str]]:
        return ((row.path.read_bytes(), row.word) for row in rows)

    given: dict[str, Any] = {**containers, "path": str(rows[0].path.parents[1]), "iterator": samples}
    given["sequence"] = [(str(row.path), row.word) for row in rows]
    found = {kind: streams.load(name) for kind, name in given.items()}
    first = found["folder"]
    assert first.class_names == WORDS
    assert (len(first.train_labels), len(first.test_labels)) == (15, 3)
    for data in found.values():
        assert digest(data) == digest(first)
        assert (data.mean, data.std) == (first.mean, first.std)
    for name in given.values():
        lazy = streams.load(name, on_demand=True)
        assert isinstance(lazy.train_images, LazyImages)
        assert digest(lazy) == digest(first)
        assert lazy.mean == first.mean
        x, y = lazy.sample(7)
        assert np.array_equal(x.numpy(), first.train_images[7])
        assert y == first.train_labels[7]


def test_pictures_of_a_split_are_where_the_container_says(rows: list[Row], tmp_path: Path) -> None:
    lines = [f"{row.path},{row.word},{'val' if i % 3 == 0 else 'train'}" for i, row in enumerate(rows)]
    table = write(tmp_path / "t.csv", ("path,label,split\n" + "\n".join(lines)).encode())
    data = streams.load(f"manifest:{table}")
    assert (len(data.train_labels), len(data.test_labels)) == (12, 6)
    train = write_tar(tmp_path / "a.tar", _members(rows[1::3]))
    test = write_tar(tmp_path / "b.tar", _members(rows[::3]))
    again = streams.load(f"wds:{train}?test={test}")
    assert np.array_equal(again.test_images[:], data.test_images[:])
    assert len(again.train_labels) == 6
    saved = datasets.DatasetDict({"train": _table(rows[1::3]), "validation": _table(rows[::3])})
    saved.save_to_disk(tmp_path / "both")
    assert digest(streams.load(f"hf:{tmp_path / 'both'}")) == digest(again)
    with pytest.raises(DataError, match="no split 'dev', it has 'train', 'validation'"):
        streams.load(f"hf:{tmp_path / 'both'}?split=dev")


def _members(rows: list[Row]) -> dict[str, bytes]:
    return {
        f"{i}.{ending}": content
        for i, row in enumerate(rows)
        for ending, content in (("jpeg", row.path.read_bytes()), ("cls", row.word.encode()))
    }


def _table(rows: list[Row]) -> datasets.Dataset:
    table = {"picture": [str(row.path) for row in rows], "kind": [row.word for row in rows]}
    return (
        datasets.Dataset.from_dict(table)
        .cast_column("picture", datasets.Image())
        .rename_columns({"picture": "image", "kind": "label"})
    )


@pytest.mark.parametrize("share", [0.1, 0.34, 0.9])
def test_without_a_test_part_a_share_of_each_class_is_set_aside(share: float) -> None:
    labels = np.array([0] * 10 + [1] * 3 + [2] * 2 + [3])
    aside = own.split(labels, share)
    assert np.array_equal(aside, own.split(labels, share))
    counts = [int(aside[labels == label].sum()) for label in range(4)]
    assert counts == [min(max(1, int(np.floor(n * share + 0.5))), n - 1) if n > 1 else 0 for n in (10, 3, 2, 1)]
    with pytest.raises(BudgetedError, match="between 0 and 1"):
        own.split(labels, 1.0)


def test_samples_arrive_by_time_or_as_they_lie(rows: list[Row], tmp_path: Path) -> None:
    days = ["2021-03-01", "2020-01-01T10:00:00", "1999-12-31", "2020-01-01"]
    lines = [f"{row.path},{row.word},{day}" for row, day in zip(rows[:4], days, strict=True)]
    table = write(tmp_path / "t.csv", ("path,label,time\n" + "\n".join(lines) + "\n").encode())
    data = streams.load(f"manifest:{table}", test=False, test_share=0.01)
    stream = streams.stream_of(data, "arrival", 1)
    assert data.train_times is not None
    assert np.all(np.diff(data.train_times[stream.indices]) > 0)
    assert stream.boundaries() == ()
    plain = streams.load(f"folder:{rows[0].path.parents[1]}")
    assert streams.stream_of(plain, "arrival", 1)[:].tolist() == list(range(15))


def test_statistics_are_those_of_the_first_images_of_each_class(
    rows: list[Row], containers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "LOOKED_AT", 6)
    for on_demand in (True, False):
        data = streams.load(containers["folder"], on_demand=on_demand)
        firsts = [np.flatnonzero(data.train_labels == label)[:2] for label in range(3)]
        chosen = data.train_images[np.concatenate(firsts)] / 255
        assert np.allclose(data.mean, chosen.mean(axis=(0, 2, 3)))


def test_a_digest_of_lazy_images_tells_other_bytes_and_other_names(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    table = write(tmp_path / "t.csv", "\n".join(["path,label", *(f"{r.path},{r.word}" for r in rows)]).encode())
    data = streams.load(f"manifest:{table}", on_demand=True)
    assert isinstance(data.train_images, LazyImages)
    before = data.train_images.digest(np.arange(10))
    assert before == streams.load(f"manifest:{table}", on_demand=True).train_images.digest(np.arange(10))  # type: ignore[attr-defined]
    assert before != data.train_images.digest(np.arange(9))
    victim = Path(str(data.train_images.source(4)))
    content = bytearray(victim.read_bytes())
    content[-5] ^= 1
    victim.write_bytes(content)
    assert data.train_images.digest(np.arange(10)) != before


# -- manifests ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("file,label\na.png,x\n", "names no column 'path' .*manifest:FILE\\?path=COLUMN"),
        ("path,label,path\na.png,x,b\n", "names 'path' twice"),
        ("path,label\na.png\n", "line 2: 1 fields"),
        ("path,label\na.png,\n", "line 2: the label '' is empty"),
        ("path,label\n,x\n", "line 2: no path"),
        ("path,label,time\na.png,x,tomorrow\n", "line 2: the time 'tomorrow' is neither a number nor an ISO date"),
        ("path,label,time\na.png,x,nan\n", "line 2: the time 'nan' is not finite"),
        ("path,label,time\na.png,x,1\nb.png,x,\n", "b.png has no time, others have"),
        ("path,label,split\na.png,x,dev\n", "line 2: split 'dev' is none of train"),
        ("path,label,split\na.png,x,train\nb.png,x,\n", "some samples say train or test"),
        ("path,label\n", "no samples in it"),
        ('path,label\n"a.png,x\n', "is no CSV"),
        ("path,label\na.png,x\x00y\n", "line 2: holds a NUL"),
        ("path,label\na.png," + "x" * 70_000, "line 2: more than 65,536 bytes"),
    ],
)
def test_a_bad_line_is_named(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        streams.load(f"manifest:{write(tmp_path / 't.csv', text.encode())}", size=8)


def test_a_table_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", b"path,label\na.png,caf\xc3\xa9\nb.png,caf\xe9\n")
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        streams.load(f"manifest:{table}", size=8)


def test_a_missing_file_is_named_when_it_arrives(rows: list[Row], tmp_path: Path) -> None:
    lines = [*(f"{row.path},{row.word}" for row in rows), "nowhere.png,cat"]
    table = write(tmp_path / "t.csv", ("path,label\n" + "\n".join(lines)).encode())
    with pytest.raises(DataError, match=r"nowhere\.png does not exist"):
        streams.load(f"manifest:{table}")


def test_declared_classes_are_names_or_their_numbers(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / f"{i}.png", encoded(i))
    names = write(tmp_path / "names.txt", b"zebra\nant\n")
    table = write(tmp_path / "t.csv", b"path,label\n0.png,0\n1.png,zebra\n2.png,1\n3.png,ant\n")
    data = streams.load(f"manifest:{table}?classes={names}")
    assert data.class_names == ("zebra", "ant")
    assert data.train_labels.tolist() == [0, 1]
    write(table, b"path,label\n0.png,2\n")
    with pytest.raises(DataError, match="line 2: label '2' is outside the 2 classes"):
        streams.load(f"manifest:{table}?classes={names}")


def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    lines = []
    for i in range(22):
        write(tmp_path / f"{i}.png", encoded(i))
        lines.append(f"{i}.png,{i // 2}")
    data = streams.load(f"manifest:{write(tmp_path / 't.tsv', _tsv(lines))}")
    assert data.class_names == tuple(str(i) for i in range(11))
    below_zero = streams.load([(encoded(i), i // 2 - 2) for i in range(26)])
    assert below_zero.class_names == tuple(str(i) for i in range(-2, 11))


def _tsv(lines: list[str]) -> bytes:
    return "\n".join(["path,label", *lines]).replace(",", "\t").encode()


def test_options_and_columns_may_have_other_names(rows: list[Row], tmp_path: Path) -> None:
    lines = [f"{row.word},{row.path.relative_to(rows[0].path.parents[2])}" for row in rows]
    table = write(tmp_path / "t.csv", ("kind,file\n" + "\n".join(lines)).encode())
    data = streams.load(f"manifest:{table}?path=file&label=kind&root={rows[0].path.parents[2]}")
    assert digest(data) == digest(streams.load(f"folder:{rows[0].path.parents[1]}"))
    with pytest.raises(UnknownName, match="did you mean 'label'"):
        streams.load(f"manifest:{table}?lable=kind")
    with pytest.raises(BudgetedError, match="each once"):
        streams.load(f"manifest:{table}?label=a&label=b")
    with pytest.raises(DataMissing, match="does not exist"):
        streams.load("manifest:nowhere.csv")


# -- shards -------------------------------------------------------------------------------------------------------


def test_shards_at_an_address_and_by_a_pattern(rows: list[Row], containers: dict[str, str]) -> None:
    memory = fsspec.filesystem("memory")
    root = rows[0].path.parents[2]
    for shard in range(2):
        memory.pipe(f"/some/shard-{shard}.tar", (root / f"shard-{shard}.tar").read_bytes())
    expected = digest(streams.load(containers["shards"]))
    for pattern in ("memory://some/shard-{0..1}.tar", "memory://some/shard-*.tar", f"{root}/shard-[01].tar",
                    f"{root}/shard-?.tar", f"{root}/shard-{{0,1}}.tar"):  # fmt: skip
        assert digest(streams.load(f"wds:{pattern}")) == expected
    with pytest.raises(DataMissing, match="no shard of this name"):
        streams.load(f"wds:{root}/none-*.tar")
    with pytest.raises(DataMissing, match="does not exist"):
        streams.load(f"wds:{root}/none-{{0..1}}.tar")
    with pytest.raises(DataError, match="more than 100,000 shards"):
        streams.load("wds:x-{0..99999999}.tar")
    with pytest.raises(DataError, match=r"cannot be opened|does not exist"):
        streams.load("wds:memory://some/none.tar")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"a.jpg": b"x"}, r"the sample 'a' has no label \(\.cls, \.txt, \.json\)"),
        ({"a.cls": b"x"}, "the sample 'a' has no image"),
        ({"a.jpg": b"x", "a.cls": b"\xff"}, "no label can be read"),
        ({"a.jpg": b"x", "a.json": b"[1.5]"}, "neither a word nor a whole number"),
        ({"a.jpg": b"x", "a.json": b"{}"}, "no label can be read"),
        ({"a.jpg": b"x", "a.cls": b"  "}, "is empty"),
        ({"a.jpg": b"x", "a.JPG": b"y", "a.cls": b"0"}, r"two files \.jpg"),
    ],
)
def test_odd_shards_are_refused_by_sample(members: dict[str, bytes], words: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", members)
    with pytest.raises(DataError, match=words):
        streams.load(f"wds:{tmp_path / 's.tar'}", size=8)


def test_labels_in_json_and_in_an_ending_of_ones_own(tmp_path: Path) -> None:
    members = {}
    for i in range(4):
        members[f"d/{i}.seg.png"] = encoded(i)
        members[f"d/{i}.json"] = f'{{"label": {i % 2}}}'.encode()
        members[f"d/{i}.kind"] = b"ab"[i % 2 : i % 2 + 1]
    write_tar(tmp_path / "s.tar", members)
    assert streams.load(f"wds:{tmp_path / 's.tar'}").class_names == ("0", "1")
    assert streams.load(f"wds:{tmp_path / 's.tar'}?label=kind").class_names == ("a", "b")


def test_hidden_files_of_a_shard_are_passed_over(tmp_path: Path) -> None:
    members: dict[str, bytes] = {"d/.DS_Store": b"\0"}
    for i in range(4):
        for name, content in ((f"{i}.jfif", encoded(i, "JPEG")), (f"{i}.cls", b"ab"[i % 2 : i % 2 + 1])):
            members |= {f"d/._{name}": b"\0\5\x16\7", f"d/{name}": content}  # as tar of macOS writes them
    write_tar(tmp_path / "s.tar", members)
    data = streams.load(f"wds:{tmp_path / 's.tar'}")
    assert (data.class_names, len(data.train_labels)) == (("a", "b"), 2)


# -- datasets and iterators ---------------------------------------------------------------------------------------


def test_datasets_that_stream(rows: list[Row], containers: dict[str, str], tmp_path: Path) -> None:
    from budgeted.streams.dataset import Request
    from budgeted.streams.hf import listing_of

    whole = datasets.load_from_disk(containers["datasets"].removeprefix("hf:"))
    listing = listing_of([("", whole.to_iterable_dataset())], "it", {})
    facts = streams.info("cifar10")
    data = own.dataset_of(listing, Request(facts, tmp_path, on_demand=True), "it")
    assert data.sequential
    expected = streams.load(containers["folder"])
    stream = streams.stream_of(data, "arrival", 1)
    for start in (0, 6, 2):  # forward, and back again as a resumed run would
        with streams.arriving(data, stream.from_sample(start), threads=3) as samples:
            x, y = next(iter(samples))  # type: ignore[misc]
        assert np.array_equal(x.numpy(), expected.train_images[start])
        assert y == expected.train_labels[start]
    with pytest.raises(BudgetedError, match="one order only: choose the order arrival"):
        streams.stream_of(data, "gaussian", 1)


def test_declared_labels_keep_their_order_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=["9", "2", "5"])})
    table: dict[str, list[Any]] = {"img": [{"bytes": encoded(i), "path": None} for i in range(6)]}
    table["kind"] = [0, 1, 2, 0, 1, 2]
    datasets.Dataset.from_dict(table, features=features).save_to_disk(tmp_path / "d")
    data = streams.load(f"hf:{tmp_path / 'd'}")
    assert data.class_names == ("9", "2", "5")
    assert sorted([*data.train_labels.tolist(), *data.test_labels.tolist()]) == [0, 0, 1, 1, 2, 2]
    table["kind"][4] = -1
    datasets.Dataset.from_dict(table, features=features).save_to_disk(tmp_path / "e")
    with pytest.raises(DataError, match="row 4: label -1 is outside the 3 classes"):
        streams.load(f"hf:{tmp_path / 'e'}")


def test_a_name_that_is_not_on_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr("datasets.load_dataset", nothing)
    with pytest.raises(DataMissing) as caught:
        streams.load("hf:some/name")
    assert "hf:some/name cannot be opened (ConnectionError: no network)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "library"), [("hf:x", "datasets"), ("manifest:t.parquet", "pyarrow"), ("wds:s3://b/x.tar", "fsspec")]
)
def test_a_missing_library_says_how_to_install_it(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, library, None)  # an import of it fails now
    with pytest.raises(BudgetedError, match=r"pip install 'budgeted\[data\]'"):
        streams.load(name)


def test_iterators_must_begin_anew_and_give_the_same(tmp_path: Path) -> None:
    samples = [(pixels(i), "ab"[i % 2], float(9 - i)) for i in range(8)]
    data = streams.load(lambda: iter(samples), on_demand=True)
    assert data.train_times is not None
    assert data.sequential
    with pytest.raises(BudgetedError, match="can be gone through once only"):
        streams.load(iter(samples))
    only = iter(samples)
    with pytest.raises(BudgetedError, match="can be gone through once only: give a function that makes it anew"):
        streams.load(lambda: only)
    now = samples
    changing = streams.load(lambda: iter(now), on_demand=True, test=False)
    now = [(x, "a", t) for x, _, t in samples]
    with pytest.raises(DataError, match="another label than the first time"):
        changing.train_images[:]
    for odd, words in (
        ([(pixels(0), 2.9)], "label 2.9 is neither"),
        ([pixels(0)], r"no \(x, y\)"),
        ([(pixels(0) / 255.0, 1), (pixels(0), 1)], "is float64"),
        ([(pixels(0), 1), (pixels(0, 9, 9), 1)], "is 9x9, the first 8x8"),
    ):
        with pytest.raises(DataError, match=words):
            streams.load(odd)
    assert streams.load([(np.zeros((3, 8, 8), np.uint8), np.int64(i % 2)) for i in range(4)]).class_names == ("0", "1")
