"""The one loop, and what it needs: augmentation, evaluation, the growing head, plans, saving."""

from __future__ import annotations

from budgeted.learner.events import Event
from budgeted.learner.late import LateLabels
from budgeted.learner.learner import Learner
from budgeted.learner.saving import export, load, save
from budgeted.learner.settings import LearnerSettings, Settings
from budgeted.problems import Augmentation, Augmenter, DataFacts

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
