"""What is done to a valid file: damage of its bytes, damage under a right checksum, something else in its place."""

from __future__ import annotations

import gzip
import io
import os
import random
import socket
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

LENGTHS = (0, 1, -1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**12)
MAGICS = (
    b"\x1f\x8b\x08\0",
    b"PK\x03\x04",
    b"\x93NUMPY",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff\xe0",
    b"GIF89a",
    b"\x80\x05",
    b"\xfd7zXZ\0",
    b"BZh9",
    b"%!PS-Adobe-3.0 EPSF-3.0\n",
    b"\0\0\x08\x04",
    b"<html>",
    b"",
)


def cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def extend(raw: bytes, rng: random.Random) -> bytes:
    return raw + rng.choice((b"\0", b"\n", b"\0" * 512, rng.randbytes(rng.randrange(1, 600)), raw))


def flip(raw: bytes, rng: random.Random) -> bytes:
    content = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 8, 64)) if content else 0):
        content[_place(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(content)


def overwrite(raw: bytes, rng: random.Random) -> bytes:
    at = _place(raw, rng)
    piece = rng.randbytes(rng.randrange(1, 9))
    return raw[:at] + piece + raw[at + len(piece) :]


def splice(raw: bytes, rng: random.Random) -> bytes:
    start, length, at = _place(raw, rng), rng.randrange(1, 100), _place(raw, rng)
    piece = raw[start : start + length]
    return raw[:at] + piece + raw[at + len(piece) * rng.randrange(2) :]


def duplicate(raw: bytes, rng: random.Random) -> bytes:
    at, length = _place(raw, rng), rng.choice((1, 8, 64, 512, len(raw)))
    return raw[: at + length] + raw[at : at + length] * rng.choice((1, 2, 50)) + raw[at + length :]


def remove(raw: bytes, rng: random.Random) -> bytes:
    at = _place(raw, rng)
    return raw[:at] + raw[at + rng.choice((1, 4, 8, 64, 512)) :]


def length(raw: bytes, rng: random.Random) -> bytes:
    """A number of 1, 2, 4 or 8 bytes, where a length may be, is set to one that is hard to meet."""
    width = rng.choice((1, 2, 4, 8))
    value: int = rng.choice(LENGTHS) % (1 << 8 * width)
    at = _place(raw, rng)
    number = value.to_bytes(width, "little" if rng.randrange(2) else "big")
    return raw[:at] + number + raw[at + width :]


def digits(raw: bytes, rng: random.Random) -> bytes:
    """A number in letters becomes another one."""
    places = [i for i, byte in enumerate(raw) if 48 <= byte < 58]
    if not places:
        return flip(raw, rng)
    at = rng.choice(places)
    return raw[:at] + rng.choice((b"", b"-1", b"9" * 5000, b"99999999999", b"0", b"7", b"e9")) + raw[at + 1 :]


def magic(raw: bytes, rng: random.Random) -> bytes:
    piece = rng.choice(MAGICS)
    return piece + raw[len(piece) if rng.randrange(2) else 0 :]


def whole(raw: bytes, rng: random.Random) -> bytes:
    return rng.choice(
        (
            b"",
            b"<html>not found</html>",
            rng.randbytes(len(raw)),
            bytes(len(raw)),
            gzip.compress(raw, mtime=0),
            gzip.compress(gzip.compress(raw, mtime=0), mtime=0),
            raw[::-1],
        )
    )


def _place(raw: bytes | bytearray, rng: random.Random) -> int:
    """An offset; most often near an end, where the formats keep their headers."""
    if not raw:
        return 0
    near = min(len(raw), rng.choice((16, 64, 200)))
    return rng.choice((rng.randrange(near), len(raw) - 1 - rng.randrange(near), rng.randrange(len(raw))))


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    each.__name__: each
    for each in (cut, extend, flip, overwrite, splice, duplicate, remove, length, digits, magic, whole)
}


def inside(raw: bytes, rng: random.Random, damage: Callable[[bytes, random.Random], bytes]) -> bytes | None:
    """The content damaged and packed again, under a right checksum; None for what is not packed."""
    if raw[:2] == b"\x1f\x8b":
        return gzip.compress(damage(gzip.decompress(raw), rng), mtime=0)
    if raw[:2] == b"PK":
        return _inside_zip(raw, rng, damage)
    if raw[:6] == b"MATLAB":
        return _inside_mat(raw, rng, damage)
    return None


def _inside_zip(raw: bytes, rng: random.Random, damage: Callable[[bytes, random.Random], bytes]) -> bytes:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    victim = rng.choice(sorted(members))
    members[victim] = damage(members[victim], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def _inside_mat(raw: bytes, rng: random.Random, damage: Callable[[bytes, random.Random], bytes]) -> bytes | None:
    out, at = raw[:128], 128
    victim, number = rng.randrange(2), 0
    while at + 8 <= len(raw):
        kind, size = struct.unpack_from("<II", raw, at)
        if kind != 15:
            return None
        content = zlib.decompress(raw[at + 8 : at + 8 + size])
        packed = zlib.compress(damage(content, rng) if number == victim else content)
        out += struct.pack("<II", kind, len(packed)) + packed
        at, number = at + 8 + size, number + 1
    return out


def odd_archive(raw: bytes, rng: random.Random) -> bytes | None:
    """A tar.gz whose members have odd names, kinds or numbers; None for what is no tar.gz."""
    if raw[:2] != b"\x1f\x8b":
        return None
    content = gzip.decompress(raw)
    if content[257:262] != b"ustar":
        return None
    out = io.BytesIO()
    form = rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=out, mode="w", format=form) as new:
        members = old.getmembers()
        victim = rng.choice(members)
        for member in members:
            body = old.extractfile(member)
            values = body.read() if body else b""
            if member is victim:
                match rng.randrange(7):
                    case 0:
                        member.name = "/" + member.name
                    case 1:
                        member.name = "../../../" + member.name
                    case 2:
                        member.name = "x" * 300 + "/" + member.name
                    case 3:
                        member.type, member.linkname = tarfile.SYMTYPE, rng.choice(("/etc/passwd", member.name, ".."))
                    case 4:
                        member.type, member.linkname = tarfile.LNKTYPE, rng.choice((members[0].name, "nowhere"))
                    case 5:
                        member.type = rng.choice((tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, b"S"))
                    case _:
                        new.addfile(member, io.BytesIO(values))
            new.addfile(member, io.BytesIO(values) if member.isreg() else None)
    return gzip.compress(out.getvalue(), mtime=0)


def replace_by(path: Path, rng: random.Random) -> str:
    """Something that is no regular file takes the place of `path`; says what."""
    kept = path.with_name(path.name + ".kept")
    path.rename(kept)
    match rng.choice(("fifo", "folder", "loop", "zero", "dangling", "link", "socket", "missing")):
        case "fifo":
            os.mkfifo(path)
            return "fifo"
        case "folder":
            path.mkdir()
            return "folder"
        case "loop":
            path.symlink_to(path.name)
            return "loop"
        case "zero":
            path.symlink_to("/dev/zero")
            return "zero"
        case "dangling":
            path.symlink_to("nowhere")
            return "dangling"
        case "link":
            path.symlink_to(kept.name)
            return "link"
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(os.path.relpath(path))
            return "socket"
    return "missing"
