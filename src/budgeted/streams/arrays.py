"""A user's own arrays, given directly or in an .npz file, as a data set."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from budgeted.streams.dataset import DataError, Dataset, DatasetInfo, Part, assemble, channel_statistics
from budgeted.streams.labels import demand_class, word
from budgeted.streams.listing import in_order
from budgeted.streams.npz import read_npz
from budgeted.streams.one_line import fits_a_line
from budgeted.streams.orders import Indices

Layout = Literal["NCHW", "NHWC"]
_CHANNELS = (1, 3, 4)
_REQUIRED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("domains_train", "domains_test")


def from_arrays(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    *,
    name: str = "arrays",
    layout: Layout | None = None,
    flips: bool = False,
    train_domains: ArrayLike | None = None,
    test_domains: ArrayLike | None = None,
) -> Dataset:
    """uint8 images [N, H, W], [N, C, H, W] or [N, H, W, C] and their labels (integers or strings).

    Classes are the sorted distinct training labels (numbers by number), numbered from 0. `layout` is only needed where
    both ends of the shape could be channels. Mean and std are those of the training images.
    """
    train_images, test_images = (
        _images(x_train, f"{name}: x_train", layout),
        _images(x_test, f"{name}: x_test", layout),
    )
    train_names, test_names = _names(y_train, f"{name}: y_train"), _names(y_test, f"{name}: y_test")
    classes = in_order({str(each) for each in np.unique(train_names)})
    number = {each: label for label, each in enumerate(classes)}
    if strays := [str(each) for each in np.unique(test_names) if str(each) not in number]:
        raise DataError(f"{name}: label {strays[0]} is in y_test but never in y_train: drop it or add samples of it")
    mean, std = channel_statistics(train_images)
    shape = (train_images.shape[1], train_images.shape[2], train_images.shape[3])
    info = DatasetInfo(name, len(classes), shape, len(train_images), len(test_images), mean, std, flips)
    return assemble(
        info,
        classes,
        Part(train_images, _numbered(train_names, number), _domains(train_domains, train_names, name)),
        Part(test_images, _numbered(test_names, number), _domains(test_domains, test_names, name)),
    )


def from_npz(path: str | Path, *, layout: Layout | None = None, flips: bool = False) -> Dataset:
    """As `from_arrays`, from the keys x_train, y_train, x_test, y_test [, domains_train, domains_test]."""
    path = Path(path)
    found = read_npz(path, _REQUIRED, _OPTIONAL)
    return from_arrays(
        *(found[key] for key in _REQUIRED),
        name=path.stem,
        layout=layout,
        flips=flips,
        train_domains=found.get("domains_train"),
        test_domains=found.get("domains_test"),
    )


def _images(given: ArrayLike, where: str, layout: Layout | None) -> NDArray[np.uint8]:
    images = np.asarray(given)
    if images.dtype != np.uint8:
        raise DataError(f"{where} is {images.dtype}: give uint8 values of 0…255, as the memory stores them")
    if 0 in images.shape[1:]:
        raise DataError(f"{where} has shape {images.shape}: give images of at least one pixel")
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    if images.ndim != 4:
        raise DataError(f"{where} has shape {images.shape}: give [N, H, W], [N, C, H, W] or [N, H, W, C]")
    if layout is None:
        first, last = images.shape[1] in _CHANNELS, images.shape[3] in _CHANNELS
        if first == last:
            raise DataError(f"{where} has shape {images.shape}, channels unclear: pass layout='NCHW' or 'NHWC'")
        layout = "NCHW" if first else "NHWC"
    return np.ascontiguousarray(images if layout == "NCHW" else images.transpose(0, 3, 1, 2))


def _names(given: ArrayLike, where: str) -> NDArray[np.generic]:
    labels = np.asarray(given)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1 and labels.dtype.kind == "O":  # as a column of a table of pandas
        labels = np.array([word(label, f"{where}[{i}]") for i, label in enumerate(labels)], np.str_)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise DataError(f"{where} is {labels.dtype} of shape {labels.shape}: give one integer or string per sample")
    if len(labels) == 0:
        raise DataError(f"{where} is empty: give at least one sample")
    if labels.dtype.kind == "U" and not _is_text(labels):
        raise DataError(f"{where} holds labels that are no text: give integers or strings that can be printed")
    if labels.dtype.kind == "U":
        labels = np.char.strip(labels)
        for name, first in zip(*np.unique(labels, return_index=True), strict=True):
            demand_class(str(name), f"{where}[{first}]")
    return labels


def _is_text(labels: NDArray[np.generic]) -> bool:
    """Whether every label is letters: an array from a file may hold numbers that no letter has."""
    numbers = np.ascontiguousarray(labels.astype(labels.dtype.newbyteorder("="))).view(np.uint32)
    return int(numbers.max(initial=0)) <= sys.maxunicode and all(fits_a_line(str(label)) for label in np.unique(labels))


def _numbered(labels: NDArray[np.generic], number: dict[str, int]) -> Indices:
    met, which = np.unique(labels, return_inverse=True)
    return np.array([number[str(each)] for each in met], np.int64)[which]


def _domains(given: ArrayLike | None, labels: NDArray[np.generic], name: str) -> Indices | None:
    if given is None:
        return None
    domains = np.asarray(given)
    if domains.shape != labels.shape or domains.dtype.kind not in "iu":
        raise DataError(f"{name}: domains are {domains.dtype} of shape {domains.shape}: give one integer per sample")
    if int(domains.max(initial=0)) > np.iinfo(np.int64).max:
        raise DataError(f"{name}: domain {domains.max()} is too large a number: give numbers below 2**63")
    return domains.astype(np.int64)
