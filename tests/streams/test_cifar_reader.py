"""CIFAR readers on small files in the official formats; and what they refuse."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from budgeted.streams import cifar
from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.inert_pickle import read_inert
from budgeted.streams.registry import info

RECORDS = 7
VERSIONS = {
    version.folder: replace(version, train_records=RECORDS, test_records=RECORDS)
    for version in (cifar.CIFAR10_BINARY, cifar.CIFAR10_PYTHON, cifar.CIFAR100_BINARY, cifar.CIFAR100_PYTHON)
}
FINE_NAMES = [f"fine{i:02}" for i in range(100)]


PurePythonPickler: Any = pickle._Pickler  # type: ignore[attr-defined, unused-ignore]


class PythonTwoPickler(PurePythonPickler):  # type: ignore[misc]
    """Writes what Python 2 wrote: protocol 2, byte strings as such."""

    dispatch: ClassVar[dict[type, Any]] = dict(PurePythonPickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def python_two(content: Any) -> bytes:
    """A pickle as in the official files, with numpy under its old name."""
    out = io.BytesIO()
    PythonTwoPickler(out, 2).dump(content)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def samples(seed: int, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (RECORDS, 3, 32, 32), dtype=np.uint8)
    fine = rng.integers(0, classes, RECORDS, dtype=np.uint8)
    return images, fine, rng.integers(0, 20, RECORDS, dtype=np.uint8)


def file_content(version: cifar.Version, seed: int) -> bytes:
    images, fine, coarse = samples(seed, 10 if "10-" in version.folder[:9] else 100)
    rows = images.reshape(RECORDS, 3072)
    if version.form == "binary":
        heads = [coarse, fine] if version.label_bytes == 2 else [fine]
        return np.concatenate([*(head[:, None] for head in heads), rows], axis=1).tobytes()
    batch: dict[bytes, Any] = {b"batch_label": b"one", version.label_key: [int(each) for each in fine]}
    batch |= {b"data": rows, b"filenames": [b"a.png"] * RECORDS}
    return python_two(batch)


def official_files(version: cifar.Version) -> dict[str, bytes]:
    files = {name: file_content(version, i) for i, name in enumerate((*version.train_files, *version.test_files))}
    if version.names_file == "meta":
        names = [name.encode() for name in FINE_NAMES]
        files["meta"] = python_two({b"fine_label_names": names, b"coarse_label_names": []})
    elif version.names_file:
        files[version.names_file] = ("\n".join(FINE_NAMES) + "\n\n").encode()
    return files


def write_folder(version: cifar.Version, root: Path) -> Path:
    folder = root / version.folder
    folder.mkdir()
    for name, content in official_files(version).items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(version: cifar.Version, root: Path) -> Path:
    path = root / version.archive
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"readme.html": b"<html>", **official_files(version)}.items():
            member = tarfile.TarInfo(f"{version.folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def load(place: Path, *versions: cifar.Version, train: bool = True, test: bool = True) -> Dataset:
    name = "cifar100" if "100" in versions[0].folder else "cifar10"
    return cifar.read(Request(info(name), place, train, test), versions)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("form", ["folder's parent", "folder", "archive's parent", "archive"])
def test_round_trip(version: cifar.Version, form: str, tmp_path: Path) -> None:
    written = write_folder(version, tmp_path) if "folder" in form else write_archive(version, tmp_path)
    data = load(tmp_path if "parent" in form else written, version)
    classes = 100 if "100" in version.folder else 10
    expected = [samples(i, classes) for i in range(len(version.train_files) + 1)]
    assert np.array_equal(data.train_images[:], np.concatenate([each[0] for each in expected[:-1]]))
    assert np.array_equal(data.train_labels, np.concatenate([each[1] for each in expected[:-1]]))
    assert np.array_equal(data.test_images[:], expected[-1][0])
    assert np.array_equal(data.test_labels, expected[-1][1])
    assert data.train_images[:].flags.c_contiguous
    assert data.train_images[:].flags.writeable
    assert data.train_labels.dtype == np.int64
    assert (data.classes, data.input_shape, data.nbytes_per_sample) == (classes, (3, 32, 32), 3072)
    assert data.class_names == (tuple(FINE_NAMES) if classes == 100 else cifar.CIFAR10_CLASSES)
    assert data.info.train_size == RECORDS * len(version.train_files)


def test_one_part_alone(tmp_path: Path) -> None:
    version = VERSIONS["cifar-100-binary"]
    (write_folder(version, tmp_path) / "train.bin").unlink()
    data = load(tmp_path, version, train=False)
    assert len(data.train_labels) == 0
    assert data.train_images.shape == (0, 3, 32, 32)
    assert len(data.test_labels) == RECORDS
    assert data.info.train_size == 50_000  # not read, so still the official number


def test_folders_are_preferred_to_archives_and_binary_to_python(tmp_path: Path) -> None:
    binary, python = VERSIONS["cifar-10-batches-bin"], VERSIONS["cifar-10-batches-py"]
    (tmp_path / binary.archive).write_bytes(b"never opened")
    write_folder(python, tmp_path)
    assert len(load(tmp_path, binary, python).train_labels) == 5 * RECORDS
    (tmp_path / python.folder / "data_batch_1").write_bytes(b"never opened")
    write_folder(binary, tmp_path)
    assert len(load(tmp_path, binary, python).train_labels) == 5 * RECORDS


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="cifar-10-batches-bin"):
        load(tmp_path, VERSIONS["cifar-10-batches-bin"])


def test_a_cut_binary_file_is_named_with_its_bytes(tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-bin"]
    path = write_folder(version, tmp_path) / "data_batch_3.bin"
    os.truncate(path, 5000)
    with pytest.raises(DataError, match=r"data_batch_3\.bin: expected 21,511 .* found 5,000: .*fetch it again"):
        load(tmp_path, version)
    os.truncate(path, 3073 * 6)  # whole records, but too few
    with pytest.raises(DataError, match="found 18,438"):
        load(tmp_path, version)
    path.unlink()
    with pytest.raises(DataError, match=r"data_batch_3\.bin is missing"):
        load(tmp_path, version)


def test_a_label_that_no_class_has_is_refused(tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-bin"]
    path = write_folder(version, tmp_path) / "test_batch.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(DataError, match="label 10 is outside 0…9"):
        load(tmp_path, version)


@pytest.mark.parametrize("keep", [0, 10, 2000])
def test_a_cut_archive_is_named(keep: int, tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-bin"]
    path = write_archive(version, tmp_path)
    os.truncate(path, keep)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: .*fetch it again"):
        load(tmp_path, version)


def test_an_archive_without_a_batch_is_named(tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-bin"]
    with tarfile.open(tmp_path / version.archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("cifar-10-batches-bin/readme.html"))
    with pytest.raises(DataError, match=r"holds no data_batch_1\.bin"):
        load(tmp_path, version)


def test_the_official_size_is_demanded(tmp_path: Path) -> None:
    write_folder(VERSIONS["cifar-10-batches-bin"], tmp_path)
    with pytest.raises(DataError, match="expected 30,730,000"):
        load(tmp_path, cifar.CIFAR10_BINARY)


class RunsOnLoad:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_and_nothing_runs(protocol: int, tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-py"]
    witness = tmp_path / "it-ran"
    evil = pickle.dumps({"data": RunsOnLoad(f"touch {witness}"), "labels": []}, protocol)
    pickle.loads(evil)  # the attack is real …
    assert witness.exists()
    witness.unlink()
    (write_folder(version, tmp_path) / "data_batch_2").write_bytes(evil)
    with pytest.raises(DataError, match=r"data_batch_2: refused.*posix\.system"):
        load(tmp_path, version)
    assert not witness.exists()  # … and does not happen here


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"(S'1'\nibuiltins\nexec\n.", "builtins.exec"),
        (b"\x80\x02\x82\x01.", "refused"),  # a number of the extension registry
        (b"P1\n.", "refused"),  # a persistent identifier
        (python_two({b"data": np.zeros(4)}), "instead of bytes"),
        (pickle.dumps({"data": np.array([print], object)}, 2), "refused"),
        (pickle.dumps([1, 2]), "a list instead"),
        (b"", "refused"),
        (b"\x80\x02}q\x00U\x10cut", "refused"),
    ],
)
def test_other_pickles_are_refused(raw: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_inert(raw, "file")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.binary(max_size=300) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    raw = pickle.dumps({b"value": [value, value]}, protocol)
    assume(b"_codecs" not in raw)  # how Python 3 writes bytes in protocol 2: a call, which is refused
    assert read_inert(raw, "file") == pickle.loads(raw)
    old = python_two({b"value": [value, value]})
    assert read_inert(old, "file") == pickle.loads(old, encoding="bytes")


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), protocol=st.integers(3, 4), columns=st.booleans())
def test_byte_arrays_are_read_as_numpy_reads_them(shape: list[int], protocol: int, columns: bool) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), order="F" if columns else "C")
    raw = pickle.dumps({b"data": array}, protocol)
    assert np.array_equal(read_inert(raw, "file")[b"data"], array)


def test_steps_are_counted() -> None:
    with pytest.raises(DataError, match="more than the 500 steps"):
        read_inert(python_two({b"labels": [1] * 1000}), "file", 500)
    assert read_inert(python_two({b"labels": [1] * 1000}), "file", 1500) == {b"labels": [1] * 1000}


def test_an_array_that_claims_more_than_it_holds_is_refused() -> None:
    honest = python_two({b"data": np.zeros((2, 3), np.uint8)})
    state = honest.replace(b"K\x02K\x03\x86", b"K\x02J\xff\xff\xff\x7f\x86")  # shape (2, 2³¹ - 1)
    assert state != honest
    with pytest.raises(DataError, match="in 6 bytes"):
        read_inert(state, "file")
    assert read_inert(honest, "file")[b"data"].shape == (2, 3)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"labels": [0] * RECORDS}, "no b'data'"),
        ({b"data": np.zeros((RECORDS, 3072), np.uint8)}, "labels"),
        (
            {b"data": np.zeros((RECORDS, 3071), np.uint8), b"labels": [0] * RECORDS},
            "expected 21,504 pixel bytes",
        ),
        ({b"data": np.zeros((RECORDS, 3072), np.uint8), b"labels": [0] * 3}, "3 labels for 7 images"),
        ({b"data": np.zeros((RECORDS, 3072), np.uint8), b"labels": [b"0"] * RECORDS}, "not numbers"),
    ],
)
def test_odd_python_batches_are_refused(batch: dict[bytes, Any], message: str, tmp_path: Path) -> None:
    version = VERSIONS["cifar-10-batches-py"]
    (write_folder(version, tmp_path) / "test_batch").write_bytes(python_two(batch))
    with pytest.raises(DataError, match=message):
        load(tmp_path, version)


@pytest.mark.parametrize("name", ["cifar-100-binary", "cifar-100-python"])
def test_missing_class_names_are_refused(name: str, tmp_path: Path) -> None:
    version = VERSIONS[name]
    folder = write_folder(version, tmp_path)
    assert version.names_file is not None
    odd = python_two({b"fine_label_names": [b"one"]}) if version.form == "python" else b"one\n"
    (folder / version.names_file).write_bytes(odd)
    with pytest.raises(DataError, match="1 class names instead of 100"):
        load(tmp_path, version)
