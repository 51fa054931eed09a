"""Every kind of bad picture has one outcome: refused by name, or read in the stated way; and `check` finds it."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from budgeted import streams
from budgeted.errors import UnknownName
from budgeted.streams import Bad, DataError
from budgeted.streams.check import check
from budgeted.streams.pixels import Pixels
from tests.streams.pictures import encoded, pixels, rows_in, write


def saved(image: Image.Image, form: str, **more: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


def colour(mode: str = "RGB") -> Image.Image:
    return Image.fromarray(pixels(5)).convert(mode)


def bomb() -> bytes:
    """A PNG of 60,000 x 60,000 in a few bytes."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    return saved(Image.fromarray(pixels(5, 12, 8)), "PNG", exif=exif)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "truncated": (lambda: encoded(1, "JPEG")[:-200], "not a whole image"),
    "zero bytes": (lambda: b"", "not a whole image \\(0 bytes"),
    "no image": (lambda: b"<html>", "not a whole image"),
    "16 bits": (lambda: saved(Image.fromarray(np.full((8, 8), 300, np.uint16)), "PNG"), "more than 8 bits a channel"),
    "decompression bomb": (bomb, "pixels"),
}
TAKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "CMYK": (lambda: saved(colour("CMYK"), "JPEG"), "images CMYK, read as RGB"),
    "palette": (lambda: saved(colour("P"), "PNG"), "images with a palette, read as RGB"),
    "animated": (
        lambda: saved(colour("P"), "GIF", save_all=True, append_images=[Image.new("P", (8, 8))]),
        "animated images, of which the first frame is taken",
    ),
    "EXIF rotation": (turned, "images turned upright as their EXIF says"),
}


def with_one(tmp_path: Path, content: bytes) -> str:
    """A manifest of good pictures and one of these, in the training part."""
    rows = rows_in(tmp_path)
    write(tmp_path / "odd.png", content)
    lines = [*(f"{row.path},{row.word},{'test' if i % 6 == 0 else 'train'}" for i, row in enumerate(rows))]
    table = write(tmp_path / "t.csv", "\n".join(["path,label,split", *lines, "odd.png,cat,train"]).encode())
    return f"manifest:{table}"


@pytest.mark.parametrize("kind", REFUSED)
def test_a_bad_picture_is_refused_by_name_or_passed_over(kind: str, tmp_path: Path) -> None:
    make, words = REFUSED[kind]
    name = with_one(tmp_path, make())
    with pytest.raises(DataError, match=rf"odd\.png.*{words}"):
        streams.load(name, size=8)
    with pytest.raises(DataError, match=rf"odd\.png.*{words}"):
        streams.load(name, size=8, on_demand=True)  # within the images that statistics are taken of
    data = streams.load(name, size=8, skip_bad=True)
    with streams.arriving(data, range(16), skip_bad=True) as samples:
        found = list(samples)
    bad = [each for each in found if isinstance(each, Bad)]
    assert [each.index for each in bad] == [15]
    assert "odd.png" in bad[0].reason
    report = check(data)
    assert (report.looked_at, len(report.bad)) == (19, 1)
    assert report.bad[0] == bad[0].reason


@pytest.mark.parametrize("kind", TAKEN)
def test_an_odd_picture_is_read_in_the_stated_way_and_counted(kind: str, tmp_path: Path) -> None:
    make, words = TAKEN[kind]
    name = with_one(tmp_path, make())
    data = streams.load(name, size=8, on_demand=True, skip_bad=True)
    report = check(data)
    assert report.bad == []
    assert report.odd[words] == 1
    with Image.open(io.BytesIO(make())) as image:
        expected = image.transpose(Image.Transpose.ROTATE_270) if kind == "EXIF rotation" else image
        expected = expected.convert("RGB").resize((8, 8), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train_images[15], np.asarray(expected).transpose(2, 0, 1))


def test_check_sees_doubles_other_sizes_and_classes_without_a_test(tmp_path: Path) -> None:
    rows = rows_in(tmp_path)
    write(tmp_path / "wide.png", encoded(77, "PNG", 20, 8))
    lines = [f"{row.path},{row.word}" for row in rows]
    lines += [lines[3], "wide.png,yak"]
    table = write(tmp_path / "t.csv", "\n".join(["path,label", *lines]).encode())
    report = check(streams.load(f"manifest:{table}", size=8, on_demand=True, skip_bad=True))
    assert report.odd["samples with the bytes of an earlier one"] == 1
    assert sorted(report.sizes) == [(8, 8), (20, 8)]
    assert any("never appear in the test part" in line and "'yak'" in line for line in report.lines())


def test_a_name_that_is_not_utf8_is_read_where_it_is_a_file_and_refused_where_it_is_a_class(tmp_path: Path) -> None:
    for label in ("a", "b"):
        for i in range(2):
            write(tmp_path / "x" / label / f"{i}.png", encoded(i))
    odd = bytes(tmp_path / "x" / "a") + b"/caf\xe9.png"
    with open(odd, "wb") as file:
        file.write(encoded(9))
    assert len(streams.load(f"folder:{tmp_path / 'x'}").train_labels) == 3
    report = check(streams.load(f"folder:{tmp_path / 'x'}", on_demand=True, skip_bad=True))
    assert (report.looked_at, report.bad) == (5, [])
    (tmp_path / "x" / "a").rename(tmp_path / "x" / "caf\udce9")
    with pytest.raises(DataError, match="is not UTF-8 or breaks a line: rename it"):
        streams.load(f"folder:{tmp_path / 'x'}")


@pytest.mark.parametrize(("policy", "box"), [("squash", (0, 0, 20, 8)), ("crop", (6, 0, 14, 8))])
def test_the_resize_policies(policy: str, box: tuple[int, int, int, int]) -> None:
    picture = Image.fromarray(pixels(3, 20, 8))
    expected = picture.resize((4, 4), Image.Resampling.BILINEAR, box=box)
    found = Pixels(4, policy).of(encoded(3, "PNG", 20, 8))
    assert np.array_equal(found, np.asarray(expected).transpose(2, 0, 1))
    with pytest.raises(UnknownName, match="resize policy"):
        Pixels(4, "stretch")


def test_pictures_of_any_size_need_a_size(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / "ab"[i % 2] / f"{i}.png", encoded(i, "PNG", 10 + i, 12))
    with pytest.raises(DataError, match=r"is 10x12, no square: pass size=PIXELS \(--size\)"):
        streams.load(f"folder:{tmp_path}")
    assert streams.load(f"folder:{tmp_path}", size=16, resize="crop").input_shape == (3, 16, 16)
