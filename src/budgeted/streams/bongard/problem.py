"""A Bongard problem: seven pictures that share a concept, seven that do not; and a question made of some of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
"""height x width x 3"""
PLACE = "<image>"
"""stands in a question where a picture goes"""
SIDE = 7
"""pictures on each side of a problem"""


@dataclass(frozen=True, slots=True)
class Problem:
    """Fourteen pictures by name, the positive ones first."""

    id: str
    concept: str
    """what is learned, and what tasks are made of: an action with an object, or a group of concepts (OpenWorld)"""
    pictures: tuple[str, ...]
    actions: tuple[str, ...] = ()
    """of each picture; none where the answer is a sentence"""
    caption: str = ""
    """the sentence that says the concept; empty where actions are listed"""

    @property
    def answer(self) -> str:
        """What all positive pictures share, in words."""
        return self.actions[0] if self.actions else self.caption


@dataclass(frozen=True, slots=True)
class Item:
    """One question over several pictures, with its answer."""

    id: str
    concept: str
    question: str
    """has one place for each picture"""
    pictures: tuple[str, ...]
    answer: str
    choices: tuple[str, ...] = ()
    """the answers that the question lists; none where it asks for a sentence"""
