"""IDX files, plain or gzipped: MNIST, Fashion-MNIST and others in their form."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import DataError, DataMissing, Dataset, Part, Request, assemble, wrong_bytes
from budgeted.streams.files import DEFLATE_FACTOR, Readable, open_regular, read_at_most, size_of

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
#: Of a file of no known set.
MOST_BYTES = 2**31
_UNSIGNED_BYTE = 0x08
_AGAIN = "the file is cut or not in IDX form, fetch it again"


def read(request: Request, folder_name: str, class_names: tuple[str, ...]) -> Dataset:
    """The usual four files, in `data_dir` or its sub-folder `folder_name`."""
    train = labelled_images(request, folder_name, "train", request.info.train_size) if request.train else None
    test = labelled_images(request, folder_name, "t10k", request.info.test_size) if request.test else None
    return assemble(request.info, class_names, train, test)


def read_idx(path: Path, most: int = MOST_BYTES) -> NDArray[np.uint8]:
    """The array in one IDX file of unsigned bytes, at most `most` of them."""
    try:
        with open_regular(path) as file:
            size = size_of(file)
            if path.suffix != ".gz":
                return _read(path, file, most, size)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read(path, unpacked, most, None, DEFLATE_FACTOR * size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise DataError(f"{path}: cut or damaged after {size:,} bytes ({problem}): fetch it again") from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}): check it") from problem


def _read(path: Path, file: Readable, most: int, size: int | None, could_be: int | None = None) -> NDArray[np.uint8]:
    """`size`: bytes in all, where that is known before; `could_be`: the most that can come."""
    start = read_at_most(file, 4)
    if len(start) < 4:
        raise wrong_bytes(str(path), "at least 4", len(start), _AGAIN)
    zero_1, zero_2, kind, axes = start
    if (zero_1, zero_2, kind) != (0, 0, _UNSIGNED_BYTE) or not 1 <= axes <= 4:
        raise DataError(f"{path}: starts with {start.hex()} instead of 0000 08 and 1 to 4 axes: {_AGAIN}")
    header = 4 + 4 * axes
    rest = read_at_most(file, 4 * axes)
    if len(rest) < 4 * axes:
        raise wrong_bytes(str(path), f"at least {header}", 4 + len(rest), _AGAIN)
    shape = tuple(int(side) for side in np.frombuffer(rest, ">u4"))
    values, sides = math.prod(shape), " x ".join(map(str, shape))
    expected = f"{header + values:,} (a header of {header} and {sides})"
    if size is not None and size != header + values:
        raise wrong_bytes(str(path), expected, size, _AGAIN)
    if values > most:
        raise DataError(f"{path}: holds {sides} values, at most {most:,} are expected: {_AGAIN}")
    if could_be is not None and header + values > could_be:
        raise DataError(f"{path}: expected {expected} bytes, at most {could_be:,} can be in it: {_AGAIN}")
    content = read_at_most(file, values + 1)  # one more than there is: at its end the checksum of gzip is looked at
    if len(content) != values:
        found = header + len(content)
        raise wrong_bytes(str(path), expected, found, f"or more; {_AGAIN}" if len(content) > values else _AGAIN)
    return np.frombuffer(content, np.uint8).reshape(shape)


def labelled_images(request: Request, folder_name: str, prefix: str, samples: int) -> Part:
    """The images and labels whose files begin with `prefix`; at most so many samples."""
    images_file = _locate(request.data_dir, folder_name, prefix, "images", 3)
    labels_file = _locate(request.data_dir, folder_name, prefix, "labels", 1)
    images = read_idx(images_file, samples * request.info.nbytes_per_sample)
    labels = read_idx(labels_file, samples)
    if images.ndim != 3:
        raise DataError(f"{images_file}: {images.ndim} axes instead of 3: this is not a file of images")
    if images.shape[1:] != request.info.input_shape[1:]:
        sides, right = (" x ".join(map(str, each)) for each in (images.shape[1:], request.info.input_shape[1:]))
        raise DataError(f"{images_file}: images of {sides} instead of {right}: {_AGAIN}")
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
                if path.exists():
                    return path
    raise DataMissing(f"{folder_name}/{stems[0]}[.gz]")
