"""A small valid data set for every reader, as the files that it is, and the call that reads it."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.io
from numpy.typing import NDArray
from PIL import Image

from budgeted import streams
from budgeted.streams import cifar
from budgeted.streams.dataset import Dataset, Request
from budgeted.streams.registry import info

RECORDS = 3
Files = dict[str, bytes]


@dataclass(frozen=True)
class Target:
    """One reader with its files."""

    files: Callable[[], Files]
    load: Callable[[Path], Dataset]
    #: Whether a checksum covers all that is read, so that damage is never read as data.
    checksum: bool = False


def noise(seed: int, *shape: int) -> NDArray[np.uint8]:
    """Grey noise in steps of 16, which packs a little."""
    return np.random.default_rng(seed).integers(0, 16, shape, dtype=np.uint8) * 16


def idx(array: NDArray[np.uint8]) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist() -> Files:
    images, labels = idx(noise(0, RECORDS, 28, 28)), idx(np.arange(RECORDS, dtype=np.uint8))
    return {
        f"mnist/{part}-{what}-ubyte": images if what == "images-idx3" else labels
        for part in ("train", "t10k")
        for what in ("images-idx3", "labels-idx1")
    }


def packed_mnist() -> Files:
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in mnist().items()}


VERSIONS = {
    name: replace(version, train_records=RECORDS, test_records=RECORDS)
    for name, version in (
        ("cifar10-binary", cifar.CIFAR10_BINARY),
        ("cifar10-python", cifar.CIFAR10_PYTHON),
        ("cifar100-binary", cifar.CIFAR100_BINARY),
        ("cifar100-python", cifar.CIFAR100_PYTHON),
    )
}
PurePythonPickler: Any = pickle._Pickler  # type: ignore[attr-defined, unused-ignore]


class PythonTwoPickler(PurePythonPickler):  # type: ignore[misc]
    """Writes what Python 2 wrote: protocol 2, byte strings as such."""

    dispatch: ClassVar[dict[type, Any]] = dict(PurePythonPickler.dispatch)

    def save_bytes(self, content: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(content)

    dispatch[bytes] = save_bytes


def python_two(content: Any) -> bytes:
    out = io.BytesIO()
    PythonTwoPickler(out, 2).dump(content)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def batch(version: cifar.Version, seed: int) -> bytes:
    rows, labels = noise(seed, RECORDS, 3072), [(seed + i) % 10 for i in range(RECORDS)]
    if version.form == "binary":
        heads = [np.array(labels, np.uint8)[:, None]] * version.label_bytes
        return np.concatenate([*heads, rows], axis=1).tobytes()
    names = [b"a.png"] * RECORDS
    return python_two({b"batch_label": b"one", version.label_key: labels, b"data": rows, b"filenames": names})


def cifar_files(version: cifar.Version) -> Files:
    files = {name: batch(version, i) for i, name in enumerate((*version.train_files, *version.test_files))}
    names = [f"class{i:02}" for i in range(100)]
    if version.names_file == "meta":
        files["meta"] = python_two({b"fine_label_names": [name.encode() for name in names]})
    elif version.names_file:
        files[version.names_file] = "\n".join(names).encode()
    return {f"{version.folder}/{name}": content for name, content in files.items()}


def tar(members: Files) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def cifar_archive(version: cifar.Version) -> Files:
    return {version.archive: gzip.compress(tar(cifar_files(version)), mtime=0)}


def svhn(packed: bool) -> Files:
    files: Files = {}
    for name in ("train", "test"):
        out = io.BytesIO()
        content = {"X": noise(1, 32, 32, 3, RECORDS), "y": np.array([[10], [1], [2]], np.uint8)}
        scipy.io.savemat(out, content, do_compression=packed)
        # The date of writing is in the header: taken out, for files that are always the same.
        files[f"svhn/{name}_32x32.mat"] = out.getvalue()[:20] + b" " * 96 + out.getvalue()[116:]
    return files


def arrays(packed: bool) -> Files:
    images, labels = noise(2, RECORDS, 3, 8, 8), np.arange(RECORDS)
    out = io.BytesIO()
    save = np.savez_compressed if packed else np.savez
    save(out, x_train=images, y_train=labels, x_test=images[:2], y_test=np.array([1, 0]))
    return {"mine.npz": out.getvalue()}


def named_arrays() -> Files:
    out = io.BytesIO()
    images, labels = noise(2, RECORDS, 8, 8), np.array(["ant", "bee", "fly"])
    np.savez(out, x_train=images, y_train=labels, x_test=images, y_test=labels)
    return {"mine.npz": out.getvalue()}


FORMATS = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "bmp": "BMP", "tif": "TIFF", "webp": "WEBP", "ppm": "PPM"}


def picture(seed: int, suffix: str, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.fromarray(noise(seed, side, side, 3)).save(out, FORMATS[suffix])
    return out.getvalue()


def folder(suffix: str) -> Files:
    names = ("train/a", "train/b", "test/a", "test/b")
    return {f"{name}/1.{suffix}": picture(i, suffix) for i, name in enumerate(names)}


def tiny() -> Files:
    root = "tiny-imagenet-200"
    files = {f"{root}/train/n0{i}/images/{i}.JPEG": picture(i, "png", 64) for i in range(2)}
    files[f"{root}/val/images/v0.JPEG"] = picture(3, "png", 64)
    files[f"{root}/val/images/v1.JPEG"] = picture(4, "png", 64)
    files[f"{root}/val/val_annotations.txt"] = b"v0.JPEG\tn01\t0\t0\t63\t63\nv1.JPEG\tn00\t0\t0\t63\t63\n"
    return files


def _cifar(version_name: str, archive: bool) -> Target:
    version = VERSIONS[version_name]
    files = cache(lambda: (cifar_archive if archive else cifar_files)(version))
    request_info = info(version_name.split("-")[0])
    return Target(files, lambda place: cifar.read(Request(request_info, place), (version,)), archive)


def _own(files: Callable[[], Files], checksum: bool = False) -> Target:
    return Target(cache(files), lambda place: streams.load(str(place / "mine.npz")), checksum)


def _folder(suffix: str) -> Target:
    return Target(cache(lambda: folder(suffix)), lambda place: streams.load(str(place)))


TARGETS: dict[str, Target] = {
    "idx": Target(cache(mnist), lambda place: streams.load("mnist", place)),
    "idx-gz": Target(cache(packed_mnist), lambda place: streams.load("mnist", place), checksum=True),
    **{name: _cifar(name, archive=False) for name in VERSIONS},
    **{f"{name}-tar": _cifar(name, archive=True) for name in VERSIONS},
    "mat": Target(cache(lambda: svhn(False)), lambda place: streams.load("svhn", place)),
    "mat-packed": Target(cache(lambda: svhn(True)), lambda place: streams.load("svhn", place), checksum=True),
    "npz": _own(lambda: arrays(False), checksum=True),
    "npz-packed": _own(lambda: arrays(True), checksum=True),
    "npz-names": _own(named_arrays, checksum=True),
    **{f"folder-{suffix}": _folder(suffix) for suffix in FORMATS},
    "folder-tiny": Target(cache(tiny), lambda place: streams.load("tinyimagenet", place)),
}
