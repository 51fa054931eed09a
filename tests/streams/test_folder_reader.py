"""Folders of image files in every layout, always in sorted order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from budgeted import streams
from budgeted.streams import DataError, DataMissing, own
from budgeted.streams.lazy import LazyImages
from budgeted.streams.pixels import Pixels


def picture(seed: int, width: int = 8, height: int = 8) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write(path: Path, seed: int = 0, width: int = 8, height: int = 8) -> NDArray[np.uint8]:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = picture(seed, width, height)
    Image.fromarray(array).save(path, format="PNG")
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def test_one_folder_per_class_in_sorted_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "train/b/2.png",
        "train/b/10.png",
        "train/a/z.PNG",
        "train/a/A.jpg",
        "test/b/1.png",
        "test/a/1.webp",
    ]
    written = {name: write(tmp_path / name, seed) for seed, name in enumerate(names)}
    for passed_over in ("train/a/Thumbs.db", "train/a/.hidden.png", "train/notes.txt"):
        (tmp_path / passed_over).write_bytes(b"no image")
    (tmp_path / "train" / ".cache").mkdir()
    data = streams.load(str(tmp_path))
    expected = ["train/a/A.jpg", "train/a/z.PNG", "train/b/10.png", "train/b/2.png"]
    assert np.array_equal(data.train_images[:], np.stack([written[name] for name in expected]))
    assert data.train_labels.tolist() == [0, 0, 1, 1]
    assert data.class_names == ("a", "b")
    assert np.array_equal(data.test_images[:], np.stack([written["test/a/1.webp"], written["test/b/1.png"]]))
    assert (data.input_shape, data.info.train_size, data.train_domains) == ((3, 8, 8), 4, None)
    assert np.allclose(data.mean, (data.train_images[:] / 255).mean(axis=(0, 2, 3)))

    listing: Callable[[Path], list[os.DirEntry[str]]] = lambda where: list(scandir(where))  # noqa: E731
    scandir = os.scandir

    class Reversed:
        def __init__(self, where: Path) -> None:
            self.entries = listing(where)[::-1]

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("os.scandir", Reversed)
    assert np.array_equal(streams.load(str(tmp_path)).train_images[:], data.train_images[:])


def test_tiny_imagenets_own_layout(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    train = [write(root / f"train/n0{i % 2}/images/n0{i % 2}_{i}.JPEG", i, 64, 64) for i in range(4)]
    (root / "train/n00/n00_boxes.txt").write_text("n00_0.JPEG\t0\t0\t62\t62\n")
    val = [write(root / f"val/images/val_{i}.JPEG", 10 + i, 64, 64) for i in range(3)]
    lines = [f"val_{i}.JPEG\tn0{(i + 1) % 2}\t0\t0\t63\t63" for i in range(3)]
    (root / "val/val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "test/images").mkdir(parents=True)
    write(root / "test/images/test_0.JPEG")  # the unlabelled official test part
    data = streams.load("tinyimagenet", tmp_path)
    assert np.array_equal(data.train_images[:], np.stack([train[0], train[2], train[1], train[3]]))
    assert data.train_labels.tolist() == [0, 0, 1, 1]
    assert np.array_equal(data.test_images[:], np.stack([val[1], val[0], val[2]]))
    assert data.test_labels.tolist() == [0, 1, 1]
    assert data.classes == 2
    assert data.mean == streams.info("tinyimagenet").mean
    (root / "val/val_annotations.txt").write_text("../../x.JPEG\tn00\n")
    with pytest.raises(DataError, match=r"val_annotations\.txt: line 1"):
        streams.load("tinyimagenet", tmp_path)


def test_clears_layout_with_domains_by_number_and_no_background(tmp_path: Path) -> None:
    for part, buckets in (("train", (1, 2, 10)), ("test", (0, 1, 10))):
        for bucket in buckets:
            for label in ("bus", "camera", "BACKGROUND"):
                write(tmp_path / f"clear10/{part}/labeled_images/{bucket}/{label}/{bucket}.jpg", bucket, 20, 30)
        (tmp_path / f"clear10/{part}/labeled_metadata.json").write_text("{}")
    data = streams.load("clear10", tmp_path)
    assert data.class_names == ("bus", "camera")
    assert data.domain_names == ("0", "1", "2", "10")
    assert data.input_shape == (3, 224, 224)
    assert data.train_domains is not None
    assert data.test_domains is not None
    assert sorted(data.train_domains.tolist()) == [1, 1, 2, 2, 3, 3]
    assert sorted(data.test_domains.tolist()) == [0, 0, 1, 1, 3, 3]
    assert data.info.domains == 3
    stream = streams.stream_of(data, "domain", 1)
    assert data.train_domains[stream.indices].tolist() == [1, 1, 2, 2, 3, 3]
    expected = Image.fromarray(picture(10, 20, 30)).resize((224, 224), Image.Resampling.BILINEAR)
    last = stream[5]
    assert np.array_equal(data.train_images[last], np.asarray(expected).transpose(2, 0, 1))


def test_images_on_demand_are_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        write(tmp_path / f"train/{'ab'[i % 2]}/{i}.png", i, 9, 7)
        write(tmp_path / f"val/{'ab'[i % 2]}/{i}.png", i + 10, 9, 7)
    whole = streams.load(str(tmp_path), size=5, on_demand=False)
    lazy = streams.load(str(tmp_path), size=5, on_demand=True)
    assert isinstance(lazy.train_images, LazyImages)
    assert lazy.train_images.shape == whole.train_images.shape == (6, 3, 5, 5)
    mask = np.array([True, False, True, False, False, True])
    for index in (0, -1, slice(1, 4), [3, 0], np.array([5, 5, 2]), mask):
        assert np.array_equal(lazy.train_images[index], whole.train_images[index])
    with pytest.raises(IndexError):
        lazy.train_images[6]
    monkeypatch.setattr(own, "HELD", 6 * 75 - 1)
    assert isinstance(streams.load(str(tmp_path), size=5).train_images, LazyImages)
    monkeypatch.setattr(own, "HELD", 6 * 75)
    assert isinstance(streams.load(str(tmp_path), size=5).train_images, np.ndarray)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK", "LA"])
def test_every_8_bit_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "image.tif"
    Image.fromarray(picture(1)).convert(mode).save(path)
    with Image.open(path) as image:
        expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(Pixels(8).of(path), expected)


def test_a_transparent_palette_is_read_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.fromarray(picture(1)).convert("P").save(path, transparency=bytes(range(256)))
    assert Pixels(8).of(path).shape == (3, 8, 8)


def test_broken_images_are_named(tmp_path: Path) -> None:
    write(tmp_path / "train/a/1.png")
    write(tmp_path / "test/a/1.png")
    path = tmp_path / "train/a/2.png"
    write(path)
    os.truncate(path, 150)
    with pytest.raises(DataError, match=r"train/a/2\.png: not a whole image \(150 bytes"):
        streams.load(str(tmp_path), size=8)
    path.write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"2\.png: not a whole image"):
        streams.load(str(tmp_path), size=8)
    with pytest.raises(DataError, match=r"2\.png: not a whole image"):
        streams.load(str(tmp_path))
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(path)
    with pytest.raises(DataError, match="more than 8 bits"):
        streams.load(str(tmp_path), size=8)


def test_odd_layouts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="train"):
        streams.load(str(tmp_path))
    (tmp_path / "train/a").mkdir(parents=True)
    with pytest.raises(DataError, match="no images"):
        streams.load(str(tmp_path))
    write(tmp_path / "train/a/1.png")
    with pytest.raises(DataError, match="no test samples in it: give every class two samples"):
        streams.load(str(tmp_path))
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match="no test/ or val/ folder with images"):
        streams.load(str(tmp_path))
    assert len(streams.load(str(tmp_path), test=False).train_labels) == 1
    write(tmp_path / "test/b/1.png")
    with pytest.raises(DataError, match="class 'b' has no training images"):
        streams.load(str(tmp_path))
    write(tmp_path / "train/b/1.png", 0, 9, 9)
    with pytest.raises(DataError, match=r"b/1\.png is 9x9, the first 8x8: pass size="):
        streams.load(str(tmp_path))
    with pytest.raises(DataError, match="1 or more"):
        streams.load(str(tmp_path), size=-3)
    write(tmp_path / "train/year/c/1.png")
    with pytest.raises(DataError, match="use one layout"):
        streams.load(str(tmp_path), size=8)


def test_domains_are_numbered_alike_whichever_part_is_loaded(tmp_path: Path) -> None:
    for domain in ("1", "2"):
        write(tmp_path / f"train/{domain}/a/1.png")
    write(tmp_path / "test/0/a/1.png")
    whole = streams.load(str(tmp_path))
    alone = streams.load(str(tmp_path), test=False)
    assert whole.train_domains is not None
    assert alone.train_domains is not None
    assert whole.train_domains.tolist() == alone.train_domains.tolist() == [1, 2]
    shutil.rmtree(tmp_path / "test")
    write(tmp_path / "test/a/1.png")  # a test part without domains
    assert streams.load(str(tmp_path)).test_domains is None


def test_the_test_part_alone_keeps_the_class_numbers(tmp_path: Path) -> None:
    for label in "abc":
        write(tmp_path / f"train/{label}/1.png")
    write(tmp_path / "test/c/1.png")
    data = streams.load(str(tmp_path), train=False)
    assert data.test_labels.tolist() == [2]
    assert data.classes == 3
