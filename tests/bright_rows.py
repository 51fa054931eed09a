"""A stream that is soon learned, for the tests of learners and of methods."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from budgeted.learner import DataFacts, Learner
from budgeted.problems import Classification
from budgeted.problems.augment import Augmenter

SHAPE = (1, 8, 8)
FACTS = DataFacts(SHAPE, (0.3,), (0.37,), classes=4)


def samples(count: int, classes: int = 4, seed: int = 0) -> Iterator[tuple[Tensor, int]]:
    """Two bright rows say the class, the rest is noise, so every image is another; a new class every six samples."""
    generator = torch.Generator().manual_seed(seed)
    for i in range(count):
        label = (i // 3) % min(classes, 1 + i // 6)
        image = torch.randint(0, 60, SHAPE, generator=generator, dtype=torch.uint8)
        image[:, 2 * label : 2 * label + 2] += 180
        yield image, label


def augmenter_of(learner: Learner) -> Augmenter:
    assert isinstance(learner.problem, Classification)
    assert learner.problem.augmenter is not None
    return learner.problem.augmenter
