"""CIFAR-10 and CIFAR-100: binary and python version, from an extracted folder or from the archive itself."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from budgeted.streams.dataset import (
    DataError,
    DataMissing,
    Dataset,
    Part,
    Request,
    assemble,
    wrong_bytes,
)
from budgeted.streams.files import Capped, open_regular, read_regular
from budgeted.streams.inert_pickle import FEW_STEPS, read_inert
from budgeted.streams.one_line import fits_a_line
from budgeted.streams.orders import Indices

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
#: The listing whose shuffle gives the published class orders (as label numbers).
CIFAR10_LISTING = tuple(
    CIFAR10_CLASSES.index(name)
    for name in ("deer", "horse", "airplane", "truck", "bird", "ship", "frog", "dog", "automobile", "cat")
)
PIXELS = 3 * 32 * 32
#: Upper limits of what a batch in pickled form has beside a sample's pixels (officially 32 bytes and 4 steps), and
#: of the bytes of a file of class names.
_PICKLED_BYTES = 256
_PICKLED_STEPS = 16
_NAMES_BYTES = 1 << 20
_AGAIN = "the file is cut or not the official one, fetch it again"


@dataclass(frozen=True)
class Version:
    """One of the four official distributions."""

    form: Literal["binary", "python"]
    folder: str
    archive: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    #: Samples in one training file and in one test file.
    train_records: int
    test_records: int
    #: Where a sample's label is: byte of a binary record, key of a python batch.
    label_bytes: int
    label_key: bytes
    #: File and (for python) key of the class names; none for CIFAR-10, whose names are above.
    names_file: str | None = None

    @property
    def classes(self) -> int:
        return 10 if self.names_file is None else 100

    def most_bytes(self, file: str) -> int:
        """The length of a binary file; an upper limit for a pickle or a list of names."""
        if file == self.names_file:
            return _NAMES_BYTES
        records = self.train_records if file in self.train_files else self.test_records
        if self.form == "binary":
            return records * (self.label_bytes + PIXELS)
        return records * (PIXELS + _PICKLED_BYTES) + _NAMES_BYTES

    @property
    def most_unpacked(self) -> int:
        """An upper limit for the whole archive: its files, a page about them, and what tar adds."""
        return sum(self.most_bytes(file) for file in (*self.train_files, *self.test_files)) + 16 * _NAMES_BYTES


_TEN_TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10_BINARY = Version(
    "binary",
    "cifar-10-batches-bin",
    "cifar-10-binary.tar.gz",
    tuple(f"{name}.bin" for name in _TEN_TRAIN),
    ("test_batch.bin",),
    10_000,
    10_000,
    1,
    b"",
)
CIFAR10_PYTHON = Version(
    "python",
    "cifar-10-batches-py",
    "cifar-10-python.tar.gz",
    _TEN_TRAIN,
    ("test_batch",),
    10_000,
    10_000,
    0,
    b"labels",
)
CIFAR100_BINARY = Version(
    "binary",
    "cifar-100-binary",
    "cifar-100-binary.tar.gz",
    ("train.bin",),
    ("test.bin",),
    50_000,
    10_000,
    2,
    b"",
    "fine_label_names.txt",
)
CIFAR100_PYTHON = Version(
    "python",
    "cifar-100-python",
    "cifar-100-python.tar.gz",
    ("train",),
    ("test",),
    50_000,
    10_000,
    0,
    b"fine_labels",
    "meta",
)


def read(request: Request, versions: tuple[Version, ...]) -> Dataset:
    """The data set in whichever of `versions` is found first; extracted folders before archives."""
    version, place = _locate(request.data_dir, versions)
    wanted = [
        *(version.train_files if request.train else ()),
        *(version.test_files if request.test else ()),
        *((version.names_file,) if version.names_file else ()),
    ]
    contents = _read_folder(place, version, wanted) if place.is_dir() else _read_archive(place, version, wanted)
    train = _part(contents, place, version, version.train_files, version.train_records) if request.train else None
    test = _part(contents, place, version, version.test_files, version.test_records) if request.test else None
    return assemble(request.info, _class_names(contents, place, version), train, test)


def _locate(data_dir: Path, versions: Iterable[Version]) -> tuple[Version, Path]:
    """The version at hand and its folder or archive; `data_dir` may be their parent or either itself."""
    for version in versions:
        for folder in (data_dir / version.folder, data_dir):
            if any((folder / name).exists() for name in (*version.train_files, *version.test_files)):
                return version, folder
    for version in versions:
        archive = data_dir / version.archive
        if archive.exists():
            return version, archive
        if data_dir.exists() and data_dir.name == version.archive:
            return version, data_dir
    raise DataMissing(", ".join(f"{version.folder}/ or {version.archive}" for version in versions))


def _read_folder(folder: Path, version: Version, wanted: Iterable[str]) -> dict[str, bytes]:
    contents = {}
    for name in wanted:
        try:
            contents[name] = read_regular(folder / name, version.most_bytes(name))
        except FileNotFoundError:
            raise DataError(f"{folder / name} is missing: extract the archive again") from None
        except OSError as problem:
            raise DataError(f"{folder / name} cannot be read ({problem.strerror}): check it") from problem
    return contents


def _read_archive(archive: Path, version: Version, wanted: list[str]) -> dict[str, bytes]:
    """One pass over the archive in memory; nothing is written, so no member can land anywhere.

    The archive is read to its end, where gzip keeps the checksum of all that came before.
    """
    contents: dict[str, bytes] = {}
    try:
        with open_regular(archive) as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            unpacked = gzip.GzipFile(fileobj=file) if packed else file
            capped = Capped(unpacked, version.most_unpacked, str(archive))
            with tarfile.open(fileobj=cast("IO[bytes]", capped), mode="r|") as tar:
                for member in tar:
                    name = member.name.rsplit("/", 1)[-1]
                    if name in wanted:
                        if name in contents:
                            raise DataError(f"{archive}: holds {name} twice: not the official one, fetch it again")
                        contents[name] = _read_member(tar, member, archive, version.most_bytes(name))
            while capped.read(1 << 20):
                pass
    except DataError:
        raise
    except Exception as problem:  # tarfile fails on damaged files in many ways
        raise DataError(
            f"{archive}: cut or damaged after {archive.stat().st_size:,} bytes ({problem}): fetch it again"
        ) from problem
    if missing := [name for name in wanted if name not in contents]:
        raise DataError(f"{archive}: holds no {missing[0]}: the archive is cut or not the official one, fetch it again")
    return contents


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, most: int) -> bytes:
    # A sparse member gives more bytes than it has.
    stream = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if stream is None:
        raise DataError(f"{archive}: {member.name} is no plain file: not the official archive, fetch it again")
    if not 0 <= member.size <= most:
        raise wrong_bytes(f"{archive}: {member.name}", f"at most {most:,}", member.size, _AGAIN)
    content = stream.read()
    if len(content) != member.size:
        raise wrong_bytes(f"{archive}: {member.name}", f"{member.size:,}", len(content), _AGAIN)
    return content


def _part(contents: dict[str, bytes], place: Path, version: Version, files: tuple[str, ...], records: int) -> Part:
    images = np.empty((records * len(files), 3, 32, 32), np.uint8)
    labels = np.empty(records * len(files), np.int64)
    decode = decode_binary if version.form == "binary" else decode_python
    for i, name in enumerate(files):
        rows = slice(i * records, (i + 1) * records)
        images[rows], labels[rows] = decode(contents[name], f"{place}/{name}", version, records)
    return Part(images, labels)


def decode_binary(raw: bytes, where: str, version: Version, records: int) -> tuple[NDArray[np.uint8], Indices]:
    """Records of label bytes (CIFAR-100: coarse, then fine) followed by the pixels, channel by channel."""
    length = version.label_bytes + PIXELS
    if len(raw) != records * length:
        raise wrong_bytes(where, f"{records * length:,} ({records:,} records of {length:,})", len(raw), _AGAIN)
    table = np.frombuffer(raw, np.uint8).reshape(records, length)
    images = table[:, version.label_bytes :].reshape(records, 3, 32, 32)
    labels = table[:, version.label_bytes - 1].astype(np.int64)
    if len(strays := np.flatnonzero(labels >= version.classes)):
        raise _stray(where, int(strays[0]), int(labels[strays[0]]), version)
    return images, labels


def decode_python(raw: bytes, where: str, version: Version, records: int) -> tuple[NDArray[np.uint8], Indices]:
    """A pickled dict with `data` [records, 3072] and a list of labels, read without running the pickle."""
    batch = read_inert(raw, where, FEW_STEPS + _PICKLED_STEPS * records)
    data, labels = batch.get(b"data"), batch.get(version.label_key)
    if not isinstance(data, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"{where}: no b'data' array or no {version.label_key!r} list in it: {_AGAIN}")
    if data.size != records * PIXELS:
        raise wrong_bytes(where, f"{records * PIXELS:,} pixel", data.size, _AGAIN)
    if len(labels) != records or not all(type(label) is int for label in labels):
        raise DataError(f"{where}: {len(labels):,} labels for {records:,} images, or not numbers: {_AGAIN}")
    for row, label in enumerate(labels):
        if not 0 <= label < version.classes:  # in Python, where numbers have no largest one
            raise _stray(where, row, label, version)
    return data.reshape(records, 3, 32, 32), np.array(labels, dtype=np.int64)


def _stray(where: str, row: int, label: int, version: Version) -> DataError:
    return DataError(f"{where}: row {row:,}: label {label} is outside 0…{version.classes - 1}: {_AGAIN}")


def _class_names(contents: dict[str, bytes], place: Path, version: Version) -> tuple[str, ...]:
    if version.names_file is None:
        return CIFAR10_CLASSES
    where, raw = f"{place}/{version.names_file}", contents[version.names_file]
    if version.form == "binary":
        names = raw.decode("latin-1").split()
    else:
        listed = read_inert(raw, where).get(b"fine_label_names")
        names = (
            [name.decode("latin-1") for name in listed if isinstance(name, bytes)] if isinstance(listed, list) else []
        )
    if len(names) != 100:
        raise DataError(f"{where}: {len(names)} class names instead of 100: {_AGAIN}")
    if len(set(names)) != 100 or not all(map(fits_a_line, names)):
        raise DataError(f"{where}: a class name that is there twice or cannot be printed: {_AGAIN}")
    return tuple(names)
