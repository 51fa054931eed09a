"""CLEAR, ImageNet, notMNIST, Tiny-ImageNet and 5-datasets in the forms in which they are published, made small."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from budgeted import streams
from budgeted.errors import UnknownName
from budgeted.streams import DataError, DataMissing, five, imagenet
from budgeted.streams.mat import MatError
from budgeted.streams.mat_struct import read_structs
from budgeted.streams.notmnist import BROKEN
from tests.hostile import valid
from tests.hostile.attack import digest
from tests.hostile.containers import devkit
from tests.hostile.containers import imagenet as imagenet_files
from tests.streams.pictures import encoded, write, write_tar

# -- CLEAR --------------------------------------------------------------------------------------------------------


def clear(root: Path, train: str = "train_image_only", first: int = 1, buckets: int = 3) -> None:
    """The official tree: buckets `first` to `buckets` to train on, 0 to `buckets` to test, a BACKGROUND in each."""
    for part, numbers in ((train, range(first, buckets + 1)), ("test", range(buckets + 1))):
        for bucket in numbers:
            for number, word in enumerate(("bus", "camera", "BACKGROUND")):
                for i in range(2):
                    seed = 1000 * bucket + 10 * number + i + (500 if part == "test" else 0)
                    write(
                        root / part / "labeled_images" / str(bucket) / word / f"{seed}.jpg",
                        encoded(seed, "JPEG", 9, 12),
                    )
        write(root / part / "labeled_metadata.json", b"{}")
        write(root / part / "class_names.txt", b"BACKGROUND\nbus\ncamera\n")


@pytest.mark.parametrize("train", ["train", "train_image_only"])
def test_clear_streams_its_buckets_in_order_and_tests_each(train: str, tmp_path: Path) -> None:
    clear(tmp_path / "clear10", train)
    data = streams.load("clear10", tmp_path, size=8)
    assert data.class_names == ("bus", "camera")
    assert data.domain_names == ("0", "1", "2", "3")
    assert data.train_domains is not None
    assert data.test_domains is not None
    stream = streams.stream_of(data, "domain", 1)
    assert data.train_domains[stream.indices].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert stream.boundaries() == (4, 8)
    assert np.bincount(data.test_domains).tolist() == [4, 4, 4, 4]
    assert data.pretraining is None


def test_bucket_0_is_for_pretraining_only(tmp_path: Path) -> None:
    clear(tmp_path / "clear10", first=0)
    data = streams.load("clear10", tmp_path, size=8)
    assert data.pretraining is not None
    assert (len(data.train_labels), len(data.pretraining.labels)) == (12, 4)
    expected = Image.open(io.BytesIO(encoded(0, "JPEG", 9, 12))).resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(data.pretraining.images[0], np.asarray(expected).transpose(2, 0, 1))
    whole = streams.load("clear10?bucket0=stream", tmp_path, size=8)
    assert (len(whole.train_labels), whole.pretraining) == (16, None)
    clear(tmp_path / "clear100", first=0)
    assert len(streams.load("clear100", tmp_path, size=8).train_labels) == 16
    assert len(streams.load("clear100?bucket0=pretraining", tmp_path, size=8).train_labels) == 12
    with pytest.raises(UnknownName, match="use of bucket 0"):
        streams.load("clear10?bucket0=no", tmp_path, size=8)
    with pytest.raises(UnknownName, match="option of clear10"):
        streams.load("clear10?bucket=no", tmp_path, size=8)


# -- ImageNet -----------------------------------------------------------------------------------------------------


def _members(tar: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_imagenets_archives_are_its_folders(tmp_path: Path) -> None:
    files = imagenet_files()
    for name, content in files.items():
        write(tmp_path / "archives" / "imagenet" / name, content)
    for name, inner in _members(files[imagenet.TRAIN]).items():
        for picture, pixels in _members(inner).items():
            write(tmp_path / "folders" / "train" / name[:3] / picture, pixels)
    for (picture, pixels), wnid in zip(_members(files[imagenet.VAL]).items(), ("n01", "n02", "n01"), strict=True):
        write(tmp_path / "folders" / "val" / wnid / picture, pixels)
    packed = streams.load("imagenet", tmp_path / "archives", size=8)
    assert packed.class_names == ("n01", "n02")
    assert digest(packed) == digest(streams.load("imagenet", tmp_path / "folders", size=8))
    (tmp_path / "archives/imagenet" / imagenet.DEVKIT).unlink()
    with pytest.raises(DataMissing, match="which says what class each validation picture has"):
        streams.load("imagenet", tmp_path / "archives", size=8)
    assert len(streams.load("imagenet", tmp_path / "archives", size=8, test=False).train_labels) == 4


def test_an_archive_that_does_not_fit_its_devkit_is_refused(tmp_path: Path) -> None:
    files = imagenet_files()
    for name, content in files.items():
        write(tmp_path / name, content)
    write(tmp_path / imagenet.DEVKIT, devkit(("n02", "n01"), [2, 1]))
    with pytest.raises(DataError, match="holds 3 pictures, the devkit knows 2"):
        streams.load("imagenet", tmp_path, size=8)
    write(tmp_path / imagenet.DEVKIT, devkit(("n02", "n01"), [2, 1, 3]))
    with pytest.raises(DataError, match="list of classes cannot be read"):
        streams.load("imagenet", tmp_path, size=8)
    write(tmp_path / imagenet.DEVKIT, files[imagenet.DEVKIT])
    write(tmp_path / imagenet.TRAIN, files[imagenet.TRAIN][:3000])
    with pytest.raises(DataError, match=r"img_train\.tar.*(cut|damaged)"):
        streams.load("imagenet", tmp_path, size=8)


def test_structs_in_mat_files_are_read_as_scipy_writes_them() -> None:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(devkit(("n9", "n8"), [1])))) as tar:
        member = tar.extractfile("ILSVRC2012_devkit_t12/data/meta.mat")
        assert member is not None
        content = member.read()
    found = read_structs(content, "synsets")
    assert [(each["ILSVRC2012_ID"], each["WNID"], each["words"]) for each in found] == [
        (1, "n9", "word 0"),
        (2, "n8", "word 1"),
    ]
    for damaged in (content[:200], content[:124] + b"xxxx" + content[128:], content[:-4] + b"\0\0\0\0"):
        with pytest.raises(MatError):
            read_structs(damaged, "synsets")
    with pytest.raises(MatError, match="no other in it"):
        read_structs(content, "other")


# -- notMNIST and 5-datasets --------------------------------------------------------------------------------------


def test_notmnist_as_folders_leaves_out_the_two_broken_files(tmp_path: Path) -> None:
    for letter in "ABCDEFGHIJ":
        for i in range(10):
            out = io.BytesIO()
            Image.fromarray(np.full((28, 28), 10 * i, np.uint8)).save(out, "PNG")
            write(tmp_path / "notMNIST_small" / letter / f"{i}.png", out.getvalue())
    for letter, name in zip("AF", sorted(BROKEN, reverse=True), strict=True):
        write(tmp_path / "notMNIST_small" / letter / name, b"")
    data = streams.load("notmnist", tmp_path)
    assert data.input_shape == (1, 28, 28)
    assert np.bincount(data.train_labels).tolist() == [9] * 10
    assert np.bincount(data.test_labels).tolist() == [1] * 10
    assert (data.class_names, data.mean) == (tuple("ABCDEFGHIJ"), streams.info("notmnist").mean)


def write_five(root: Path) -> None:
    for name, content in {
        **valid.svhn(packed=False),
        **valid.mnist(),
        **valid.cifar_files(valid.VERSIONS["cifar10-binary"]),
    }.items():
        write(root / name, content)
    for folder in ("fashion-mnist", "notmnist"):
        for name, content in valid.mnist().items():
            write(root / name.replace("mnist/", f"{folder}/", 1), content)


def test_five_datasets_are_one_label_space_in_one_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version, small in (("CIFAR10_BINARY", "cifar10-binary"), ("CIFAR10_PYTHON", "cifar10-python")):
        monkeypatch.setattr(f"budgeted.streams.cifar.{version}", valid.VERSIONS[small])
    versions = (valid.VERSIONS["cifar10-binary"],)
    monkeypatch.setitem(
        streams.catalogue._FIVE_NAMES,
        "cifar10",
        streams.Entry(streams.info("cifar10"), lambda request: streams.cifar.read(request, versions)),
    )
    write_five(tmp_path)
    data = streams.load("5-datasets", tmp_path)
    assert data.domain_names == five.SEQUENCE == ("svhn", "mnist", "cifar10", "notmnist", "fashion-mnist")
    assert data.classes == 50
    assert data.class_names[0] == "svhn 0"
    assert data.class_names[49] == "fashion-mnist Ankle boot"
    stream = streams.stream_of(data, "domain", 3)
    assert data.train_domains is not None
    order = data.train_domains[stream.indices]
    assert np.all(np.diff(order) >= 0)
    assert np.array_equal(data.train_labels // 10, data.train_domains)
    assert data.train_images.shape == (len(data.train_labels), 3, 32, 32)
    mnist = streams.load("mnist", tmp_path)
    place = int(np.flatnonzero(data.train_domains == 1)[0])
    expected = np.asarray(Image.fromarray(mnist.train_images[0][0]).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.array_equal(data.train_images[place], np.stack([expected] * 3))
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    with pytest.raises(DataMissing, match=r"looked for svhn: svhn/test_32x32\.mat"):
        streams.load("5-datasets", tmp_path)


# -- downloads that are unpacked ----------------------------------------------------------------------------------


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def test_unpacked_archives_appear_whole(tmp_path: Path) -> None:
    from budgeted.streams.unpack import unpack

    packed = write(tmp_path / "a.zip", zipped({"top/x/1.png": b"1", "top/2.png": b"2"}))
    unpack(packed, tmp_path, tmp_path / "top")
    assert (tmp_path / "top/x/1.png").read_bytes() == b"1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "top"]
    unpack(write(tmp_path / "b.zip", b"damaged"), tmp_path, tmp_path / "top")  # there already: not looked at
    tar = write_tar(tmp_path / "c.tar", {"other/3.png": b"3"})
    unpack(tar, tmp_path, tmp_path / "other")
    assert (tmp_path / "other/3.png").read_bytes() == b"3"


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"../out.png": b"x"}, "leads out of its folder"),
        ({"/out.png": b"x"}, "leads out of its folder"),
        ({"top/../../out.png": b"x"}, "leads out of its folder"),
        ({"other/1.png": b"x"}, "holds no top/"),
        ({"top/1.png": bytes(20 * 2**20)}, "more than 8 times"),
    ],
)
def test_odd_archives_write_nothing(members: dict[str, bytes], words: str, tmp_path: Path) -> None:
    from budgeted.streams.unpack import unpack

    inside = tmp_path / "inside"
    packed = write(inside / "a.zip", zipped(members))
    with pytest.raises(DataError, match=words):
        unpack(packed, inside, inside / "top")
    assert [path.name for path in inside.iterdir()] == ["a.zip"]
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_links_and_cut_archives_are_refused(tmp_path: Path) -> None:
    from budgeted.streams.unpack import unpack

    link = zipfile.ZipInfo("top/link")
    link.external_attr = 0o120777 << 16
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="is a link"):
        unpack(write(tmp_path / "a.zip", out.getvalue()), tmp_path, tmp_path / "top")
    whole = zipped({"top/1.png": b"1" * 5000})
    for cut in (whole[:-30], whole[:45] + b"\xff\xff" + whole[47:], b""):
        with pytest.raises(DataError, match="cannot be unpacked"):
            unpack(write(tmp_path / "b.zip", cut), tmp_path, tmp_path / "top")
    assert not (tmp_path / "top").exists()
