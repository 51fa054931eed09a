"""`budgeted predict`: what a run's learner says of images."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import Positional, arg

from budgeted.errors import BudgetedError
from budgeted.problems.given import picture
from budgeted.runs.trained import trained
from budgeted.streams.folder import is_image
from budgeted.streams.image_file import opened_image


@dataclass(frozen=True)
class Predict:
    """Say what is on images, by the model of a run: the likeliest classes and their probabilities.

    Example: budgeted predict runs/first photo.jpg more-photos/. Images are made as large as those that the
    model was trained on, squeezed or cropped as the run did.
    """

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run; its newest checkpoint counts."""
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGE [IMAGE ...]")] = ()
    """Image files, or folders of them."""
    top: int = 3
    """Classes to name for each image."""
    json: bool = False
    """Print JSON for a script: for each image all probabilities by class."""

    def run_(self) -> None:
        if not self.images:
            raise BudgetedError("name an image, or a folder of images, after the run's folder")
        if self.top < 1:
            raise BudgetedError(f"--top must be 1 or more, got {self.top}")
        files = _files(self.images)
        found = trained(self.run)
        shape = found.learner.data.input_shape
        crop = found.config.resize == "crop"
        chances = found.probabilities(torch.stack([_read(path, shape, crop) for path in files]))
        if self.json:
            rows = [dict(zip(found.names, row, strict=True)) for row in chances.tolist()]
            print(json.dumps({str(path): row for path, row in zip(files, rows, strict=True)}, indent=1))
            return
        for path, row in zip(files, chances, strict=True):
            best = row.topk(min(self.top, len(row)))
            said = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            print(f"{path}: " + ", ".join(f"{found.names[place]} {100 * chance:.1f} %" for chance, place in said))
        if not found.finished:
            print("the run has not ended: these are answers of its newest checkpoint", file=sys.stderr)


def _files(given: tuple[Path, ...]) -> list[Path]:
    """The files as they are named; of a folder the images in it, by name."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if is_image(each.name))
            if not inside:
                raise BudgetedError(f"{path} holds no images: give files, or a folder with some in it")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise BudgetedError(f"there is no image {path}: check the path")
    return found


def _read(path: Path, shape: tuple[int, int, int], crop: bool) -> torch.Tensor:
    """As the run took pictures of any size."""
    with opened_image(path) as image:
        return picture(image, shape, crop=crop)
