"""5-datasets: SVHN, MNIST, CIFAR-10, notMNIST and Fashion-MNIST one after the other, 50 classes, all 3x32x32.

The sequence is that of the benchmark's authors; each data set is a domain, so `--stream domain` is the benchmark, and
other orders mix its 50 classes. Grey pictures get three equal channels; 28x28 ones are resized (bilinear), as in the
published experiments. Each picture is converted when it is used: the five keep the bytes that they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from budgeted.streams.dataset import DataMissing, Dataset, Images, Part, Request, assemble

SEQUENCE = ("svhn", "mnist", "cifar10", "notmnist", "fashion-mnist")
SIZE = 32


def read(request: Request, reader: Callable[[str, Request], Dataset]) -> Dataset:
    """`reader` reads one of the five by its name."""
    five = []
    for name in SEQUENCE:
        try:
            five.append(reader(name, request))
        except DataMissing as missing:
            raise DataMissing(f"{name}: {missing}") from missing
    classes = [f"{each.name} {word}" for each in five for word in each.class_names]
    first = np.cumsum([0, *(each.classes for each in five)])

    def part(images: list[Images], labels: list[NDArray[np.int64]]) -> Part:
        return Part(
            JoinedImages(images),
            np.concatenate([label + start for label, start in zip(labels, first, strict=False)]),
            np.concatenate([np.full(len(label), number, np.int64) for number, label in enumerate(labels)]),
        )

    train = part([each.train_images for each in five], [each.train_labels for each in five]) if request.train else None
    test = part([each.test_images for each in five], [each.test_labels for each in five]) if request.test else None
    return assemble(request.info, classes, train, test, SEQUENCE)


@dataclass(frozen=True, eq=False)
class JoinedImages:
    """Images of several sets behind each other, each made 3x32x32 when it is asked for."""

    parts: list[Images]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self), 3, SIZE, SIZE

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        chosen = np.arange(len(self))[index]
        if chosen.ndim == 0:
            return self._one(int(chosen))
        images = np.empty((len(chosen), 3, SIZE, SIZE), np.uint8)
        for row, which in enumerate(chosen):
            images[row] = self._one(int(which))
        return images

    def _one(self, index: int) -> NDArray[np.uint8]:
        for part in self.parts:
            if index < len(part):
                return _converted(np.asarray(part[index]))
            index -= len(part)
        raise IndexError(index)


def _converted(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if image.shape[0] == 1:
        grey = Image.fromarray(image[0])
        if grey.size != (SIZE, SIZE):
            grey = grey.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
        return np.repeat(np.asarray(grey)[None], 3, axis=0)
    return np.ascontiguousarray(image)
