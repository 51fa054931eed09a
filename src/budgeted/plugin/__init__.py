"""Freezing and retrieval for people who keep their own model and their own loop."""

from __future__ import annotations

from budgeted.plugin.adaptive_freezing import AdaptiveFreezing
from budgeted.plugin.replay_memory import ReplayMemory
from budgeted.plugin.similarity_retrieval import SimilarityAwareRetrieval

__all__ = ["AdaptiveFreezing", "ReplayMemory", "SimilarityAwareRetrieval"]
