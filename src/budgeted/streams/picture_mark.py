"""The mark in a picture that `data info` has drawn, by which it is told from a user's own."""

from __future__ import annotations

from pathlib import Path

from PIL.PngImagePlugin import PngInfo

from budgeted.streams.dataset import DataError
from budgeted.streams.image_file import opened_image

_BY = "budgeted data info"


def mark() -> PngInfo:
    """Goes into the file; formats other than PNG leave it out."""
    found = PngInfo()
    found.add_text("Software", _BY)
    return found


def drawn_here(path: Path) -> bool:
    """Whether a picture has the mark."""
    try:
        with opened_image(path) as found:
            return found.info.get("Software") == _BY
    except DataError:
        return False
