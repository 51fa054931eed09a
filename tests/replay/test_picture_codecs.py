"""The codecs of pictures against what other libraries make of the same pictures."""

from __future__ import annotations

from functools import cache
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn import functional

from budgeted.errors import BudgetedError
from budgeted.replay import CODE, CODECS, Codec, Column, GreedyBalanced, Memory, label_column, store
from budgeted.replay.codecs.colour import from_ycc, to_ycc


@cache
def patches(channels: int = 3, height: int = 32, width: int = 32) -> Tensor:
    """Parts of a photograph, half its size so that they are as busy as pictures of that size are."""
    photo = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)[:channels, ::2, ::2]
    rows, columns = photo.shape[1] // height, photo.shape[2] // width
    cut = photo[:, : rows * height, : columns * width].unfold(1, height, height).unfold(2, width, width)
    return cut.permute(1, 2, 0, 3, 4).flatten(0, 1)[:48].contiguous()


def made(name: str, pictures: Tensor, **settings: object) -> Codec:
    codec = CODECS[name].made(settings)
    codec.columns([Column("sample", tuple(pictures.shape[1:]), torch.uint8)])
    return codec


def through_pil(picture: Tensor, kind: str, **options: object) -> tuple[bytes, Tensor]:
    """The whole file, and what Pillow makes of it."""
    pixels = picture[0].numpy() if len(picture) == 1 else picture.permute(1, 2, 0).contiguous().numpy()
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    image = Image.open(BytesIO(file.getvalue()))
    found = torch.from_numpy(np.array(image if len(picture) == 3 else image.convert("L")))
    return file.getvalue(), found[None] if found.ndim == 2 else found.permute(2, 0, 1)


SHAPES = [(3, 32, 32), (1, 28, 28), (3, 17, 41), (1, 3, 5)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("settings", [{}, {"quality": 95, "subsampling": "4:4:4"}, {"quality": 3}])
def test_a_scan_alone_decodes_to_what_the_whole_file_holds(
    shape: tuple[int, int, int], settings: dict[str, object]
) -> None:
    pictures = patches(*shape)[:6]
    codec = made("jpeg", pictures, **settings)
    stored = codec.encode_batch(pictures)
    options = {"quality": 75, "subsampling": "4:2:0", **settings}
    for place, picture in enumerate(pictures):
        file, expected = through_pil(picture, "JPEG", **options)
        assert len(stored[CODE][place]) == len(file) - codec.nbytes() - 2 + 1  # without header and end, with a check
        assert torch.equal(codec.decode({CODE: [stored[CODE][place]]})[0], expected)
    assert codec.decode(stored).shape == pictures.shape


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_a_damaged_slot_is_refused_in_one_line(name: str) -> None:
    pictures = patches()[:4]
    codec = made(name, pictures)
    code = codec.encode(pictures[0])[CODE]
    for place in (0, len(code) // 2, len(code) - 1):
        for wrong in (1, 128):
            broken = code.clone()
            broken[place] ^= wrong
            with pytest.raises(BudgetedError, match="was damaged"):
                codec.decode({CODE: [broken]})
    for cut in (code[:-1], code[:10], code[:0]):
        with pytest.raises(BudgetedError, match="was damaged"):
            codec.decode({CODE: [code, cut]})


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_bytes_of_the_memory_are_those_that_are_stored(name: str) -> None:
    pictures = patches()
    columns = (Column("sample", (3, 32, 32), torch.uint8), label_column(3), Column("logits", (3,)))
    memory = Memory(columns, limit=9000, codec=CODECS[name].made({}))
    generator = np.random.default_rng(0)
    for place, picture in enumerate(pictures):
        store(memory, GreedyBalanced(), picture, place % 3, generator)
        codes = memory.encoded(np.arange(len(memory)))[CODE]
        held = sum(len(code) + 8 + 1 + 12 for code in codes)  # place and length, label, logits
        assert memory.nbytes() == held + memory.codec.nbytes() <= 9000
    assert len(memory) < len(pictures)
    assert 9000 - memory.nbytes() < 1200
    counts = np.bincount(memory.labels)
    assert counts.max() - counts.min() <= 1 + max(len(code) for code in codes) // min(len(code) for code in codes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([Column("sample", (3, 8, 8))], "one uint8 picture of 1 or 3 channels"),
        ([Column("sample", (2, 8, 8), torch.uint8)], "one uint8 picture of 1 or 3 channels"),
        ([Column("sample", (64,), torch.uint8)], "one uint8 picture of 1 or 3 channels"),
        ([Column("one", (1, 8, 8), torch.uint8), Column("two", (1, 8, 8), torch.uint8)], "use codec raw"),
        ([Column("sample", (1, 8, 70_000), torch.uint8)], "8 x 70000"),
        ([Column("sample", (1, 0, 8), torch.uint8)], "0 x 8"),
    ],
)
@pytest.mark.parametrize("name", ["half", "jpeg", "webp", "ycc420"])
def test_what_is_no_picture_is_refused_in_one_line(name: str, columns: list[Column], message: str) -> None:
    with pytest.raises(BudgetedError, match=message) as refused:
        CODECS[name].made({}).columns(columns)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("jpeg", {"quality": 0}),
        ("jpeg", {"quality": 101}),
        ("jpeg", {"subsampling": "4:1:1"}),
        ("webp", {"quality": -1}),
        ("webp", {"effort": 7}),
        ("ycc420", {"bits": 9}),
    ],
)
def test_settings_that_make_no_sense_are_refused(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(BudgetedError, match=f"codec {name}: {next(iter(settings))} must be"):
        CODECS[name].made(settings)


def test_another_library_than_that_of_the_memory_writes_nothing_into_it() -> None:
    codec = made("jpeg", patches())
    codec.header = codec.header.clone()  # type: ignore[attr-defined]
    codec.header[100] += 1  # type: ignore[attr-defined]
    with pytest.raises(BudgetedError, match="go on with the Pillow"):
        codec.encode(patches()[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("settings", [{}, {"quality": 20, "effort": 0}, {"lossless": True}])
def test_webp_without_its_fixed_bytes_decodes_to_what_the_whole_file_holds(
    shape: tuple[int, int, int], settings: dict[str, object]
) -> None:
    pictures = patches(*shape)[:6]
    codec = made("webp", pictures, **settings)
    options = {"quality": 75, "method": settings.get("effort", 4), "lossless": False}
    options |= {name: value for name, value in settings.items() if name != "effort"}
    for picture in pictures:
        file, expected = through_pil(picture, "WEBP", **options)
        code = codec.encode(picture)[CODE]
        frame = len(code) - 1 + (5 if settings.get("lossless") else 7)
        assert len(file) == 20 + frame + frame % 2  # an odd frame is followed by a zero
        assert torch.equal(codec.decode({CODE: [code]})[0], expected)
        if settings.get("lossless"):
            assert torch.equal(expected, picture)


@pytest.mark.parametrize("shape", SHAPES)
def test_half_is_the_mean_of_two_by_two_and_the_triangle_back(shape: tuple[int, int, int]) -> None:
    pictures = patches(*shape)[:6]
    codec = made("half", pictures)
    channels, height, width = shape
    held = codec.encode_batch(pictures)["half"]
    assert held.shape[1:] == (channels, -(-height // 2), -(-width // 2))
    padded = functional.pad(pictures.double(), (0, width % 2, 0, height % 2), mode="replicate")
    assert (functional.avg_pool2d(padded, 2) - held).abs().max() <= 0.5
    size = 2 * held.shape[2], 2 * held.shape[3]
    smooth = functional.interpolate(held.double(), size=size, mode="bilinear")  # half pixels: 3/4 and 1/4
    assert (smooth[:, :, :height, :width] - codec.decode({"half": held})).abs().max() <= 0.5
    assert torch.equal(codec.encode(pictures[3])["half"], held[3])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", [1, 5, 8])
def test_ycc420_is_pillows_colours_in_so_many_bits(shape: tuple[int, int, int], bits: int) -> None:
    pictures = patches(*shape)[:6]
    codec = made("ycc420", pictures, bits=bits)
    channels, height, width = shape
    values = height * width + (channels - 1) * -(-height // 2) * -(-width // 2)
    stored = codec.encode_batch(pictures)
    assert stored["packed"].shape == (6, -(-values * bits // 8))
    assert torch.equal(codec.encode(pictures[2])["packed"], stored["packed"][2])
    decoded = codec.decode(stored)
    assert decoded.shape == pictures.shape
    assert torch.equal(decoded[4:5], codec.decode({"packed": stored["packed"][4:5]}))
    if channels == 1:
        levels = torch.round(pictures.double() * (2**bits - 1) / 255)
        assert (torch.round(levels * 255 / (2**bits - 1)) - decoded).abs().max() <= 0
        return
    for before, after in zip(pictures, decoded, strict=True):
        light = [np.array(Image.fromarray(each.permute(1, 2, 0).numpy()).convert("YCbCr")) for each in (before, after)]
        off = np.abs(light[0][..., 0].astype(int) - light[1][..., 0])
        assert np.median(off) <= 128 / (2**bits - 1) + 1  # light is in its place; colour out of range moves a few


def test_colours_are_those_of_pillow() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64), dtype=np.uint8)
    expected = np.array(Image.fromarray(pixels[0].transpose(1, 2, 0)).convert("YCbCr")).transpose(2, 0, 1)
    found = to_ycc(pixels)[0]
    assert np.abs(found - expected).max() <= 1  # Pillow cuts, this rounds
    assert np.abs(from_ycc(*found).astype(int) - pixels[0]).max() <= 2


@pytest.mark.parametrize("name", ["half", "jpeg", "webp", "ycc420"])
def test_decoding_does_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    pictures = patches()[:5]
    codec = made(name, pictures)
    together = codec.decode(codec.encode_batch(pictures))
    for place in range(5):
        assert torch.equal(codec.decode(codec.encode_batch(pictures[place : place + 1]))[0], together[place])
    assert codec.operations(3, 0) == 3 * codec.operations(1) > 0
    assert codec.operations(0, 2) > 0
