"""Problems: what a target is, how the network grows for it, the loss, the answer, the score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later
from budgeted.problems.augment import Augmentation, Augmenter
from budgeted.problems.batches import Sample
from budgeted.problems.classification import Classification, DataFacts
from budgeted.problems.problem import PROBLEMS, Problem

if TYPE_CHECKING:
    from budgeted.problems.questions import Questions

__all__ = ["PROBLEMS", "Augmentation", "Augmenter", "Classification", "DataFacts", "Problem", "Questions", "Sample"]

PROBLEMS.later(__name__, {"classification": ("classification",), "questions": ("questions",)})

_FILES = {"questions": ("Questions",)}
__getattr__, __dir__ = later(__name__, _FILES)
