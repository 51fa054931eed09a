"""Folders of image files: one sub-folder per class, with or without a split, with or without domains.

    train/CLASS/*.png                       test/ or val/ likewise (or Train/, training/, testing/, valid/, validation/)
    train/CLASS/*.png alone, CLASS/*.png    no split: a share of each class is set aside for testing
    train/CLASS/images/*.JPEG               val/images/*.JPEG and val/val_annotations.txt (tiny-imagenet)
    train/[labeled_images/]DOMAIN/CLASS/*   test/ likewise (CLEAR, whose train/ may be called train_image_only/)

Samples, classes and domains come in sorted order (those that are all numbers, by number), never in that of
a directory listing. Hidden files and files that are not images by name are passed over; images that belong to no class,
deeper down or beside the folders, are refused, but for the pictures that `data info` draws.
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
from budgeted.streams.picture_mark import drawn_here

SUFFIXES = frozenset(
    {".bmp", ".gif", ".jfif", ".jpe", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
#: With photographs that are not decoded here: they are listed, so that each is refused, or passed over and counted.
_LISTED = SUFFIXES | {".avif", ".heic", ".heif"}
#: Bytes of a table of names and classes; tiny-imagenet's has 0.4 million.
MOST_ANNOTATIONS = 64 * 2**20
#: In letters of any case; the first that is there is taken.
_TRAIN_FOLDERS = ("train", "training", "train_image_only")
_TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")
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
    listing = list_folder(request.data_dir, request.test, own=True)
    return dataset_of(listing, request, str(request.data_dir))


def list_folder(root: Path, test: bool = True, own: bool = False) -> Listing:
    """Every image below a folder, with what its place says about it.

    own: a user's. There train/ without a folder for testing is a folder without a split, and no image may lie beside
    it; the folder of a known set may be that of all data.
    """
    builder, train = Builder(), _train_root(root)
    if not root.is_dir():
        raise DataMissing(f"{root} is no folder: check the path")
    if train is None:
        for name in _called(root, _TEST_FOLDERS):
            # A class may be called so; a domain would mix testing into training.
            if not _look(name)[0] and _first_below(name) is not None:
                raise DataError(f"{name} has no train/ beside it: name the folder of training images train/")
        _add(builder, root, _walk(root), "")
        if not len(builder):
            flat = len(_class_files(root))
            remedy = "check the path"
            if flat:
                remedy = f"put its {flat} images into one folder for each class, or list them in a manifest:FILE"
            raise DataMissing(f"{root} holds neither train/CLASS/ nor CLASS/ with images: {remedy}")
    else:
        lacks_test = own and not _called(root, _TEST_FOLDERS)
        _add(builder, root, _walk(train), "" if lacks_test else "train")
        if not len(builder):
            raise DataError(f"{train}: no images in CLASS/ or DOMAIN/CLASS/ below it: check the layout")
        if own:
            _refuse_images_in(root, "train/")
        tests = _list_test(root, set(builder.words))  # also where it is not wanted: together they name the domains
        if test and not tests and not lacks_test:
            raise DataError(f"{root}: no test/ or val/ folder with images in CLASS/ beside train/: add one")
        _add(builder, root, iter(tests), "test")

    spool = builder.spool

    def path(index: int) -> str:
        return os.path.join(root, os.fsdecode(spool[index]))

    return builder.listing(path, path, str(root), key=with_length(spool, path))


def _add(builder: Builder, root: Path, found: Iterator[_Found], part: str) -> None:
    start = len(str(root / "x")) - 1  # paths below the folder "." do not begin with it
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
        if files := _class_files(outer, only=False):
            plain = outer.name
            yield from ((path, outer.name, "") for path in files)
        else:
            for inner in _folders(outer):
                for path in _class_files(inner):
                    nested = True
                    yield path, inner.name, outer.name
        if plain is not None and nested:
            raise DataError(f"{folder}: {plain!r} holds images, others hold folders of classes: use one layout")
    if plain is not None or nested:
        _refuse_images_in(folder, "the folders of classes")


def _refuse_images_in(folder: Path, beside: str) -> None:
    names = sorted(entry.name for entry in _entries(folder) if is_image(entry.name) and _kind(entry) != "folder")
    if strays := [name for name in names if not drawn_here(folder / name)]:
        more = f" (so do {len(strays) - 1:,} more)" if len(strays) > 1 else ""
        raise DataError(
            f"{folder / strays[0]} lies beside {beside} and so in no class{more}: "
            "put it into the folder of its class, or remove it"
        )


def _list_test(root: Path, classes: set[str]) -> list[_Found]:
    """The first of the test folders that shows a training class: some official ones hold no labels."""
    listings = [list(_walk(_inner(folder))) for folder in _called(root, _TEST_FOLDERS)]
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


def _class_files(folder: Path, only: bool = True) -> list[str]:
    """The images of a class folder, directly in it or in its sub-folder `images`; any deeper down are refused.

    only: it can be nothing but a class; otherwise, where it holds no images, it may be a domain with classes in it.
    """
    files, folders = _look(folder)
    if not files and "images" in folders:
        files, deeper = _look(folder / "images")
        folders = [*(name for name in folders if name != "images"), *(f"images/{name}" for name in deeper)]
    if files or only:
        for name in folders:
            if (stray := _first_below(folder / name)) is not None:
                raise DataError(f"{stray} lies below the class {folder}: put the images of a class into one folder")
    return files


def _first_below(folder: Path) -> str | None:
    """Some image in a folder or below it; links are not followed, which may lead in a circle."""
    for where, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            if is_image(name):
                return os.path.join(where, name)
    return None


def is_image(name: str) -> bool:
    """Whether a file is an image by its name, and not hidden."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in _LISTED


def _look(folder: Path) -> tuple[list[str], list[str]]:
    """The images of a folder and the names of its sub-folders, both sorted."""
    files, folders = [], []
    for entry in _entries(folder):
        kind = _kind(entry)
        if is_image(entry.name):
            # A link to nothing is listed: it is a missing file, which is met when it arrives.
            if kind != "file" and not (kind == "other" and entry.is_symlink() and not os.path.exists(entry.path)):
                raise DataError(f"{entry.path} is no regular file: restore, rename or remove it")
            files.append(os.path.join(folder, entry.name))
        elif kind == "folder":
            folders.append(entry.name)
    return sorted(files), sorted(folders)


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
    found = next(iter(_called(root, _TRAIN_FOLDERS)), None)
    if found is None or _is_a_class(found, root):
        return None
    return _inner(found)


def _is_a_class(train: Path, root: Path) -> bool:
    """Whether train/ is a class among others, as of vehicles: it holds images, and no folder for testing is there."""
    return bool(_look(train)[0]) and not _called(root, _TEST_FOLDERS) and len(_look(root)[1]) > 1


def _called(root: Path, names: tuple[str, ...]) -> list[Path]:
    """The folders in a folder that are called so, in the order of the names, in letters of any case."""
    if not root.is_dir():
        return []
    found: dict[str, Path] = {}
    for entry in sorted(_entries(root), key=lambda each: each.name):
        if entry.name.lower() not in names or _kind(entry) != "folder":
            continue
        if (other := found.setdefault(entry.name.lower(), root / entry.name)).name != entry.name:
            raise DataError(f"{root} holds {other.name}/ and {entry.name}/: rename or remove one")
    return [found[name] for name in names if name in found]


def _inner(folder: Path) -> Path:
    """CLEAR keeps its images one level down, beside its metadata."""
    return folder / "labeled_images" if (folder / "labeled_images").is_dir() else folder
