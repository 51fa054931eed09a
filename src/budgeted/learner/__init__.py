"""The one loop, and what it needs: augmentation, evaluation, the growing head, plans, saving."""

from __future__ import annotations

from budgeted.learner.augment import Augmentation, Augmenter
from budgeted.learner.learner import DataFacts, Learner
from budgeted.learner.saving import export, load, save
from budgeted.learner.settings import LearnerSettings, Settings

__all__ = ["Augmentation", "Augmenter", "DataFacts", "Learner", "LearnerSettings", "Settings", "export", "load", "save"]
