"""IDX files, plain or gzipped: MNIST, Fashion-MNIST and others in their form."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError, DataMissing, Dataset, Part, Request, assemble, wrong_bytes

DIGIT_CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_UNSIGNED_BYTE = 0x08
_AGAIN = "the file is cut or not in IDX form, fetch it again"


def read(request: Request, folder_name: str, class_names: tuple[str, ...]) -> Dataset:
    """The usual four files, in `data_dir` or its sub-folder `folder_name`."""
    train = _part(request.data_dir, folder_name, "train") if request.train else None
    test = _part(request.data_dir, folder_name, "t10k") if request.test else None
    return assemble(request.info, class_names, train, test)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in one IDX file of unsigned bytes."""
    raw = _content(path)
    if len(raw) < 4:
        raise wrong_bytes(str(path), "at least 4", len(raw), _AGAIN)
    zero_1, zero_2, kind, axes = raw[:4]
    if (zero_1, zero_2, kind) != (0, 0, _UNSIGNED_BYTE) or not 1 <= axes <= 4:
        raise DataError(f"{path}: starts with {raw[:4].hex()} instead of 0000 08 and 1 to 4 axes: {_AGAIN}")
    header = 4 + 4 * axes
    if len(raw) < header:
        raise wrong_bytes(str(path), f"at least {header}", len(raw), _AGAIN)
    shape = tuple(int(side) for side in np.frombuffer(raw, ">u4", axes, 4))
    if len(raw) != header + math.prod(shape):
        sides = " x ".join(map(str, shape))
        raise wrong_bytes(
            str(path), f"{header + math.prod(shape):,} (a header of {header} and {sides})", len(raw), _AGAIN
        )
    return np.array(np.frombuffer(raw, np.uint8, offset=header).reshape(shape))


def _part(data_dir: Path, folder_name: str, prefix: str) -> Part:
    images_file = _locate(data_dir, folder_name, prefix, "images", 3)
    labels_file = _locate(data_dir, folder_name, prefix, "labels", 1)
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3:
        raise DataError(f"{images_file}: {images.ndim} axes instead of 3: this is not a file of images")
    if labels.ndim != 1:
        raise DataError(f"{labels_file}: {labels.ndim} axes instead of 1: this is not a file of labels")
    if len(images) != len(labels):
        raise DataError(f"{labels_file}: {len(labels)} labels for {len(images)} images: fetch both files again")
    return Part(images[:, None], labels.astype(np.int64))


def _locate(data_dir: Path, folder_name: str, prefix: str, what: str, axes: int) -> Path:
    stems = (f"{prefix}-{what}-idx{axes}-ubyte", f"{prefix}-{what}.idx{axes}-ubyte")
    for folder in (data_dir / folder_name, data_dir):
        for stem in stems:
            for path in (folder / stem, folder / f"{stem}.gz"):
                if path.is_file():
                    return path
    raise DataMissing(f"{folder_name}/{stems[0]}[.gz]")


def _content(path: Path) -> bytes:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as unpacked:
                return unpacked.read()
        return path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        size = path.stat().st_size
        raise DataError(f"{path}: cut or damaged after {size:,} bytes ({problem}): fetch it again") from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}): check it") from problem
