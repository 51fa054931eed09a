"""Tables, `datasets` and shards that were once taken for something else: each is refused, or read as it is meant."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from budgeted import streams
from budgeted.streams import DataError, imagenet, tars
from tests.hostile.containers import imagenet as imagenet_files
from tests.streams.pictures import encoded, write, write_tar


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of four pictures, 0.png to 3.png."""
    for i in range(4):
        write(tmp_path / f"{i}.png", encoded(i))
    return tmp_path


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def table(place: Path, text: str, name: str = "t.csv") -> str:
    return f"manifest:{write(place / name, text.encode())}"


def parquet(place: Path, columns: dict[str, Any]) -> str:
    pyarrow.parquet.write_table(pyarrow.table(columns), place / "t.parquet")
    return f"manifest:{place / 't.parquet'}"


def saved(place: Path, columns: dict[str, Any]) -> str:
    """Rows of `datasets` with these columns besides the pictures."""
    datasets.disable_progress_bars()
    pictures = [str(place / f"{i}.png") for i in range(4)]
    rows = datasets.Dataset.from_dict({"image": pictures, **columns}).cast_column("image", datasets.Image())
    rows.save_to_disk(place / "saved")
    return f"hf:{place / 'saved'}"


# -- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (
            "path,label\n0.png,cat\n1.png,cat, black\n",
            "t.csv",
            "t.csv line 3: 3 fields, the header has 2: quote a field",
        ),
        ("path,label\nmy,0.png,cat\n", "t.csv", "line 2: 3 fields, the header has 2: quote a field that holds a comma"),
        ("label,path\ncat,0.png,,x\n", "t.csv", "line 2: 4 fields, the header has 2"),
        ("path\tlabel\n0.png\tcat\tblack\n", "t.tsv", "line 2: 3 fields, the header has 2: quote a field"),
    ],
)
def test_a_row_with_more_fields_than_the_header_is_refused(text: str, name: str, words: str, place: Path) -> None:
    with pytest.raises(DataError, match=words):
        streams.load(table(place, text, name))


@pytest.mark.parametrize(
    ("header", "name", "mark"),
    [("path;label", "t.csv", "commas"), ("path\tlabel", "t.csv", "commas"), ("path,label", "t.tsv", "tabs")],
)
def test_other_marks_between_fields_are_said(header: str, name: str, mark: str, place: Path) -> None:
    with pytest.raises(DataError, match=rf"the header is one field, .*: write {mark} between fields"):
        streams.load(table(place, f"{header}\n0.png\n", name))


def test_empty_fields_more_are_nothing_and_a_comma_in_quotes_is_part_of_its_field(place: Path) -> None:
    write(place / "a, b.png", encoded(7))
    text = 'path,label\n0.png,ant,\n1.png,ant, ,\n"a, b.png","cat, black"\n2.png,"cat, black"\n'
    assert streams.load(table(place, text)).class_names == ("ant", "cat, black")


def test_spaces_around_a_field_are_no_part_of_it(place: Path) -> None:
    text = 'path, label\n"0.png", "cat"\n 1.png , cat \n2.png,"dog"\n"3.png ", dog\n'
    data = streams.load(table(place, text))
    assert data.class_names == ("cat", "dog")
    assert len(data.train_labels) + len(data.test_labels) == 4
    with pytest.raises(DataError, match="row 0: no path"):
        streams.load(parquet(place, {"path": ["  "], "label": ["cat"]}))


@pytest.mark.parametrize("label", ["2.9", "1.0", "-0.5", "1e3", "nan", "NaN", "inf", "-Infinity", ".5"])
def test_a_label_that_is_a_number_but_not_a_whole_one_is_refused(label: str, place: Path) -> None:
    words = f"1: the label '{label}' is neither a word nor a whole number"
    with pytest.raises(DataError, match=words.replace("1:", "line 3:")):
        streams.load(table(place, f"path,label\n0.png,1\n1.png,{label}\n"))
    with pytest.raises(DataError, match=words.replace("1:", "row 1:")):
        streams.load(parquet(place, {"path": ["0.png", "1.png"], "label": ["1", label]}))


@pytest.mark.parametrize("label", ["2.9", "1.0", " 1e3 ", "NaN", "-Infinity"])
@pytest.mark.parametrize("kind", ["cls", "json", "hf", "hf streaming", "npz", "sequence", "iterator", "folder"])
def test_every_other_container_treats_labels_as_a_table_does(kind: str, label: str, place: Path) -> None:
    given, where = labelled(place, kind, label)
    words = f"{where}: the label {label.strip()!r} is neither a word nor a whole number: correct it, or give the class"
    with pytest.raises(DataError, match=words) as caught:
        streams.load(given)
    assert "\n" not in str(caught.value)
    given, _ = labelled(place, kind, "v2.9")
    assert streams.load(given).class_names == ("cat", "v2.9")


def labelled(place: Path, kind: str, label: str) -> tuple[Any, str]:
    """Two pictures labelled cat and two labelled so, and what an error calls the first of the latter."""
    labels = ["cat", label, "cat", label]
    if kind in ("cls", "json"):
        members = {f"{i}.png": encoded(i) for i in range(4)}
        members |= {f"{i}.{kind}": (each if kind == "cls" else f'"{each}"').encode() for i, each in enumerate(labels)}
        write_tar(place / "s.tar", dict(sorted(members.items())))
        return f"wds:{place / 's.tar'}", r"s\.tar: the sample '1'"
    if kind == "hf":
        return saved(place, {"label": labels}), "row 1"
    if kind == "hf streaming":
        rows = (f'{{"image": "{place}/{i}.png", "label": "{each}"}}\n' for i, each in enumerate(labels))
        (place / "rows.jsonl").write_text("".join(rows))
        return f"hf:json?files={place}/rows.jsonl&streaming=1&image=image&label=label", "row 1"
    if kind == "npz":
        images = np.zeros((4, 8, 8), np.uint8)
        np.savez(place / "t.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
        return str(place / "t.npz"), r"y_train\[1\]"
    if kind == "folder":
        for i, each in enumerate(labels):
            write(place / label / each.strip() / f"{i}.png", encoded(i))
        return f"folder:{place / label}", r"1\.png"
    samples = [(encoded(i), each) for i, each in enumerate(labels)]
    return (samples if kind == "sequence" else lambda: iter(samples)), "the data set sample 1"


def test_a_number_that_is_declared_as_a_class_is_one(place: Path) -> None:
    names = write(place / "names.txt", b"2.9\n2.10\n")
    text = "path,label\n0.png,2.9\n1.png,2.10\n2.png,0\n3.png,2.10\n"
    assert streams.load(table(place, text) + f"?classes={names}").class_names == ("2.9", "2.10")
    with pytest.raises(DataError, match=r"line 2: label '2\.8' is outside the 2 classes"):
        streams.load(table(place, "path,label\n0.png,2.8\n") + f"?classes={names}")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["2.9", "2.10"])})
    rows = {"image": [str(place / f"{i}.png") for i in range(4)], "label": [0, 1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(place / "declared")
    assert streams.load(f"hf:{place / 'declared'}").class_names == ("2.9", "2.10")


def test_spaces_and_a_mark_of_byte_order_are_no_part_of_a_label_of_a_shard(place: Path) -> None:
    texts = (b"\xef\xbb\xbfcat\r\n", b"cat ", b'\xef\xbb\xbf{"label": " cat"}', b'{"label": "cat"}')
    members: dict[str, bytes] = {}
    for i, text in enumerate(texts):
        members |= {f"{i}.png": encoded(i), f"{i}.{'cls' if i < 2 else 'json'}": text}
    write_tar(place / "s.tar", members)
    assert streams.load(f"wds:{place / 's.tar'}").class_names == ("cat",)
    spaced = [(encoded(i), label) for i, label in enumerate(("cat", " cat", "cat ", "\tcat\n"))]
    assert streams.load(lambda: iter(spaced)).class_names == streams.load(spaced).class_names == ("cat",)


def test_whole_numbers_and_words_stay_labels_as_they_are_written(place: Path) -> None:
    words = ("-1", "01", "1_0", "nano", "v1.0")
    text = "path,label\n" + "".join(f"{i}.png,{word}\n" for word in words for i in range(2))
    assert streams.load(table(place, text)).class_names == words


@pytest.mark.parametrize("label", [True, [1, 2], {"a": 1}, 2.9, b"cat", date(2021, 3, 5)])
def test_a_label_of_parquet_is_a_word_or_a_whole_number(label: Any, place: Path) -> None:
    with pytest.raises(DataError, match=r"row 0: the label .* is neither a word nor a whole number") as caught:
        streams.load(parquet(place, {"path": ["0.png"], "label": [label]}))
    assert "\n" not in str(caught.value)


def test_a_mark_of_byte_order_is_no_part_of_a_class(place: Path) -> None:
    names = write(place / "names.txt", b"\xef\xbb\xbfzebra\r\nant\r\n")
    data = streams.load(
        table(place, "path,label\n0.png,zebra\n1.png,ant\n2.png,zebra\n3.png,ant\n") + f"?classes={names}"
    )
    assert data.class_names == ("zebra", "ant")


# -- times --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("1614900000", "2021-03-06", "'2021-03-06' is a date, the first is a number"),
        ("2021-03-05", "1614990000", "'1614990000' is a number, the first is a date"),
        ("2021-03-05", "2021", "'2021' is a number, the first is a date"),
        ("2021-03-05", "20210306", "'20210306' is a number, the first is a date"),
        ("2021", "2021-03-05T10:00", "'2021-03-05T10:00' is a date, the first is a number"),
    ],
)
def test_numbers_and_dates_are_not_mixed(first: str, second: str, words: str, place: Path) -> None:
    with pytest.raises(DataError, match=f"line 3: the time {words}"):
        streams.load(table(place, f"path,label,time\n0.png,cat,{first}\n1.png,cat,{second}\n"))
    columns = {"path": ["0.png", "1.png"], "label": ["cat", "cat"], "time": [first, second]}
    with pytest.raises(DataError, match=f"row 1: the time {words}"):
        streams.load(parquet(place, columns))
    columns = {"label": ["cat"] * 4, "when": [first, second, first, first]}
    with pytest.raises(DataError, match=f"row 1: the time {words}"):
        streams.load(saved(place, columns) + "?time=when")


def test_the_kind_of_time_is_remembered_over_batches_of_parquet(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("budgeted.streams.manifest._BATCH", 1)
    columns = {"path": ["0.png", "1.png"], "label": ["cat", "cat"], "time": ["2021-03-05", "2021"]}
    with pytest.raises(DataError, match="row 1: the time '2021' is a number"):
        streams.load(parquet(place, columns))


DAYS = [datetime(2021, 3, 5, 1), datetime(1999, 12, 31, 23), datetime(2020, 1, 1), datetime(2020, 6, 1, 12, 30)]


@pytest.mark.usefixtures("far_from_utc")
def test_times_of_datasets_are_those_of_a_manifest(place: Path) -> None:
    expected = [day.replace(tzinfo=UTC).timestamp() for day in DAYS]
    words = [day.isoformat() for day in DAYS]
    lines = "".join(f"{i}.png,cat,{word}\n" for i, word in enumerate(words))
    nepal = timezone(timedelta(hours=5, minutes=45))
    found = [_times(table(place, "path,label,time\n" + lines))]
    for times in (DAYS, words, [day.replace(tzinfo=UTC).astimezone(nepal).isoformat() for day in DAYS]):
        found.append(_times(saved(place, {"label": ["cat"] * 4, "when": times}) + "?time=when"))
    assert found == [sorted(expected[1:])] * 4  # the first is set aside as the test part


def _times(name: str) -> list[float]:
    times = streams.load(name, test=False, test_share=0.01, on_demand=True).train_times
    found = [] if times is None else times.tolist()
    return sorted(found)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("tomorrow", "row 2: the time 'tomorrow' is neither a number nor an ISO date"),
        ("inf", "row 2: .* is not finite"),
    ],
)
def test_a_bad_time_of_datasets_is_refused_as_that_of_a_manifest(given: str, words: str, place: Path) -> None:
    columns = {"label": ["cat"] * 4, "when": ["1", "2", given, "4"]}
    with pytest.raises(DataError, match=words):
        streams.load(saved(place, columns) + "?time=when")


# -- columns ------------------------------------------------------------------------------------------------------


def test_a_path_that_is_asked_for_is_taken_whatever_the_column_image_holds(place: Path) -> None:
    other = [encoded(50 + i) for i in range(4)]
    files = [f"{i}.png" for i in range(4)]
    name = parquet(place, {"image": other, "file": files, "label": ["ant", "bee", "ant", "bee"]})
    expected = streams.load(table(place, "path,label\n0.png,ant\n1.png,bee\n2.png,ant\n3.png,bee\n"))
    asked = streams.load(f"{name}?path=file")
    assert np.array_equal(asked.train_images[:], expected.train_images[:])
    assert not np.array_equal(streams.load(name).train_images[:], expected.train_images[:])
    with pytest.raises(DataError, match=r"both \?image= and \?path= are given"):
        streams.load(f"{name}?path=file&image=image")


def test_a_column_of_paths_is_no_column_of_pictures(place: Path) -> None:
    name = parquet(place, {"image": [f"{i}.png" for i in range(4)], "label": ["ant", "bee", "ant", "bee"]})
    with pytest.raises(DataError, match=r"names no column 'path' \(it has 'image', 'label'\): .*\?path=COLUMN"):
        streams.load(name)
    with pytest.raises(DataError, match=r"no bytes in the column 'image': .*\?path=COLUMN for paths"):
        streams.load(f"{name}?image=image")
    with pytest.raises(DataError, match="has no column 'nothere'"):
        streams.load(f"{name}?image=nothere")
    assert streams.load(f"{name}?path=image").class_names == ("ant", "bee")


def test_pictures_in_every_kind_of_bytes_are_read(place: Path) -> None:
    content = [encoded(i) for i in range(4)]
    words = ["ant", "bee", "ant", "bee"]
    expected = streams.load(table(place, "path,label\n0.png,ant\n1.png,bee\n2.png,ant\n3.png,bee\n"))
    kinds: list[Any] = [
        pyarrow.array(content, pyarrow.large_binary()),
        pyarrow.array(content).dictionary_encode(),
        pyarrow.array([{"bytes": each, "path": None} for each in content]),
    ]
    for pictures in kinds:
        data = streams.load(parquet(place, {"image": pictures, "label": words}))
        assert np.array_equal(data.train_images[:], expected.train_images[:])


def test_one_column_of_parquet_may_be_label_and_domain(place: Path) -> None:
    name = parquet(place, {"path": [f"{i}.png" for i in range(4)], "label": ["ant", "bee", "ant", "bee"]})
    assert streams.load(f"{name}?domain=label").class_names == ("ant", "bee")


@pytest.mark.parametrize("option", ["label", "image", "time"])
def test_a_column_that_datasets_do_not_have_is_refused_with_those_they_have(option: str, place: Path) -> None:
    name = saved(place, {"label": ["cat", "cat", "dog", "dog"]})
    with pytest.raises(DataError, match=rf"no column 'nothere', it has 'image', 'label': say \?{option}=COLUMN"):
        streams.load(f"{name}?{option}=nothere")


def test_a_part_of_datasets_without_the_column_is_named(place: Path) -> None:
    saved(place, {"label": ["cat", "cat", "dog", "dog"]})
    rows = datasets.load_from_disk(str(place / "saved"))
    datasets.DatasetDict({"train": rows, "test": rows.remove_columns("label")}).save_to_disk(place / "both")
    with pytest.raises(DataError, match="part test: no column 'label', it has 'image'"):
        streams.load(f"hf:{place / 'both'}")


def test_what_streams_without_saying_its_columns_is_asked_for_its_first_row(place: Path) -> None:
    from budgeted.streams.hf import listing_of

    def rows() -> Iterator[dict[str, Any]]:
        yield from ({"picture": encoded(i), "kind": "ab"[i % 2]} for i in range(4))

    streaming = datasets.IterableDataset.from_generator(rows)
    assert streaming.column_names is None
    assert listing_of([("", streaming)], "it", {"image": "picture", "label": "kind"}).words == ("a", "b")
    with pytest.raises(DataError, match="it: no column 'nothere', it has 'picture', 'kind'"):
        listing_of([("", streaming)], "it", {"image": "picture", "label": "nothere"})


# -- tars ---------------------------------------------------------------------------------------------------------


def shard(place: Path, samples: range, name: str = "s.tar") -> bytes:
    members = {f"{i}.png": encoded(i) for i in samples} | {f"{i}.cls": b"ab"[i % 2 : i % 2 + 1] for i in samples}
    return write_tar(place / name, dict(sorted(members.items()))).read_bytes()


def headers(content: bytes) -> list[int]:
    """Where each member begins, and where the last ends."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return [*(member.offset for member in archive.getmembers()), archive.offset]


def test_a_shard_that_is_cut_between_two_samples_is_refused(tmp_path: Path) -> None:
    content = shard(tmp_path, range(4))
    places = headers(content)
    for cut, end in ((places[4], places[4]), (places[-1], places[-1]), (places[-1] + 100, places[-1] + 100)):
        write(tmp_path / "s.tar", content[:cut])
        with pytest.raises(DataError, match=rf"s\.tar: cut at byte {end:,}, .*: restore it"):
            streams.load(f"wds:{tmp_path / 's.tar'}")
        fsspec.filesystem("memory").pipe("/mended/s.tar", content[:cut])
        with pytest.raises(DataError, match=rf"memory://mended/s\.tar: cut at byte {end:,}"):
            streams.load("wds:memory://mended/s.tar")


def test_a_damaged_header_is_not_the_end_of_a_shard(tmp_path: Path) -> None:
    content = bytearray(shard(tmp_path, range(4)))
    at = headers(bytes(content))[4]
    content[at + 150] ^= 1  # in its checksum
    write(tmp_path / "s.tar", bytes(content))
    with pytest.raises(DataError, match=rf"s\.tar: damaged at byte {at:,}, .*: restore it"):
        streams.load(f"wds:{tmp_path / 's.tar'}")


def test_two_tars_in_one_file_are_refused(tmp_path: Path) -> None:
    first, second = shard(tmp_path, range(4)), shard(tmp_path, range(4, 8))
    write(tmp_path / "s.tar", first + second)
    with pytest.raises(DataError, match=r"s\.tar: more behind its end at byte .*: give each a file of its own"):
        streams.load(f"wds:{tmp_path / 's.tar'}")
    fsspec.filesystem("memory").pipe("/mended/two.tar", first + second)
    with pytest.raises(DataError, match=r"two\.tar: more behind its end"):
        streams.load("wds:memory://mended/two.tar")


def test_zeros_behind_a_tar_are_its_filling_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = shard(tmp_path, range(4))
    end = headers(content)[-1]
    for filling in (512, 1024, 40_960):
        write(tmp_path / "s.tar", content[:end] + bytes(filling))
        assert streams.load(f"wds:{tmp_path / 's.tar'}").class_names == ("a", "b")
    monkeypatch.setattr(tars, "_MOST_FILLING", 20_000)
    with pytest.raises(DataError, match=r"s\.tar: zeros from byte .*: restore it"):
        streams.load(f"wds:{tmp_path / 's.tar'}")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_every_form_have_the_end_that_is_looked_for(form: int, tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in ((f"{'long/' * 28}a.png", b"x" * 512), (f"{'long/' * 28}a.cls", b"")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    out.seek(0)
    found = [(name[-5:], size) for name, _, size in tars.members(out, "t.tar", len(out.getvalue()))]
    assert found == [("a.png", 512), ("a.cls", 0)]


def test_a_cut_inside_one_of_imagenets_tars_is_seen(tmp_path: Path) -> None:
    files = imagenet_files()
    with tarfile.open(fileobj=io.BytesIO(files[imagenet.TRAIN])) as archive:
        inner = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    inner["n01.tar"] = inner["n01.tar"][: headers(inner["n01.tar"])[1]]
    for name, content in files.items():
        write(tmp_path / name, content)
    write_tar(tmp_path / imagenet.TRAIN, inner)
    with pytest.raises(DataError, match=r"img_train\.tar: n01\.tar: cut at byte"):
        streams.load("imagenet", tmp_path, size=8)
    write(tmp_path / imagenet.TRAIN, files[imagenet.TRAIN])
    val = files[imagenet.VAL]
    write(tmp_path / imagenet.VAL, val[: headers(val)[-1]])
    with pytest.raises(DataError, match=r"img_val\.tar: cut at byte"):
        streams.load("imagenet", tmp_path, size=8)
