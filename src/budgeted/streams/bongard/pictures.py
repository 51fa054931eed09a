"""The pictures of a Bongard set on disk, under their published names.

Names are long (up to 255 bytes) and odd (`?`, `:`, `%`): they are taken as they are, never unquoted. Such names need a
file system that allows them; those of Windows do not. A picture is padded to a square and brought to one size, as the
published experiments do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from budgeted.streams.bongard.problem import Item, Picture, Problem
from budgeted.streams.dataset import DataError, DataMissing
from budgeted.streams.image_file import opened_image

FILL = (122, 116, 104)
"""of the padding: the mean colour that CLIP was trained with"""


class Pictures:
    """Pictures by name, read when they are asked for."""

    def __init__(self, folder: str | Path, pixels: int = 336) -> None:
        self.folder = Path(folder).expanduser()
        self.pixels = pixels

    def path(self, name: str) -> Path:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            raise DataError(f"{name!r} leads out of the folder of pictures: fetch the annotation file again")
        return self.folder.joinpath(*parts)

    def picture(self, name: str) -> Picture:
        """Padded to a square and brought to `pixels` on each side."""
        path = self.path(name)
        if not path.is_file():
            raise DataMissing(f"the picture {path} is not there: put the set's images/ folder into {self.folder}")
        with opened_image(path) as image:
            side = max(image.size)
            square = Image.new("RGB", (side, side), FILL)
            square.paste(image.convert("RGB"), ((side - image.width) // 2, (side - image.height) // 2))
            return np.asarray(square.resize((self.pixels, self.pixels), Image.Resampling.BICUBIC))

    def missing(self, wanted: Iterable[Problem | Item]) -> list[str]:
        """Names, each once and in order, that have no file."""
        names = dict.fromkeys(name for one in wanted for name in one.pictures)
        return [name for name in names if not self.path(name).is_file()]


def with_pictures(problems: Iterable[Problem], pictures: Pictures) -> tuple[Problem, ...]:
    """The problems that have all their pictures."""
    return tuple(one for one in problems if all(pictures.path(name).is_file() for name in one.pictures))
