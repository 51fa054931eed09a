"""SVHN's cropped digits: train_32x32.mat and test_32x32.mat."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from budgeted.streams.dataset import DataError, DataMissing, Dataset, Part, Request, assemble
from budgeted.streams.idx import DIGIT_CLASSES
from budgeted.streams.mat import MatError, read_mat

OFFICIAL_BYTES = {"train_32x32.mat": 182_040_794, "test_32x32.mat": 64_275_384}


def read(request: Request) -> Dataset:
    """Both files, in `data_dir` or its sub-folder `svhn`."""
    train = _part(request.data_dir, "train_32x32.mat", request.info.train_size) if request.train else None
    test = _part(request.data_dir, "test_32x32.mat", request.info.test_size) if request.test else None
    return assemble(request.info, DIGIT_CLASSES, train, test)


def _part(data_dir: Path, name: str, samples: int) -> Part:
    path = next((path for path in (data_dir / "svhn" / name, data_dir / name) if path.exists()), None)
    if path is None:
        raise DataMissing(f"svhn/{name}")
    expected, found = OFFICIAL_BYTES[name], path.stat().st_size
    hint = f"expected {expected:,} bytes as in the official file, found {found:,}: fetch it again"
    try:
        content = read_mat(path, {"X": samples * 3072, "y": samples * 8})  # y may come as doubles
        if missing := {"X", "y"} - content.keys():
            raise MatError(f"no {min(missing)} in it")
    except (MatError, zlib.error, OSError) as problem:
        raise DataError(f"{path}: not a readable .mat file with X and y ({problem}); {hint}") from problem
    images, labels = content["X"], content["y"].ravel()
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: X is {images.dtype} {images.shape} instead of uint8 (32, 32, 3, N); {hint}")
    if labels.shape != images.shape[3:] or not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y is not one label of 1…10 for each of {images.shape[3]} images; {hint}")
    # The files call the digit 0 class 10.
    return Part(np.ascontiguousarray(images.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10)
