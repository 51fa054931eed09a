"""Train on a stream that never stops, inside a hard budget of compute and storage, and prove the spending.

The names here are the stable ones (docs/stable_names.md). Each is imported when it is asked for: `import budgeted`
alone does not load torch.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from budgeted.later import later

if TYPE_CHECKING:
    from budgeted.audit import ExecutedOps
    from budgeted.budget import (
        Budget,
        BudgetSpent,
        Compute,
        Cost,
        Ledger,
        UnpricedOperator,
        format_bytes,
        format_compute,
        parse_bytes,
        parse_compute,
    )
    from budgeted.errors import BudgetedError
    from budgeted.freezing import (
        AdaptivePrefix,
        ConstantPrefix,
        FreezingPolicy,
        FrozenStep,
        LayerFreezing,
        LinearPrefix,
        NeverFreeze,
        RandomPrefix,
        StepView,
    )
    from budgeted.learner import Augmentation, DataFacts, Event, Learner, LearnerSettings, Settings, export, load, save
    from budgeted.methods import METHODS, Method, Step, method
    from budgeted.plugin import AdaptiveFreezing, ReplayMemory, SimilarityAwareRetrieval
    from budgeted.replay import Memory, Retrieval, Selection

try:
    __version__ = version("budgeted")
except PackageNotFoundError:  # a source tree on PYTHONPATH that was never installed
    __version__ = "0+source"

__all__ = [
    "METHODS",
    "AdaptiveFreezing",
    "AdaptivePrefix",
    "Augmentation",
    "Budget",
    "BudgetSpent",
    "BudgetedError",
    "Compute",
    "ConstantPrefix",
    "Cost",
    "DataFacts",
    "Event",
    "ExecutedOps",
    "FreezingPolicy",
    "FrozenStep",
    "LayerFreezing",
    "Learner",
    "LearnerSettings",
    "Ledger",
    "LinearPrefix",
    "Memory",
    "Method",
    "NeverFreeze",
    "RandomPrefix",
    "ReplayMemory",
    "Retrieval",
    "Selection",
    "Settings",
    "SimilarityAwareRetrieval",
    "Step",
    "StepView",
    "UnpricedOperator",
    "__version__",
    "export",
    "format_bytes",
    "format_compute",
    "load",
    "method",
    "parse_bytes",
    "parse_compute",
    "save",
]

_FILES = {
    "audit": ("ExecutedOps",),
    "budget": ("Budget", "BudgetSpent", "Compute", "Cost", "Ledger", "UnpricedOperator", "format_bytes",
               "format_compute", "parse_bytes", "parse_compute"),
    "errors": ("BudgetedError",),
    "freezing": ("AdaptivePrefix", "ConstantPrefix", "FreezingPolicy", "FrozenStep", "LayerFreezing", "LinearPrefix",
                 "NeverFreeze", "RandomPrefix", "StepView"),
    "learner": ("Augmentation", "DataFacts", "Event", "Learner", "LearnerSettings", "Settings", "export", "load",
                "save"),
    "methods": ("METHODS", "Method", "Step", "method"),
    "plugin": ("AdaptiveFreezing", "ReplayMemory", "SimilarityAwareRetrieval"),
    "replay": ("Memory", "Retrieval", "Selection"),
}  # fmt: skip
__getattr__, __dir__ = later(__name__, _FILES)
