"""Folders of image files: one sub-folder per class, with or without a split, with or without domains.

    train/CLASS/*.png                       test/ or val/ likewise
    CLASS/*.png                             no split: a share of each class is set aside for testing
    train/CLASS/images/*.JPEG               val/images/*.JPEG and val/val_annotations.txt (tiny-imagenet)
    train/[labeled_images/]DOMAIN/CLASS/*   test/ likewise (CLEAR, whose train/ may be called train_image_only/)

Samples, classes and domains come in sorted order (those that are all numbers, by number), never in that of
a directory listing. Hidden files and files that are not images by name are passed over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.files import read_regular
from budgeted.streams.listing import Builder, Listing, with_length
from budgeted.streams.one_line import fits_a_line
from budgeted.streams.own import dataset_of

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
#: Bytes of a table of names and classes; tiny-imagenet's has 0.4 million.
MOST_ANNOTATIONS = 64 * 2**20
_TRAIN_FOLDERS = ("train", "train_image_only")
_TEST_FOLDERS = ("test", "val", "validation")
#: Path, class and domain of an image file.
_Found = tuple[str, str, str]


def read(
    request: Request,
    folder_names: tuple[str, ...] = (),
    leave_out: tuple[str, ...] = (),
    pretraining: str | None = None,
) -> Dataset:
    """A named data set in this form, resized to its own size; `leave_out` are classes not part of it."""
    places = (*(request.data_dir / name for name in folder_names), request.data_dir)
    root = next((root for root in places if _train_root(root)), None)
    if root is None:
        raise DataMissing(" or ".join(f"{name}/train/" for name in folder_names) or "train/")
    sized = replace(request, size=request.size or request.info.input_shape[1])
    return dataset_of(
        list_folder(root, request.test),
        sized,
        str(root),
        leave_out=leave_out,
        statistics=False,
        pretraining=pretraining,
    )


def read_own(request: Request) -> Dataset:
    """A user's folder. Without `size`, all images must have one square size; statistics are computed."""
    return dataset_of(list_folder(request.data_dir, request.test), request, str(request.data_dir))


def list_folder(root: Path, test: bool = True) -> Listing:
    """Every image below a folder, with what its place says about it."""
    builder, train = Builder(), _train_root(root)
    if not root.is_dir():
        raise DataMissing(f"{root} is no folder: check the path")
    if train is None:
        _add(builder, root, _walk(root), "")
        if not len(builder):
            flat = len(_class_files(root))
            remedy = "check the path"
            if flat:
                remedy = f"put its {flat} images into one folder for each class, or list them in a manifest:FILE"
            raise DataMissing(f"{root} holds neither train/CLASS/ nor CLASS/ with images: {remedy}")
    else:
        _add(builder, root, _walk(train), "train")
        if not len(builder):
            raise DataError(f"{train}: no images in CLASS/ or DOMAIN/CLASS/ below it: check the layout")
        tests = _list_test(root, set(builder.words))  # also where it is not wanted: together they name the domains
        if test and not tests:
            raise DataError(f"{root}: no test/ or val/ folder with images beside train/: add one")
        _add(builder, root, iter(tests), "test")

    spool = builder.spool

    def path(index: int) -> str:
        return os.path.join(root, os.fsdecode(spool[index]))

    return builder.listing(path, path, str(root), key=with_length(spool, path))


def _add(builder: Builder, root: Path, found: Iterator[_Found], part: str) -> None:
    start = len(os.path.join(root, ""))
    for path, class_name, domain in found:
        builder.add(os.fsencode(path[start:]), class_name, path, part=part, domain=domain)


def _walk(folder: Path) -> Iterator[_Found]:
    """Every image below a train or test folder, or below one without a split."""
    annotations = folder / "val_annotations.txt"
    if os.path.lexists(annotations):
        yield from _annotated(folder, annotations)
        return
    plain: str | None = None
    nested = False
    for outer in _folders(folder):
        if files := _class_files(outer):
            plain = outer.name
            yield from ((path, outer.name, "") for path in files)
        else:
            for inner in _folders(outer):
                for path in _class_files(inner):
                    nested = True
                    yield path, inner.name, outer.name
        if plain is not None and nested:
            raise DataError(f"{folder}: {plain!r} holds images, others hold folders of classes: use one layout")


def _list_test(root: Path, classes: set[str]) -> list[_Found]:
    """The first of the test folders that shows a training class: some official ones hold no labels."""
    listings = [list(_walk(_inner(root / name))) for name in _TEST_FOLDERS if (root / name).is_dir()]
    labelled = (listed for listed in listings if any(class_name in classes for _, class_name, _ in listed))
    return next(labelled, listings[0] if listings else [])


def _annotated(folder: Path, annotations: Path) -> Iterator[_Found]:
    """tiny-imagenet's validation part: names and classes in a table, images in one folder."""
    listed: list[_Found] = []
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
        listed.append((str(folder / "images" / fields[0]), fields[1], ""))
    yield from sorted(listed, key=lambda each: (each[1], each[0]))


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


def _train_root(root: Path) -> Path | None:
    return next((_inner(root / name) for name in _TRAIN_FOLDERS if (root / name).is_dir()), None)


def _inner(folder: Path) -> Path:
    """CLEAR keeps its images one level down, beside its metadata."""
    return folder / "labeled_images" if (folder / "labeled_images").is_dir() else folder
