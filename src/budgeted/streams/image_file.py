"""One image, opened without trust: a regular file or bytes, of a usual format, of a size that memory holds."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from budgeted.errors import BudgetedError
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


def quiet_pillow() -> None:
    """For whoever decodes in threads: Pillow's warnings are not shown from here on."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


@contextlib.contextmanager
def opened_image(source: str | Path | bytes, where: str = "") -> Iterator[Image.Image]:
    """The image in a file or in bytes, not yet decoded. What goes wrong inside the block names the file, or `where`."""
    name = where or (str(source) if not isinstance(source, bytes) else "an image")
    try:
        with contextlib.ExitStack() as opened:
            # Warnings are about metadata, or about sizes that are refused here. Catching them sets a global state
            # aside, which two threads would put back in the wrong order: other threads leave it to `quiet_pillow`.
            if threading.current_thread() is threading.main_thread():
                opened.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
            file = io.BytesIO(source) if isinstance(source, bytes) else opened.enter_context(open_regular(source))
            size = len(source) if isinstance(source, bytes) else size_of(file)
            image = opened.enter_context(Image.open(file, formats=FORMATS))
            width, height = image.size
            most = min(MOST_PIXELS, max(ALWAYS_PIXELS, PIXELS_OF_A_BYTE * size))
            if width * height > most:
                raise DataError(
                    f"{name}: {width} x {height} pixels in {size:,} bytes, at most {most:,} are taken: "
                    "shrink or remove it"
                )
            yield image
    except BudgetedError:
        raise
    except MemoryError as problem:  # says nothing of the file, so it must not pass for a bad one
        raise MemoryError(f"{name}: no memory is left to decode it") from problem
    except FileNotFoundError as problem:
        raise DataError(f"{name} does not exist: restore it, or take it off the list") from problem
    except Image.DecompressionBombError as problem:
        raise DataError(f"{name}: more than {MOST_PIXELS:,} pixels ({problem}): shrink or remove it") from problem
    except Exception as problem:  # Pillow fails on damaged files in many ways
        found = len(source) if isinstance(source, bytes) else _size(source)
        if isinstance(problem, OSError) and problem.errno == errno.ELOOP:
            raise DataError(f"{name} is no regular file but a link in a circle: restore or remove it") from problem
        reason, remedy = str(problem), "restore or remove it"
        if isinstance(problem, UnidentifiedImageError):
            reason, remedy = "of no known format", "restore it, save it as JPEG or PNG, or remove it"
        raise DataError(f"{name}: not a whole image ({found:,} bytes; {reason}): {remedy}") from problem


def _size(path: str | Path) -> int:
    try:
        return os.path.getsize(path) if os.path.isfile(path) else 0
    except ValueError:  # a name with a NUL in it
        return 0
