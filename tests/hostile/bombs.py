"""Files made by hand to take all memory, all time, or a reader by surprise; each must be refused or do no harm.

The large ones declare or unpack to gigabytes: a reader that believes them meets the limit of memory or the alarm.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from budgeted import streams
from budgeted.streams.dataset import Dataset
from tests.hostile import valid
from tests.hostile.containers import imagenet
from tests.hostile.valid import RECORDS, TARGETS, python_two

GIB = 2**30


@dataclass(frozen=True)
class Bomb:
    """How it is written, how it is read, and words of the refusal; or the reader whose valid content it has."""

    write: Callable[[Path], None]
    load: Callable[[Path], Dataset]
    words: str
    same_as: str = ""


def zeros(start: bytes, count: int) -> bytes:
    """`start` and so many zeros, deflated to a thousandth: a block of zeros that is repeated as it is."""
    packer = zlib.compressobj(9, wbits=-15)
    begin = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return begin + block * (count >> 20) + packer.flush()


def gz(start: bytes, count: int) -> bytes:
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + zeros(start, count) + bytes(8)


def of(reader: str, **changes: bytes) -> tuple[Callable[[Path], None], Callable[[Path], Dataset]]:
    """The valid files of a reader with the content of some, named by their ends, exchanged."""

    def write(place: Path) -> None:
        for name, content in TARGETS[reader].files().items():
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            ends = [new for end, new in changes.items() if name.removesuffix(".gz").endswith(end.replace("__", "."))]
            path.write_bytes(ends[0] if ends else content)

    return write, TARGETS[reader].load


def then(reader: str, act: Callable[[Path], object], words: str) -> Bomb:
    """The valid files of a reader, and something done in their folder."""
    write, load = of(reader)

    def both(place: Path) -> None:
        write(place)
        act(place)

    return Bomb(both, load, words)


def tar_member(name: str, size: int, count: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A tar.gz of one member that claims `size` bytes and `count` zeros behind it."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return gz(member.tobuf(tarfile.GNU_FORMAT), count)


def npy(header: str, version: int = 1, length: int | None = None, body: bytes = b"") -> bytes:
    text = header.encode("latin-1") + b"\n"
    form = "<H" if version == 1 else "<I"
    said = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(form, said) + text + body


def npz(member: bytes, method: int = zipfile.ZIP_STORED, twice: bool = False) -> bytes:
    """The valid arrays, with another x_train."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(valid.arrays(False)["mine.npz"])) as old,
        zipfile.ZipFile(out, "w") as new,
    ):
        for name in old.namelist():
            new.writestr(name, member if name == "x_train.npy" else old.read(name), method)
        if twice:
            new.writestr("x_train", member)
    return out.getvalue()


def zip_of_zeros(start: bytes, count: int) -> bytes:
    """A zip whose x_train unpacks to so many zeros; its directory says so."""
    packed = zeros(start, count)
    name, size = b"x_train.npy", len(start) + count
    head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0, 0, len(packed), size, len(name), 0)
    local = b"PK\x03\x04" + head + name + packed
    entries = b"PK\x01\x02" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    count_of = 1
    for other in (b"y_train.npy", b"x_test.npy", b"y_test.npy"):
        small = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0, 0, 0, 0, len(other), 0)
        entries += b"PK\x01\x02" + struct.pack("<H", 20) + small + struct.pack("<HHHII", 0, 0, 0, 0, len(local)) + other
        local += b"PK\x03\x04" + small + other
        count_of += 1
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count_of, count_of, len(entries), len(local), 0)
    return local + entries + end


def encrypted() -> bytes:
    raw = bytearray(valid.arrays(False)["mine.npz"])
    at = raw.find(b"PK\x01\x02")
    raw[at + 8] |= 1
    raw[6] |= 1
    return bytes(raw)


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def long_chunk() -> bytes:
    raw = valid.picture(0, "png")
    at = raw.index(b"IDAT")
    return raw[: at - 4] + b"\xff" * 4 + raw[at:]


def mat(element: bytes, packed: bytes | None = None) -> bytes:
    body = zlib.compress(element) if packed is None else packed
    return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(body)) + body


def mat_variable(name: bytes, sides: tuple[int, ...], values: int, said: int | None = None, kind: int = 9) -> bytes:
    """The beginning of a variable up to its values."""
    inner = struct.pack("<IIII", 6, 8, kind, 0)
    inner += struct.pack(f"<II{len(sides)}i", 5, 4 * len(sides), *sides) + bytes(4 * (len(sides) % 2))
    inner += struct.pack("<II", 1, len(name) if said is None else said) + name + bytes(-len(name) % 8)
    inner += struct.pack("<II", 2, values)
    return struct.pack("<II", 14, (len(inner) + values) % 2**32) + inner


def label(value: int) -> bytes:
    batch = {b"data": np.zeros((RECORDS, 3072), np.uint8), b"labels": [0] * (RECORDS - 1) + [value]}
    return python_two(batch)


def shared_tuples(depth: int) -> bytes:
    """A tuple of two of the same tuple, and so on: 2**depth tuples for whoever walks through it."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * depth + b"q\x00}h\x00Ns."


def fifo(name: str) -> Callable[[Path], None]:
    def exchange(place: Path) -> None:
        (place / name).unlink(missing_ok=True)
        os.mkfifo(place / name)

    return exchange


def odd_folder_name(place: Path) -> None:
    os.rename(os.fsencode(place) + b"/train/a", os.fsencode(place) + b"/train/caf\xe9")


PY, BIN, TAR = "cifar10-python", "cifar10-binary-tar", "cifar-10-binary__tar"
PAX = tarfile.TarInfo.create_pax_global_header({"a": "b"})
IDX_START = bytes([0, 0, 8, 3]) + struct.pack(">III", 60_000, 28, 28)
STATE = python_two({b"data": np.zeros((2, 3), np.uint8)})
MANY_SIDES = STATE.replace(b"K\x02K\x03\x86", b"(" + b"J\xff\xff\xff\x7f" * 9000 + b"t")
FIRST = "cifar-10-batches-py/data_batch_1"
HEADER = "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }"


def writes(name: str, content: bytes) -> Callable[[Path], None]:
    def write(place: Path) -> None:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)

    return write


def forged_tar(sizes: dict[str, int]) -> bytes:
    """Members that announce so many bytes and have a block each."""
    blocks = []
    for name, size in sizes.items():
        member = tarfile.TarInfo(name)
        member.size = size
        blocks.append(member.tobuf(tarfile.USTAR_FORMAT) + bytes(512))
    return b"".join(blocks)


def packed_mat(count: int) -> bytes:
    """A .mat file of one compressed variable that unpacks to so many zeros."""
    packed = b"\x78\x9c" + zeros(b"", count)
    return b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed


def imagenet_with(meta: bytes) -> Callable[[Path], None]:
    """ImageNet's archives with another list of synsets."""
    devkit = "ILSVRC2012_devkit_t12/data"
    truth = {f"{devkit}/ILSVRC2012_validation_ground_truth.txt": b"1\n2\n1\n", f"{devkit}/meta.mat": meta}

    def write(place: Path) -> None:
        for name, content in {**imagenet(), **truth}.items():
            writes(name, content)(place)

    return write


BOMBS: dict[str, Bomb] = {
    "gz of 10 GiB": Bomb(*of("idx-gz", **{"train-images-idx3-ubyte": gz(IDX_START, 10 * GIB)}), "or more"),
    "gz that declares 2**96": Bomb(
        *of("idx-gz", **{"train-images-idx3-ubyte": gz(bytes([0, 0, 8, 3]) + b"\xff" * 12, 0)}), "at most 47,040,000"
    ),
    "idx that declares 2**32": Bomb(
        *of("idx", **{"train-labels-idx1-ubyte": bytes([0, 0, 8, 1]) + b"\xff" * 4}), "found 8"
    ),
    "gz with a name without end": Bomb(
        *of("idx-gz", **{"train-labels-idx1-ubyte": b"\x1f\x8b\x08\x08" + b"a" * 100_000}), "cut or damaged"
    ),
    "tar.gz with a page of 10 GiB": Bomb(
        *of(BIN, **{TAR: tar_member("readme", 10 * GIB, 10 * GIB)}), "unpacks to more than"
    ),
    "tar.gz with a batch of 10 GiB": Bomb(
        *of(BIN, **{TAR: tar_member("data_batch_1.bin", 10 * GIB, 10 * GIB)}), "expected at most"
    ),
    "tar.gz with a negative size": Bomb(*of(BIN, **{TAR: tar_member("data_batch_1.bin", -1, 2**20)}), "fetch it again"),
    "tar.gz with a long name of 10 GiB": Bomb(
        *of(BIN, **{TAR: tar_member("@LongLink", 10 * GIB, 10 * GIB, tarfile.GNUTYPE_LONGNAME)}),
        "unpacks to more than",
    ),
    "tar.gz of nested headers": Bomb(
        *of(
            BIN,
            **{TAR: gzip.compress(PAX * 5000)},
        ),
        "fetch it again",
    ),
    "npz that declares 10**12 values": Bomb(
        *of("npz", mine__npz=npz(npy(HEADER % "(10, 10000000000, 10, 1)"))), "declares 1,000,000,000,000 bytes"
    ),
    "npz with values of no size": Bomb(
        *of("npz", mine__npz=npz(npy(HEADER.replace("|u1", "<U0") % "(1000000000000,)"))), "no plain array"
    ),
    "npz with a header of 4 GiB": Bomb(
        *of("npz", mine__npz=npz(npy(HEADER % "(1,)", 2, 2**32 - 1))), "a header of 4,294,967,295 bytes"
    ),
    "npz of 3 GiB": Bomb(*of("npz", mine__npz=zip_of_zeros(npy(HEADER % "(3221225472,)"), 3 * GIB)), "unpacks to"),
    "npz that is encrypted": Bomb(*of("npz", mine__npz=encrypted()), "encrypted"),
    "npz with an empty member": Bomb(*of("npz", mine__npz=npz(b"")), "no array"),
    "npz with a member twice": Bomb(*of("npz", mine__npz=npz(npy(HEADER % "(0,)"), twice=True)), "twice"),
    "npz packed with lzma": Bomb(*of("npz", mine__npz=npz(npy(HEADER % "(0,)"), zipfile.ZIP_LZMA)), "numpy does not"),
    "npz of empty images": Bomb(*of("npz", mine__npz=npz(npy(HEADER % "(3, 3, 0, 8)"))), "at least one pixel"),
    "npz that is a FIFO": then("npz", fifo("mine.npz"), "is a FIFO"),
    "png of 10**10 pixels": Bomb(*of("folder-png", **{"train/a/1__png": png(100_000, 100_000)}), "pixels"),
    "png of 90 million pixels": Bomb(*of("folder-png", **{"train/a/1__png": png(9_500, 9_500)}), "9500 x 9500 pixels"),
    "png of 20 million pixels in few bytes": Bomb(
        *of("folder-png", **{"train/a/1__png": png(4_500, 4_500)}), "4500 x 4500 pixels in"
    ),
    "png with a chunk of 4 GiB": Bomb(*of("folder-png", **{"train/a/1__png": long_chunk()}), "", "folder-png"),
    "eps by the name of png": Bomb(
        *of("folder-png", **{"train/a/1__png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n"}),
        "not a whole image",
    ),
    "folder with an image that is a FIFO": then("folder-png", fifo("train/a/2.png"), "no regular file"),
    "folder by the name of an image": then(
        "folder-png", lambda place: (place / "train/a/2.png").mkdir(), "no regular file"
    ),
    "folder with a loop": then(
        "folder-png", lambda place: (place / "train/a/2.png").symlink_to("2.png"), "no regular file"
    ),
    "folder whose name is not UTF-8": then("folder-png", odd_folder_name, "not UTF-8"),
    "annotations that are not UTF-8": Bomb(*of("folder-tiny", **{"annotations__txt": b"v0\tn\xff\n"}), "not UTF-8"),
    "annotations that are a FIFO": then("folder-tiny", fifo("tiny-imagenet-200/val/val_annotations.txt"), "is a FIFO"),
    "annotations with a NUL": Bomb(*of("folder-tiny", **{"annotations__txt": b"v\0.JPEG\tn01\n"}), "not a whole image"),
    "mat of 9 GB": Bomb(
        *of("mat-packed", **{"train_32x32__mat": mat(mat_variable(b"X", (32, 32, 3, 10**6), 3_072_000_000))}),
        "an element of kind 2",
    ),
    "mat with a name of 4 GiB": Bomb(
        *of("mat-packed", **{"train_32x32__mat": mat(mat_variable(b"X", (1, 1), 1, said=2**32 - 8))}), "readable"
    ),
    "mat with a cell": Bomb(
        *of("mat-packed", **{"train_32x32__mat": mat(mat_variable(b"X", (1, 1), 1, kind=1))}), "no plain numbers"
    ),
    "mat that is a folder": then(
        "mat",
        lambda place: ((place / "svhn/test_32x32.mat").unlink(), (place / "svhn/test_32x32.mat").mkdir()),  # type: ignore[func-returns-value]
        "is a folder",
    ),
    "label of 10**30": Bomb(*of(PY, data_batch_1=label(10**30)), "data_batch_1: row 2: label 1000000000"),
    "label of -1": Bomb(*of(PY, data_batch_1=label(-1)), "row 2: label -1 is outside"),
    "pickle of tuples in tuples": Bomb(*of(PY, data_batch_1=shared_tuples(200)), "refused"),
    "pickle whose key is tuples in tuples": Bomb(
        *of(PY, data_batch_1=b"\x80\x02})" + b"q\x00h\x00\x86" * 200 + b"Ns."), "a key that is a tuple"
    ),
    "pickle of lists in lists": Bomb(*of(PY, data_batch_1=b"\x80\x02" + b"]" * 4000 + b"a" * 3999 + b"."), "a list"),
    "pickle of too many steps": Bomb(*of(PY, data_batch_1=b"\x80\x02" + b"}" * 500_000 + b"."), "more than the"),
    "pickle of 9 bytes with a far memo": Bomb(*of(PY, data_batch_1=b"\x80\x02Nr\xff\xff\xff\x7f."), "a NoneType"),
    "pickle with a negative length": Bomb(*of(PY, data_batch_1=b"\x80\x02T\xff\xff\xff\xff."), "-1 bytes announced"),
    "pickle with a length of 2**63": Bomb(
        *of(PY, data_batch_1=b"\x80\x04\x8e" + struct.pack("<Q", 2**63) + b"."), "9,223,372,036,854,775,808 bytes"
    ),
    "pickle with a number of 10 MB": Bomb(
        *of(PY, data_batch_1=b"\x80\x02\x8b" + struct.pack("<i", 10**5) + b"\xff" * 10**5 + b"."), "step"
    ),
    "pickle with a number of 5,000 digits": Bomb(*of(PY, data_batch_1=b"L" + b"9" * 5000 + b"L\n."), "5,001 digits"),
    "pickle with a shape of many sides": Bomb(
        *of(PY, data_batch_1=MANY_SIDES),
        "an array of shape",
    ),
    "pickle that builds on a name": Bomb(
        *of(PY, data_batch_1=b"cnumpy.core.multiarray\n_reconstruct\n}b."), "unknown form"
    ),
    "pickle with a name of two lines": Bomb(
        *of(PY, data_batch_1=pickle.PROTO + b"\x04\x8c\x03a\nb\x8c\x01c\x93."), "it names a b.c"
    ),
    "pickle with half a letter": Bomb(*of(PY, data_batch_1=b"\x80\x02X\x03\0\0\0\xed\xa0\x80."), "refused"),
    "batch that is a FIFO": then(PY, fifo(FIRST), "is a FIFO"),
    "batch of a terabyte of nothing": then(PY, lambda place: os.truncate(place / FIRST, 2**40), "1,099,511,627,776"),
    "archive that is a FIFO": then(BIN, fifo("cifar-10-binary.tar.gz"), "is a FIFO"),
    "folder that is a FIFO": Bomb(fifo("mine"), lambda place: streams.load(str(place / "mine")), "is a FIFO"),
    "manifest of one endless line": Bomb(
        writes("rows.csv", b"path,label\n" + b"x" * 2**20),
        lambda place: streams.load(f"manifest:{place / 'rows.csv'}", size=8),
        "more than 65,536 bytes",
    ),
    "manifest that is a FIFO": Bomb(
        fifo("rows.csv"), lambda place: streams.load(f"manifest:{place / 'rows.csv'}", size=8), "is a FIFO"
    ),
    "manifest whose pictures are devices": Bomb(
        writes("rows.csv", b"path,label\n/dev/zero,a\n/dev/random,a\n"),
        lambda place: streams.load(f"manifest:{place / 'rows.csv'}", size=8),
        "is a device",
    ),
    "pattern of a billion shards": Bomb(
        writes("x", b""), lambda place: streams.load("wds:x-{0..9}{0..99999}{0..99999}.tar"), "more than 100,000 shards"
    ),
    "shard that is packed": Bomb(
        writes("x.tar", gz(b"", 2**20)), lambda place: streams.load(f"wds:{place / 'x.tar'}"), "packed with gzip"
    ),
    "shard with a label of a gigabyte": Bomb(
        writes("x.tar", forged_tar({"a.jpg": 1, "a.cls": GIB})),
        lambda place: streams.load(f"wds:{place / 'x.tar'}"),
        "cut",
    ),
    "synsets that unpack to 3 GiB": Bomb(
        imagenet_with(packed_mat(3 * GIB)),
        lambda place: streams.load("imagenet", place, size=8),
        "more than 33,554,432 bytes",
    ),
}
