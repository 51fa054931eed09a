"""One image file, opened without trust: a regular file, of a usual format, of a size that memory holds."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from budgeted.streams.dataset import DataError
from budgeted.streams.files import open_regular, size_of

#: Pixels of one image: Pillow's own limit, where it begins to warn.
MOST_PIXELS = 89_478_485
#: Pixels that one byte of a file may stand for, above the first of these numbers: room is taken for all pixels before
#: the first is decoded, and no format but for blank images packs so many into a byte.
ALWAYS_PIXELS = 2**24
PIXELS_OF_A_BYTE = 4096
#: Whatever the name of a file, its content is one of these: some other formats start a program to be read.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")


@contextlib.contextmanager
def opened_image(path: str | Path) -> Iterator[Image.Image]:
    """The image, not yet decoded. What goes wrong inside the block is an error that names the file."""
    try:
        # Warnings are about metadata, or about sizes that are refused here.
        with open_regular(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS) as image:
                width, height = image.size
                most = min(MOST_PIXELS, max(ALWAYS_PIXELS, PIXELS_OF_A_BYTE * size_of(file)))
                if width * height > most:
                    raise DataError(
                        f"{path}: {width} x {height} pixels in {size_of(file):,} bytes, at most {most:,} are taken: "
                        "shrink or remove it"
                    )
                yield image
    except DataError:
        raise
    except Image.DecompressionBombError as problem:
        raise DataError(f"{path}: more than {MOST_PIXELS:,} pixels ({problem}): shrink or remove it") from problem
    except Exception as problem:  # Pillow fails on damaged files in many ways
        found = os.path.getsize(path) if os.path.isfile(path) else 0
        raise DataError(f"{path}: not a whole image ({found:,} bytes; {problem}): restore or remove it") from problem
