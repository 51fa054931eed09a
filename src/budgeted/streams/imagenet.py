"""ImageNet-1K (ILSVRC 2012): extracted folders, or the three official archives as they are, nothing unpacked.

    train/WNID/*.JPEG and val/WNID/*.JPEG
    ILSVRC2012_img_train.tar (a tar of 1,000 tars), ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz

The tars are not compressed: their headers are read once, then every picture at its place. What class a picture of the
validation part has is in the devkit: a number for each in `ILSVRC2012_validation_ground_truth.txt`, and in `meta.mat`
which WNID that number is. Both forms give the same samples in the same order.
"""

from __future__ import annotations

import os
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from budgeted.streams import folder
from budgeted.streams.dataset import DataError, DataMissing, Dataset, Request
from budgeted.streams.files import open_regular, read_at_most, size_of
from budgeted.streams.listing import Builder, Listing
from budgeted.streams.mat import MatError
from budgeted.streams.mat_struct import read_structs
from budgeted.streams.own import dataset_of
from budgeted.streams.tars import Window, members

FOLDERS = ("imagenet", "ILSVRC2012")
TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
MD5 = {
    TRAIN: "1d675b47d978889d74fa0da5fadfb00e",
    VAL: "29b22e2961454d5413ddabcf34fc5622",
    DEVKIT: "fa75699e90414af021442c21a62c3abf",
}
_META, _TRUTH = "data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt"
_MOST_DEVKIT = 64 * 2**20
_PLACE = struct.Struct("=bqq")


def read(request: Request) -> Dataset:
    """Folders if there are any, else the archives."""
    try:
        return folder.read(request, FOLDERS)
    except DataMissing as missing:
        root = next(
            (
                root
                for root in (*(request.data_dir / name for name in FOLDERS), request.data_dir)
                if (root / TRAIN).exists()
            ),
            None,
        )
        if root is None:
            raise DataMissing(f"{missing} or {TRAIN}") from missing
    sized = replace(request, size=request.size or request.info.input_shape[1])
    return dataset_of(list_archives(root, request.test), sized, str(root), statistics=False)


def list_archives(root: Path, test: bool = True) -> Listing:
    """Every picture of the training and of the validation archive."""
    builder, paths = Builder(), (root / TRAIN, root / VAL)
    for wnid, start, size in _train(paths[0]):
        builder.add(_PLACE.pack(0, start, size), wnid, str(paths[0]), part="train")
    for wnid, start, size in _validation(root) if test else ():
        builder.add(_PLACE.pack(1, start, size), wnid, str(paths[1]), part="test")
    reader, spool = _Reader(paths), builder.spool

    def read_one(index: int) -> bytes:
        return reader.read(*_PLACE.unpack(spool[index]))

    def where(index: int) -> str:
        which, start, _ = _PLACE.unpack(spool[index])
        return f"{paths[which]} at byte {start:,}"

    return builder.listing(read_one, where, str(root))


class _Reader:
    """Reads at any place of two archives, from any thread."""

    def __init__(self, paths: tuple[Path, Path]) -> None:
        self._paths = paths
        self._descriptors: dict[int, int] = {}
        self._lock = threading.Lock()

    def read(self, which: int, start: int, size: int) -> bytes:
        with self._lock:
            if which not in self._descriptors:
                self._descriptors[which] = os.open(self._paths[which], os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(self._descriptors[which], size, start)
        except OSError as problem:
            raise DataError(f"{self._paths[which]} cannot be read ({problem.strerror}): check it") from problem
        if len(content) != size:
            raise DataError(f"{self._paths[which]}: cut at byte {start + len(content):,}: fetch it again")
        return content

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)


def _train(path: Path) -> Iterator[tuple[str, int, int]]:
    with _opened(path) as file:
        for name, start, size in sorted(members(file, str(path), size_of(file))):
            wnid = Path(name).name.removesuffix(".tar")
            inner = Window(file, start, size)
            for _, at, length in sorted(members(inner, f"{path}: {name}", size)):  # type: ignore[arg-type]
                yield wnid, start + at, length


def _validation(root: Path) -> list[tuple[str, int, int]]:
    truth = _ground_truth(root)
    path = root / VAL
    with _opened(path) as file:
        found = sorted(members(file, str(path), size_of(file)))
    if len(found) != len(truth):
        raise DataError(f"{path} holds {len(found):,} pictures, the devkit knows {len(truth):,}: fetch both again")
    labelled = [(wnid, name, start, size) for wnid, (name, start, size) in zip(truth, found, strict=True)]
    return [(wnid, start, size) for wnid, _, start, size in sorted(labelled)]


def _ground_truth(root: Path) -> list[str]:
    """The WNID of every validation picture, in the order of their names."""
    meta, truth = _devkit(root)
    where = root / DEVKIT
    try:
        wnids = {int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in read_structs(meta, "synsets")}
        return [wnids[int(line)] for line in truth.decode("ascii").split()]
    except (MatError, KeyError, ValueError, TypeError, IndexError) as problem:
        raise DataError(f"{where}: its list of classes cannot be read ({problem}): fetch it again") from problem


def _devkit(root: Path) -> tuple[bytes, bytes]:
    unpacked = root / "ILSVRC2012_devkit_t12"
    try:
        if unpacked.is_dir():
            found = {}
            for name in (_META, _TRUTH):
                with open_regular(unpacked / name) as file:
                    found[name] = bytes(read_at_most(file, _MOST_DEVKIT))
        else:
            found = _read_devkit(root / DEVKIT)
    except FileNotFoundError as problem:
        raise DataMissing(f"{DEVKIT}, which says what class each validation picture has") from problem
    except OSError as problem:
        raise DataError(f"{root / DEVKIT} cannot be read ({problem.strerror or problem}): fetch it again") from problem
    if missing := {_META, _TRUTH} - found.keys():
        raise DataError(f"{root / DEVKIT}: holds no {min(missing)}: fetch it again")
    return found[_META], found[_TRUTH]


def _read_devkit(path: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r|gz") as tar:
            for member in tar:
                wanted = next((name for name in (_META, _TRUTH) if member.name.endswith(name)), None)
                inner = tar.extractfile(member) if wanted and member.isreg() and not member.issparse() else None
                if wanted and inner is not None:
                    found[wanted] = bytes(read_at_most(inner, _MOST_DEVKIT))
    except (DataError, FileNotFoundError):
        raise
    except Exception as problem:  # tarfile and gzip fail on damaged files in many ways
        raise DataError(f"{path}: cut or damaged ({problem}): fetch it again") from problem
    return found


def _opened(path: Path):  # type: ignore[no-untyped-def]
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise DataMissing(path.name) from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}): check it") from problem
