"""The one loop, and what it needs: augmentation, evaluation, the growing head, plans, saving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.later import later
from budgeted.learner.events import Event
from budgeted.learner.learner import Learner
from budgeted.learner.settings import LearnerSettings, Settings
from budgeted.problems import Augmentation, Augmenter, DataFacts

if TYPE_CHECKING:
    from budgeted.learner.late import LateLabels
    from budgeted.learner.saving import export, load, save

__all__ = [
    "Augmentation",
    "Augmenter",
    "DataFacts",
    "Event",
    "LateLabels",
    "Learner",
    "LearnerSettings",
    "Settings",
    "export",
    "load",
    "save",
]

_FILES = {"late": ("LateLabels",), "saving": ("export", "load", "save")}
__getattr__, __dir__ = later(__name__, _FILES)
