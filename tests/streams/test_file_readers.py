"""IDX, .mat, .npz, arrays, the embedded digits, and the registry over all data sets."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from budgeted import streams
from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import DataError, DataMissing
from budgeted.streams.dataset import channel_statistics
from budgeted.streams.idx import read_idx
from budgeted.streams.npz import read_npz

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (12, 28, 28), dtype=np.uint8)
LABELS = (np.arange(12) % 10).astype(np.uint8)
IDX_NAMES = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
]


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path, packed: bool) -> None:
    folder.mkdir()
    for name in IDX_NAMES:
        content = idx(IMAGES if "images" in name else LABELS)
        path = folder / (name + ".gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_round_trip(name: str, packed: bool, tmp_path: Path) -> None:
    write_mnist(tmp_path / name, packed)
    for place in (tmp_path, tmp_path / name):
        data = streams.load(name, place)
        assert np.array_equal(data.train_images[:], IMAGES[:, None])
        assert np.array_equal(data.test_labels, LABELS)
        assert data.input_shape == (1, 28, 28)
        assert data.train_images[:].flags.writeable
    assert data.flips == (name == "fashion-mnist")
    assert data.class_names[0] == ("0" if name == "mnist" else "T-shirt/top")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(IMAGES)[:-1], r"expected 9,424 \(a header of 16 and 12 x 28 x 28\) bytes, found 9,423"),
        (idx(IMAGES) + b"\0", "found 9,425"),
        (idx(IMAGES)[:9], "at least 16 bytes, found 9"),
        (b"\0\0", "at least 4 bytes, found 2"),
        (b"\0\0\x0d\x03" + idx(IMAGES)[4:], "starts with 00000d03"),
        (b"<html>not found</html>", "starts with 3c68746d"),
        (idx(LABELS), "1 axes instead of 3"),
        (idx(IMAGES[:3]), "12 labels for 3 images"),
    ],
)
def test_odd_idx_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / IDX_NAMES[0]).write_bytes(content)
    with pytest.raises(DataError, match=message):
        streams.load("mnist", tmp_path)


def test_a_cut_gzip_file_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=True)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    os.truncate(path, 4000)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: cut or damaged after 4,000 bytes"):
        streams.load("mnist", tmp_path)
    path.write_bytes(b"<html>")
    with pytest.raises(DataError, match="cut or damaged after 6 bytes"):
        streams.load("mnist", tmp_path)


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_idx_arrays_of_any_shape(shape: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    array = RNG.integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path_factory.mktemp("idx") / "file"
    path.write_bytes(idx(array))
    assert np.array_equal(read_idx(path), array)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / IDX_NAMES[0]).write_bytes(idx(IMAGES.reshape(12, 14, 56)))
    with pytest.raises(DataError, match="images of 14 x 56 instead of 28 x 28"):
        streams.load("mnist", tmp_path)


def write_svhn(folder: Path) -> NDArray[np.uint8]:
    folder.mkdir(exist_ok=True)
    images = RNG.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8)
    labels = np.array([[10], [1], [2], [3], [4], [5], [6], [7], [8], [9]], np.uint8)
    for name in ("train_32x32.mat", "test_32x32.mat"):
        scipy.io.savemat(folder / name, {"X": images.transpose(2, 3, 1, 0), "y": labels})
    return images


def test_svhn_round_trip_and_its_zero(tmp_path: Path) -> None:
    images = write_svhn(tmp_path / "svhn")
    data = streams.load("svhn", tmp_path)
    assert np.array_equal(data.train_images[:], images)
    assert data.train_labels.tolist() == list(range(10))
    assert data.train_images[:].flags.c_contiguous
    assert not data.flips


def test_odd_svhn_files_are_refused(tmp_path: Path) -> None:
    write_svhn(tmp_path)
    path = tmp_path / "train_32x32.mat"
    os.truncate(path, 1000)
    with pytest.raises(DataError, match=r"train_32x32\.mat: .*expected 182,040,794 bytes .*found 1,000"):
        streams.load("svhn", tmp_path)
    scipy.io.savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([1, 11])})
    with pytest.raises(DataError, match="y is not one label"):
        streams.load("svhn", tmp_path)
    scipy.io.savemat(path, {"X": np.zeros((32, 32, 3, 2)), "y": np.array([1, 2])})
    with pytest.raises(DataError, match="X is float64"):
        streams.load("svhn", tmp_path)


def test_digits_are_scikit_learns_with_a_fixed_balanced_split() -> None:
    from sklearn.datasets import load_digits

    data = streams.load("digits")
    original = load_digits()
    assert data.train_images.shape == (1437, 1, 8, 8)
    assert np.bincount(data.test_labels).tolist() == [36] * 10
    assert int(data.train_images[:].max()) == 255
    # Scaled back, train and test together are the original samples, each once.
    together = np.concatenate([data.train_images[:], data.test_images[:]])[:, 0]
    back = np.round(together * (16 / 255)).reshape(1797, 64)
    labels = np.concatenate([data.train_labels, data.test_labels])
    ours = sorted(map(tuple, np.c_[back, labels].astype(int).tolist()))
    theirs = sorted(map(tuple, np.c_[original.data, original.target].astype(int).tolist()))
    assert ours == theirs
    mean, std = channel_statistics(data.train_images[:])
    assert np.allclose([mean, std], [data.mean, data.std], atol=5e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(1, 9), channels=st.integers(1, 3))
def test_channel_statistics_against_numpy(seed: int, count: int, channels: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (count, channels, 5, 4), dtype=np.uint8)
    mean, std = channel_statistics(images)
    assert np.allclose(mean, (images / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(std, (images / 255).std(axis=(0, 2, 3)))


def test_a_blank_channel_can_be_normalised() -> None:
    assert channel_statistics(np.zeros((2, 1, 3, 3), np.uint8)) == ((0.0,), (1.0,))


COLOUR = RNG.integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize("labels", [[5, 9, 5, 9, 7, 7], ["cat", "dog", "cat", "dog", "cow", "cow"]])
def test_own_arrays(labels: list[Any]) -> None:
    data = streams.from_arrays(COLOUR, labels, COLOUR[:2], labels[:2], name="mine", train_domains=[0, 0, 1, 1, 2, 2])
    assert data.class_names == tuple(str(each) for each in sorted(set(labels)))
    assert [data.class_names[i] for i in data.train_labels] == [str(each) for each in labels]
    assert (data.name, data.classes, data.info.domains) == ("mine", 3, 3)
    channels_last = streams.from_arrays(COLOUR.transpose(0, 2, 3, 1), labels, COLOUR[:2], labels[:2])
    assert np.array_equal(channels_last.train_images[:], COLOUR)
    assert channels_last.train_images[:].flags.c_contiguous
    grey = streams.from_arrays(COLOUR[:, 0], labels, COLOUR[:2, 0], labels[:2])
    assert grey.input_shape == (1, 8, 8)


@pytest.mark.parametrize("kind", [np.str_, object, int])
def test_labels_of_arrays_that_are_numbers_are_ordered_as_numbers(kind: Any) -> None:
    labels = np.array([10, 9, -1, 10, 9, 2]).astype(kind)
    data = streams.from_arrays(COLOUR, labels, COLOUR[2:], labels[2:])
    assert data.class_names == ("-1", "2", "9", "10")
    assert (data.train_labels.tolist(), data.test_labels.tolist()) == ([3, 2, 0, 3, 2, 1], [0, 3, 2, 1])


def test_labels_of_arrays_may_be_objects_as_a_column_of_a_table_is() -> None:
    labels = np.array(["cat", "dog", 3, np.int64(3), " cat", "dog"], object)
    data = streams.from_arrays(COLOUR, labels, COLOUR, labels)
    assert [data.class_names[i] for i in data.train_labels] == ["cat", "dog", "3", "3", "cat", "dog"]
    for odd in (None, 2.9, float("nan"), True, b"cat"):
        labels[4] = odd
        with pytest.raises(DataError, match=r"y_train\[4\]: the label .* is neither a word nor a whole number"):
            streams.from_arrays(COLOUR, labels, COLOUR, labels)


def test_own_arrays_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    labels = np.array([0, 1, 0, 1, 2, 2])
    arrays = {"x_train": COLOUR, "y_train": labels, "x_test": COLOUR, "y_test": labels[:, None]}
    np.savez(path, **arrays, domains_train=labels)  # type: ignore[arg-type, unused-ignore]
    data = streams.load(str(path))
    assert np.array_equal(data.train_images[:], COLOUR)
    assert np.array_equal(data.test_labels, labels)
    assert data.train_domains is not None
    assert data.name == "mine"
    os.truncate(path, 700)
    with pytest.raises(DataError, match=r"mine\.npz: cut, damaged .*700 bytes"):
        streams.load(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x_train": COLOUR}, "no y_train"),
        (
            {
                "x_train": COLOUR,
                "y_train": np.array([print] * 6, object),
                "x_test": COLOUR,
                "y_test": [0] * 6,
            },
            "plain",
        ),
    ],
)
def test_odd_npz_files_are_refused(content: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", **content)
    with pytest.raises(DataError, match=message):
        streams.from_npz(tmp_path / "odd.npz")


@given(
    kind=st.sampled_from(["u1", "i1", "<i2", ">i4", "<i8", "<u8", "<f4", "<f8", "<U3", "S2", "?"]),
    shape=st.lists(st.integers(0, 4), max_size=4),
    columns=st.booleans(),
    version=st.sampled_from([(1, 0), (2, 0)]),
    packed=st.booleans(),
)
def test_members_are_read_as_numpy_reads_them(
    kind: str,
    shape: list[int],
    columns: bool,
    version: tuple[int, int],
    packed: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    array = np.asarray(np.random.default_rng(0).integers(0, 100, shape).astype(kind), order="F" if columns else "C")
    content = io.BytesIO()
    np.lib.format.write_array(content, array, version)
    path = tmp_path_factory.mktemp("npz") / "file.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        archive.writestr("a.npy", content.getvalue())
    read = read_npz(path, ["a"])["a"]
    with np.load(path) as right:
        assert read.dtype == right["a"].dtype
        assert np.array_equal(read, right["a"])
    assert read.flags.writeable


def test_labels_that_are_no_text_are_refused(tmp_path: Path) -> None:
    labels = np.frombuffer(np.array([0x110000, 65], "<u4").tobytes(), "<U1")  # the first number past all letters
    np.savez(tmp_path / "odd.npz", x_train=COLOUR[:2], y_train=labels, x_test=COLOUR[:2], y_test=labels)
    with pytest.raises(DataError, match="no text"):
        streams.from_npz(tmp_path / "odd.npz")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\u2028", "\udce9"])
def test_labels_that_break_a_line_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="no text"):
        streams.from_arrays(COLOUR[:2], ["ant", name], COLOUR[:2], ["ant", name])
    spaced = ["ant", "New\xa0York\u3000bee é"]
    assert streams.from_arrays(COLOUR[:2], spaced, COLOUR[:2], spaced).class_names == ("New\xa0York\u3000bee é", "ant")


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(pickle.dumps({"x_train": 1}))
    with pytest.raises(DataError, match="plain arrays"):
        streams.from_npz(tmp_path / "a.npz")
    np.save(tmp_path / "b.npy", COLOUR)
    with pytest.raises(DataError, match="a single array"):
        streams.from_npz(tmp_path / "b.npy")
    with pytest.raises(DataError, match="does not exist"):
        streams.from_npz(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: streams.from_arrays(COLOUR / 255, [0] * 6, COLOUR, [0] * 6), "float64: give uint8"),
        (lambda: streams.from_arrays(COLOUR[0, 0], [0] * 6, COLOUR, [0] * 6), "has shape"),
        (lambda: streams.from_arrays(COLOUR[..., :3], [0] * 6, COLOUR, [0] * 6), "layout="),
        (lambda: streams.from_arrays(COLOUR, [0.5] * 6, COLOUR, [0] * 6), "one integer or string"),
        (lambda: streams.from_arrays(COLOUR, [0] * 5, COLOUR, [0] * 6), "6 images but 5 labels"),
        (lambda: streams.from_arrays(COLOUR, [0] * 6, COLOUR, [1] * 6), "label 1 is in y_test"),
        (lambda: streams.from_arrays(COLOUR, [0] * 6, COLOUR[:, :, :4], [0] * 6), "test images"),
        (lambda: streams.from_arrays(COLOUR[:0], [], COLOUR, [0] * 6), "y_train"),
        (
            lambda: streams.from_arrays(COLOUR, [0] * 6, COLOUR, [0] * 6, train_domains=[1]),
            "one integer per sample",
        ),
        (
            lambda: streams.from_arrays(COLOUR, [0] * 6, COLOUR, [0] * 6, train_domains=np.full(6, 2**63, np.uint64)),
            "too large a number",
        ),
    ],
)
def test_odd_arrays_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


def test_facts_need_no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUDGETED_DATA", str(tmp_path / "nowhere"))
    expected = {
        "cifar10": (10, (3, 32, 32), 50_000, 10_000, True),
        "cifar100": (100, (3, 32, 32), 50_000, 10_000, True),
        "clear10": (10, (3, 224, 224), 30_000, 5_500, True),
        "clear100": (100, (3, 224, 224), 110_000, 55_000, True),
        "imagenet": (1000, (3, 224, 224), 1_281_167, 50_000, True),
        "tinyimagenet": (200, (3, 64, 64), 100_000, 10_000, True),
        "mnist": (10, (1, 28, 28), 60_000, 10_000, False),
        "fashion-mnist": (10, (1, 28, 28), 60_000, 10_000, True),
        "svhn": (10, (3, 32, 32), 73_257, 26_032, False),
        "digits": (10, (1, 8, 8), 1_437, 360, False),
        "notmnist": (10, (1, 28, 28), 16_852, 1_872, False),
        "5-datasets": (50, (3, 32, 32), 260_109, 57_904, False),
        "bongard-drawn-pn": (30, (3, 16, 16), 1200, 600, False),
        "bongard-drawn-ca": (30, (3, 16, 16), 600, 300, False),
        "bongard-hoi-pn": (50, (3, 336, 336), 7208, 1234, False),
        "bongard-hoi-ca": (50, (3, 336, 336), 3604, 617, False),
        "bongard-openworld-pn": (10, (3, 336, 336), 1158, 414, False),
        "bongard-openworld-ca": (10, (3, 336, 336), 193, 69, False),
    }
    assert set(streams.names()) == set(expected)
    for name, facts in expected.items():
        info = streams.info(name)
        assert (info.classes, info.input_shape, info.train_size, info.test_size, info.flips) == facts
        assert len(info.mean) == len(info.std) == info.input_shape[0]
        assert info.nbytes_per_sample == info.pictures * np.prod(info.input_shape) + len(info.longest_text)
        assert sorted(info.class_order(1).tolist()) == list(range(info.classes))


@pytest.mark.parametrize("name", [name for name in streams.names() if name != "digits" and "drawn" not in name])
def test_missing_data_says_what_to_do_and_downloads_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise AssertionError("load() went to the network unasked")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", no_network)
    monkeypatch.setenv("BUDGETED_DATA", str(tmp_path))
    with pytest.raises(DataMissing) as caught:
        streams.load(name)
    text = str(caught.value)
    assert text.startswith(f"{name} is not in {tmp_path} (looked for ")
    assert any(what in text for what in ("download=True", "image-net.org/download-images", "put the published"))
    assert "\n" not in text


def test_refusals() -> None:
    with pytest.raises(UnknownName, match="cifar10"):
        streams.load("cifar-10")
    with pytest.raises(UnknownName):
        streams.info("nothing-like-it")
    with pytest.raises(BudgetedError, match="leave size out"):
        streams.load("digits", size=32)
    with pytest.raises(BudgetedError, match="neither"):
        streams.load("digits", train=False, test=False)


def test_odd_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        streams.load("x" * 5000)
    with pytest.raises(DataError, match="File name too long"):
        streams.load("mnist", tmp_path / ("x" * 5000))
    with pytest.raises(DataError, match="is a device, not a regular file"):
        streams.load("/dev/zero")
    with pytest.raises(DataError, match="holds neither train/CLASS/"):
        streams.load(str(tmp_path))


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BUDGETED_DATA", str(tmp_path))
    assert streams.default_data_dir() == tmp_path
    monkeypatch.delenv("BUDGETED_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert streams.default_data_dir() == tmp_path / "cache" / "budgeted" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert streams.default_data_dir() == tmp_path / ".cache" / "budgeted" / "data"
