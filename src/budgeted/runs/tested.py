"""What a run is tested on: the test images of its data set, or some of each class, decoded once where they fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from budgeted import streams
from budgeted.learner.evaluate import as_tensor
from budgeted.runs.config import RunConfig
from budgeted.streams.orders import first_of_each_class


@dataclass(frozen=True)
class TestData:
    """Test images with their labels, and their domains where there are some."""

    __test__ = False  # pytest takes it for a test otherwise

    given: Any
    """as the data set gives them"""
    images: Tensor | streams.Images
    labels: NDArray[np.int64]
    domains: NDArray[np.int64] | None
    info: streams.DatasetInfo
    bad: tuple[str, ...] = ()
    """why images were left out that could not be read"""

    @property
    def classes(self) -> int:
        return self.info.classes

    @classmethod
    def of(cls, config: RunConfig, dataset: streams.Dataset) -> TestData:
        chosen = first_of_each_class(dataset.test_labels, config.eval_samples)  # the same for every seed
        bad: list[str] = []
        images, chosen = streams.held(dataset.test_images, chosen, config.skip_bad, bad)
        held: Tensor | streams.Images = as_tensor(images) if isinstance(images, np.ndarray) else images
        domains = None if dataset.test_domains is None else dataset.test_domains[chosen]
        return cls(images, held, dataset.test_labels[chosen], domains, dataset.info, tuple(bad))

    def seen(self, labels: list[Any]) -> int:
        """How many are of these classes."""
        return int(np.isin(self.labels, labels).sum()) if labels else 0
