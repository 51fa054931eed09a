"""The data sets by name: their facts, where they come from, and `load`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from budgeted.errors import BudgetedError, UnknownName
from budgeted.streams import arrays, cifar, digits, folder, idx, svhn
from budgeted.streams.dataset import DataError, DataMissing, Dataset, DatasetInfo, Request, default_data_dir
from budgeted.streams.download import DownloadGone, Progress, Source, fetch


@dataclass(frozen=True)
class _Entry:
    info: DatasetInfo
    read: Callable[[Request], Dataset]
    #: Ways to download it, each a set of files; a later way is taken only where an earlier address is gone.
    downloads: tuple[tuple[Source, ...], ...] = ()
    #: What to do where there is no download.
    by_hand: str = ""
    resizes: bool = False


#: Of ImageNet: the usual ones for photographs.
_PHOTO_MEAN, _PHOTO_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_KRIZ = "https://www.cs.toronto.edu/~kriz/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_CLEAR = "https://huggingface.co/datasets/elvishelvis6/CLEAR-Continual_Learning_Benchmark"
_IDX_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def _archive(version: cifar.Version, md5: str, size: int) -> tuple[Source, ...]:
    return (Source(_KRIZ + version.archive, md5, version.archive, size),)


def _idx_files(address: str, subfolder: str, *sums: tuple[str, int]) -> tuple[Source, ...]:
    """`sums`: md5 and bytes of each file."""
    return tuple(
        Source(address + name, md5, f"{subfolder}/{name}", size)
        for name, (md5, size) in zip(_IDX_FILES, sums, strict=True)
    )


def _svhn_file(name: str, md5: str) -> Source:
    return Source(_SVHN + name, md5, f"svhn/{name}", svhn.OFFICIAL_BYTES[name])


_ENTRIES = (
    _Entry(
        DatasetInfo(
            "cifar10",
            10,
            (3, 32, 32),
            50_000,
            10_000,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            flips=True,
            class_listing=cifar.CIFAR10_LISTING,
        ),
        partial(cifar.read, versions=(cifar.CIFAR10_BINARY, cifar.CIFAR10_PYTHON)),
        (
            _archive(cifar.CIFAR10_BINARY, "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
            _archive(cifar.CIFAR10_PYTHON, "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ),
    ),
    _Entry(
        DatasetInfo(
            "cifar100",
            100,
            (3, 32, 32),
            50_000,
            10_000,
            mean=(0.5071, 0.4867, 0.4408),
            std=(0.2675, 0.2565, 0.2761),
            flips=True,
        ),
        partial(cifar.read, versions=(cifar.CIFAR100_BINARY, cifar.CIFAR100_PYTHON)),
        (
            _archive(cifar.CIFAR100_BINARY, "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
            _archive(cifar.CIFAR100_PYTHON, "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437),
        ),
    ),
    # CLEAR: 10 buckets of 300 training samples a class (CLEAR-100: 11 of 100), 11 of 50 test samples a class.
    # The official files add a class BACKGROUND, which the published experiments leave out.
    _Entry(
        DatasetInfo("clear10", 10, (3, 224, 224), 30_000, 5_500, _PHOTO_MEAN, _PHOTO_STD, True, domains=10),
        partial(folder.read, folder_names=("clear10", "CLEAR10", "CLEAR-10"), leave_out=("BACKGROUND",)),
        by_hand=f"unzip clear10-{{train,test}}.zip of {_CLEAR} as clear10/train and clear10/test there",
        resizes=True,
    ),
    _Entry(
        DatasetInfo("clear100", 100, (3, 224, 224), 110_000, 55_000, _PHOTO_MEAN, _PHOTO_STD, True, domains=11),
        partial(folder.read, folder_names=("clear100", "CLEAR100", "CLEAR-100"), leave_out=("BACKGROUND",)),
        by_hand=f"unzip clear100-{{train,test}}.zip of {_CLEAR} as clear100/train and clear100/test there",
        resizes=True,
    ),
    _Entry(
        DatasetInfo("imagenet", 1000, (3, 224, 224), 1_281_167, 50_000, _PHOTO_MEAN, _PHOTO_STD, True),
        partial(folder.read, folder_names=("imagenet", "ILSVRC2012")),
        by_hand="put the images of image-net.org as imagenet/train/WNID/ and imagenet/val/WNID/",
        resizes=True,
    ),
    _Entry(
        DatasetInfo(
            "tinyimagenet",
            200,
            (3, 64, 64),
            100_000,
            10_000,
            mean=(0.4802, 0.4481, 0.3975),
            std=(0.2302, 0.2265, 0.2262),
            flips=True,
        ),
        partial(folder.read, folder_names=("tiny-imagenet-200", "tinyimagenet")),
        by_hand="unzip http://cs231n.stanford.edu/tiny-imagenet-200.zip there",
        resizes=True,
    ),
    _Entry(
        DatasetInfo("mnist", 10, (1, 28, 28), 60_000, 10_000, (0.1307,), (0.3081,), flips=False),
        partial(idx.read, folder_name="mnist", class_names=idx.DIGIT_CLASSES),
        (
            _idx_files(
                _MNIST,
                "mnist",
                ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
            ),
        ),
    ),
    _Entry(
        DatasetInfo("fashion-mnist", 10, (1, 28, 28), 60_000, 10_000, (0.2860,), (0.3530,), flips=True),
        partial(idx.read, folder_name="fashion-mnist", class_names=idx.FASHION_CLASSES),
        (
            _idx_files(
                _FASHION,
                "fashion-mnist",
                ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
            ),
        ),
    ),
    _Entry(
        DatasetInfo(
            "svhn",
            10,
            (3, 32, 32),
            73_257,
            26_032,
            mean=(0.4377, 0.4438, 0.4728),
            std=(0.1980, 0.2010, 0.1970),
            flips=False,
        ),
        svhn.read,
        (
            (
                _svhn_file("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                _svhn_file("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
            ),
        ),
    ),
    _Entry(DatasetInfo("digits", 10, (1, 8, 8), 1_437, 360, (0.3049,), (0.3758,), flips=False), digits.read),
)
_BY_NAME = {entry.info.name: entry for entry in _ENTRIES}


def names() -> tuple[str, ...]:
    """The data sets that `load` knows by name."""
    return tuple(_BY_NAME)


def info(name: str) -> DatasetInfo:
    """The facts of a data set; needs no data on disk."""
    return _entry(name).info


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    train: bool = True,
    test: bool = True,
    download: bool = False,
    size: int | None = None,
    on_demand: bool | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """A data set by name, or a user's own: `name` may be the path of an image folder or of an .npz file.

    `data_dir` holds the data set's usual folder, files or archive, or is that folder itself; without it
    $BUDGETED_DATA or the user's cache is looked in. Nothing is downloaded unless `download` is on. `size`
    (pixels) and `on_demand` (decode images when they are used; by default only above 4 GiB) are for sets of
    image files.
    """
    if name not in _BY_NAME and os.path.exists(name):
        return _load_own(Path(name), train, test, size, on_demand)
    entry = _entry(name)
    if size is not None and not entry.resizes:
        raise BudgetedError(f"{name} has images of one size {entry.info.input_shape}: leave size out")
    folder_of_data = Path(data_dir).expanduser() if data_dir is not None else default_data_dir()
    request = Request(entry.info, folder_of_data, train, test, size, on_demand)
    try:
        return entry.read(request)
    except OSError as problem:
        raise DataError(f"{folder_of_data} cannot be looked into ({problem.strerror}): check it") from problem
    except DataMissing as missing:
        if download and entry.downloads:
            _download(entry, folder_of_data, progress)
            return entry.read(request)
        if entry.downloads:
            remedy = "pass download=True (--download) to fetch it, or data_dir=FOLDER (--data) where it is"
        else:
            remedy = entry.by_hand
        raise DataMissing(f"{name} is not in {folder_of_data} (looked for {missing}): {remedy}") from missing


def _entry(name: str) -> _Entry:
    if name not in _BY_NAME:
        raise UnknownName("data set", name, _BY_NAME)
    return _BY_NAME[name]


def _load_own(path: Path, train: bool, test: bool, size: int | None, on_demand: bool | None) -> Dataset:
    if not path.is_dir():
        return arrays.from_npz(path)
    unknown = DatasetInfo(path.resolve().name, 0, (3, 0, 0), 0, 0, _PHOTO_MEAN, _PHOTO_STD, flips=True)
    return folder.read_own(Request(unknown, path, train, test, size, on_demand))


def _download(entry: _Entry, data_dir: Path, progress: Progress | None) -> None:
    for way in entry.downloads[:-1]:
        try:
            return _fetch_all(way, data_dir, progress)
        except DownloadGone:
            continue
    _fetch_all(entry.downloads[-1], data_dir, progress)


def _fetch_all(sources: tuple[Source, ...], data_dir: Path, progress: Progress | None) -> None:
    for source in sources:
        fetch(source, data_dir, progress=progress)
