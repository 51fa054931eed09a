"""Vanilla: train from the memory alone, drawn uniformly.

The baseline of the paper's component study (its "Vanilla" row): every arriving sample goes through greedy balancing
into the memory, every batch is drawn uniformly from it. Deviation: the published code runs this row with a reservoir,
the paper says balanced; ours is balanced, as for aL-SAR, so that the components are compared on one footing
(`--set learner.selection=reservoir` gives the other).

Cost: forward and backward of the batch. Bytes: model and slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from budgeted.methods.method import METHODS, Method


@METHODS.register("vanilla")
@dataclass
class Vanilla(Method):
    """train from the memory alone, uniform retrieval, nothing frozen"""
