"""One picture of a data set and its stream: of each class its first samples, and when it arrives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from budgeted.streams.dataset import DataError, Dataset
from budgeted.streams.picture_mark import mark
from budgeted.streams.stream import Stream

MOST_CLASSES = 100
SHOWN = 8
BINS = 240
_SIDE, _GAP, _NAME, _STRIP, _TOP = 40, 4, 180, 480, 44
_INK, _PAPER, _BAR, _EMPTY = (30, 30, 30), (255, 255, 255), (33, 102, 172), (240, 240, 240)


def arrivals(dataset: Dataset, stream: Stream, bins: int = BINS) -> NDArray[np.int64]:
    """How many samples of each class arrive in each of `bins` equal stretches of the stream: [classes, bins]."""
    counts = np.zeros((dataset.classes, bins), np.int64)
    stretch = np.arange(len(stream)) * bins // len(stream)
    np.add.at(counts, (dataset.train_labels[stream.indices], stretch), 1)
    return counts


def draw(dataset: Dataset, stream: Stream, path: Path) -> int:
    """Write the picture; answers with the number of classes that it shows, those first that arrive first."""
    arriving = arrivals(dataset, stream)
    labels = dataset.train_labels[stream.indices]
    present, first = np.unique(labels, return_index=True)
    shown = present[np.argsort(first)][:MOST_CLASSES]
    left = _NAME + SHOWN * (_SIDE + _GAP) + 2 * _GAP
    sheet = Image.new("RGB", (left + _STRIP + _GAP, _TOP + len(shown) * (_SIDE + _GAP) + _GAP), _PAPER)
    pen = ImageDraw.Draw(sheet)
    small, large = _font(12), _font(15)
    pen.text(
        (_GAP, 4), f"{dataset.name}: {len(stream):,} samples, {stream.order} stream, seed {stream.seed}", _INK, large
    )
    pen.text((_NAME, 26), "first samples of each class", _INK, small)
    pen.text((left, 26), "arrival over the stream (darker: more)", _INK, small)
    most = max(1, int(arriving.max()))
    for row, label in enumerate(shown):
        top = _TOP + row * (_SIDE + _GAP)
        pen.text((_GAP, top + _SIDE // 2 - 7), _clipped(dataset.class_names[int(label)]), _INK, small)
        strip = _strip(arriving[int(label)] / most)
        sheet.paste(strip, (left, top))
    for position, row, column in _first_samples(labels, shown):
        corner = (_NAME + column * (_SIDE + _GAP), _TOP + row * (_SIDE + _GAP))
        sheet.paste(_thumbnail(dataset, int(stream[position])), corner)
    for boundary in stream.boundaries():
        x = left + boundary * _STRIP // len(stream)
        pen.line([(x, _TOP), (x, sheet.height - _GAP)], fill=(178, 24, 43), width=1)
    try:
        sheet.save(path, pnginfo=mark())
    except (OSError, ValueError) as problem:
        raise DataError(f"the picture cannot be written to {path} ({problem}): choose another --picture") from problem
    return len(shown)


def _first_samples(labels: NDArray[np.integer], shown: NDArray[np.integer]) -> list[tuple[int, int, int]]:
    """Positions in the stream of the first samples of each class, and the row and column that each is drawn at.

    By rising position, not by class: an iterator is gone through once, and would be begun anew for every class.
    """
    return sorted(
        (int(position), row, column)
        for row, label in enumerate(shown)
        for column, position in enumerate(np.flatnonzero(labels == label)[:SHOWN])
    )


def _strip(shares: NDArray[np.float64]) -> Image.Image:
    """A line of the arrival picture: square roots of shares, since a trickle should be seen beside a flood."""
    weight = np.sqrt(shares)[:, None]
    colours = (np.array(_EMPTY) * (1 - weight) + np.array(_BAR) * weight).astype(np.uint8)
    return Image.fromarray(colours[None]).resize((_STRIP, _SIDE), Image.Resampling.NEAREST)


def _thumbnail(dataset: Dataset, index: int) -> Image.Image:
    try:
        found = dataset.train_images[index]
        array = np.asarray(next(iter(found.values()))[0] if isinstance(found, dict) else found)
    except DataError:
        blank = Image.new("RGB", (_SIDE, _SIDE), _EMPTY)
        ImageDraw.Draw(blank).line([(0, 0), (_SIDE, _SIDE)], fill=(178, 24, 43), width=2)
        return blank
    picture = Image.fromarray(array[0] if len(array) == 1 else array[:3].transpose(1, 2, 0)).convert("RGB")
    grow = Image.Resampling.NEAREST if picture.width < _SIDE else Image.Resampling.BILINEAR
    return picture.resize((_SIDE, _SIDE), grow)


def _clipped(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:25]}…"


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    try:
        return ImageFont.load_default(size)
    except (TypeError, OSError):  # an older Pillow, or one without FreeType
        return ImageFont.load_default()
