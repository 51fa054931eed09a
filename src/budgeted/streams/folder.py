"""Folders of image files: one sub-folder per class, with or without domains; tiny-imagenet's official layout.

    train/CLASS/*.png                       test/ or val/ likewise
    train/CLASS/images/*.JPEG               val/images/*.JPEG and val/val_annotations.txt (tiny-imagenet)
    train/[labeled_images/]DOMAIN/CLASS/*   test/ likewise (CLEAR)

Samples, classes and domains come in sorted order (domains that are all numbers, by number), never in that of
a directory listing. Hidden files and files that are not images by name are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from budgeted.streams.dataset import (
    DataError,
    DataMissing,
    Dataset,
    Part,
    Request,
    assemble,
    channel_statistics,
)
from budgeted.streams.files import read_regular
from budgeted.streams.image_file import opened_image
from budgeted.streams.one_line import fits_a_line
from budgeted.streams.orders import Indices

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
#: A part whose decoded images take more bytes than this is decoded as it is used.
ON_DEMAND_ABOVE = 4 * 2**30
#: Bytes of a table of names and classes; tiny-imagenet's has 0.4 million.
MOST_ANNOTATIONS = 64 * 2**20
_TEST_FOLDERS = ("test", "val", "validation")
#: Modes with more than 8 bits a channel, which a conversion would clip without a word.
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16B", "I;16L", "I;16N"})


@dataclass(frozen=True, slots=True)
class _Listed:
    """One image file and what its place says about it; a plain string, for there may be a million."""

    path: str
    class_name: str
    domain_name: str = ""


class FolderImages:
    """Images [N, 3, H, W] that are decoded each time they are indexed; for sets that no memory holds."""

    def __init__(self, paths: Sequence[str], size: int) -> None:
        self._paths = tuple(paths)
        self._size = size

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self._paths), 3, self._size, self._size

    def __len__(self) -> int:
        return len(self._paths)

    def path(self, index: int) -> str:
        """The file of an image."""
        return self._paths[index]

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        chosen = np.arange(len(self._paths))[index]
        if chosen.ndim == 0:
            return decode(self._paths[int(chosen)], self._size)
        images = np.empty((len(chosen), 3, self._size, self._size), np.uint8)
        for row, which in enumerate(chosen):
            images[row] = decode(self._paths[which], self._size)
        return images


def read(request: Request, folder_names: tuple[str, ...] = (), leave_out: tuple[str, ...] = ()) -> Dataset:
    """A named data set in this form, resized to its own size; `leave_out` are classes not part of it."""
    root = next(
        (root for root in (*(request.data_dir / name for name in folder_names), request.data_dir) if _has_train(root)),
        None,
    )
    if root is None:
        raise DataMissing(" or ".join(f"{name}/train/" for name in folder_names) or "train/")
    size = request.size or request.info.input_shape[1]
    return _dataset(request, root, size, leave_out)


def read_own(request: Request) -> Dataset:
    """A user's folder. Without `size`, all images must have one square size; statistics are computed."""
    root = request.data_dir
    if not _has_train(root):
        raise DataMissing(f"{root} is no .npz file and holds no train/CLASS/ with images: check the path")
    size = request.size or _common_size(_list_part(_train_root(root)))
    dataset = _dataset(request, root, size, ())
    if not isinstance(dataset.train_images, np.ndarray) or not request.train:
        return dataset  # too many to look at each: the registry's usual photograph statistics stay
    mean, std = channel_statistics(dataset.train_images)
    return replace(dataset, info=replace(dataset.info, mean=mean, std=std))


def decode(path: str | Path, size: int) -> NDArray[np.uint8]:
    """One image file as RGB [3, size, size]; squashed to a square (bilinear, antialiased)."""
    with opened_image(path) as image:
        if image.mode in _DEEP_MODES:
            raise DataError(f"{path}: mode {image.mode} has more than 8 bits a channel: convert it to 8 bits")
        # A palette with transparency loses it with a warning unless it passes through RGBA.
        picture = (image.convert("RGBA") if "transparency" in image.info else image).convert("RGB")
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BILINEAR)
        return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def _dataset(request: Request, root: Path, size: int, leave_out: tuple[str, ...]) -> Dataset:
    # Both parts are listed even when one is wanted: together they name the classes and the domains.
    train_files = [each for each in _list_part(_train_root(root)) if each.class_name not in leave_out]
    classes = sorted({each.class_name for each in train_files})
    if not train_files:
        raise DataError(f"{root / 'train'}: no images in CLASS/ or DOMAIN/CLASS/ below it: check the layout")
    if size < 1:
        raise DataError(f"image size of {size} pixels: choose 1 or more")
    test_files = [each for each in _list_test(root, set(classes)) if each.class_name not in leave_out]
    if strays := sorted({each.class_name for each in test_files if request.test} - set(classes)):
        raise DataError(f"{root}: test class {strays[0]!r} has no training images: remove it or add some")
    if request.test and not test_files:
        raise DataError(f"{root}: no test/ or val/ folder with images beside train/: add one")
    domains = _sorted_domains({each.domain_name for each in (*train_files, *test_files)} - {""})
    train = _part(train_files, classes, domains, size, request.on_demand) if request.train else None
    test = _part(test_files, classes, domains, size, request.on_demand) if request.test else None
    return assemble(request.info, classes, train, test, domains)


def _part(files: list[_Listed], classes: list[str], domains: list[str], size: int, on_demand: bool | None) -> Part:
    images = FolderImages([each.path for each in files], size)
    number = {name: i for i, name in enumerate(classes)}
    labels = np.array([number[each.class_name] for each in files], np.int64)
    domain_of: Indices | None = None
    if files[0].domain_name:
        domain_number = {name: i for i, name in enumerate(domains)}
        domain_of = np.array([domain_number[each.domain_name] for each in files], np.int64)
    if on_demand is None:
        on_demand = len(files) * 3 * size * size > ON_DEMAND_ABOVE
    return Part(images if on_demand else images[:], labels, domain_of)


def _list_part(folder: Path) -> list[_Listed]:
    """Every image below a train or test folder."""
    annotations = folder / "val_annotations.txt"
    if os.path.lexists(annotations):
        return _list_annotated(folder, annotations)
    listed: list[_Listed] = []
    for outer in _folders(folder):
        if files := _class_files(outer):
            listed += [_Listed(path, outer.name) for path in files]
        else:
            listed += [
                _Listed(path, inner.name, outer.name) for inner in _folders(outer) for path in _class_files(inner)
            ]
    if len({each.domain_name == "" for each in listed}) == 2:
        mixed = next(each for each in listed if each.domain_name == "")
        raise DataError(f"{folder}: {mixed.class_name!r} holds images, others hold folders of classes: use one layout")
    return listed


def _list_test(root: Path, classes: set[str]) -> list[_Listed]:
    """The first of the test folders that shows a training class: some official ones hold no labels."""
    listings = [_list_part(_inner(root / name)) for name in _TEST_FOLDERS if (root / name).is_dir()]
    labelled = (listed for listed in listings if any(each.class_name in classes for each in listed))
    return next(labelled, listings[0] if listings else [])


def _list_annotated(folder: Path, annotations: Path) -> list[_Listed]:
    """tiny-imagenet's validation part: names and classes in a table, images in one folder."""
    listed = []
    try:
        text = read_regular(annotations, MOST_ANNOTATIONS).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise DataError(f"{annotations}: byte {problem.start:,} is not UTF-8: restore the file") from problem
    except OSError as problem:
        raise DataError(f"{annotations} cannot be read ({problem.strerror}): check it") from problem
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = line.split("\t")
        if len(fields) < 2 or Path(fields[0]).name != fields[0]:
            raise DataError(f"{annotations}: line {number} is not 'file<tab>class…': restore the file")
        listed.append(_Listed(str(folder / "images" / fields[0]), fields[1]))
    return sorted(listed, key=lambda each: (each.class_name, each.path))


def _class_files(folder: Path) -> list[str]:
    """The images of a class folder, directly in it or in its sub-folder `images`."""
    direct = _images_in(folder)
    return direct or (_images_in(folder / "images") if (folder / "images").is_dir() else [])


def _images_in(folder: Path) -> list[str]:
    names = []
    for entry in _entries(folder):
        if os.path.splitext(entry.name)[1].lower() not in SUFFIXES:
            continue
        if _kind(entry) != "file":
            raise DataError(f"{entry.path} is no regular file or a link to none: restore, rename or remove it")
        names.append(entry.name)
    return [os.path.join(folder, name) for name in sorted(names)]


def _folders(folder: Path) -> list[Path]:
    names = sorted(entry.name for entry in _entries(folder) if _kind(entry) == "folder")
    for name in names:  # they become the names of classes and domains
        if not fits_a_line(name):
            raise DataError(f"{folder}: the name of the folder {name!r} is not UTF-8 or breaks a line: rename it")
    return [folder / name for name in names]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as problem:
        raise DataError(f"{folder} cannot be listed ({problem.strerror}): check it") from problem


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    except OSError:  # links in a circle
        return "other"


def _has_train(root: Path) -> bool:
    return (root / "train").is_dir()


def _train_root(root: Path) -> Path:
    return _inner(root / "train")


def _inner(folder: Path) -> Path:
    """CLEAR keeps its images one level down, beside its metadata."""
    return folder / "labeled_images" if (folder / "labeled_images").is_dir() else folder


def _sorted_domains(names: set[str]) -> list[str]:
    if all(name.isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _common_size(files: list[_Listed]) -> int:
    first: tuple[int, int] | None = None
    for each in files:
        with opened_image(each.path) as image:
            size = image.size
        first = first or size
        if size != first or size[0] != size[1]:
            raise DataError(f"{each.path} is {size[0]}x{size[1]}, the first {first[0]}x{first[1]}: pass size=PIXELS")
    return first[0] if first else 0
