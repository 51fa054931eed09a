"""Replay: the byte-sized memory, which samples stay in it, and which are trained on again."""

from __future__ import annotations

from budgeted.replay.column import LABEL, Column, Rule, bytes_per_slot, label_column, slots_for
from budgeted.replay.memory import Batch, Memory, Watcher
from budgeted.replay.retrieval import ClassBalanced, Retrieval, Uniform
from budgeted.replay.sar import Effort, SimilarityAwareRetrieval
from budgeted.replay.sar_settings import SARSettings
from budgeted.replay.selection import GreedyBalanced, Reservoir, Selection, Unlimited

__all__ = [
    "LABEL",
    "Batch",
    "ClassBalanced",
    "Column",
    "Effort",
    "GreedyBalanced",
    "Memory",
    "Reservoir",
    "Retrieval",
    "Rule",
    "SARSettings",
    "Selection",
    "SimilarityAwareRetrieval",
    "Uniform",
    "Unlimited",
    "Watcher",
    "bytes_per_slot",
    "label_column",
    "slots_for",
]
