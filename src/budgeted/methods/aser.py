"""ASER: adversarial Shapley value experience replay (Shim et al., 2021).

ER whose replayed half and whose memory are both chosen by Shapley values of a nearest-neighbour classifier on the
model's features. Replayed are samples that help to classify stored samples and do not help to classify the arrived
ones: those near the border between old and new. The memory keeps samples that help to classify stored ones. Until the
memory is full, samples are drawn uniformly and all are stored. The parts are `budgeted.replay.aser`; with
`--retrieval aser`, or `--set learner.selection=aser`, any other method takes either of them.

Cost: for every step a forward of two class-balanced sets of stored samples (up to 50 each) and of the arrived ones; for
every stream batch another of that size for the memory update; distances and sorting. At a batch of 16 about 3.5
times ER. Bytes: as ER.
Deviations, ours / paper / published code: docs/methods/aser.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgeted.methods.method import METHODS, Method, Named, PartName
from budgeted.replay import Retrieval, Selection


@METHODS.register("aser")
@dataclass
class ASER(Method):
    """ER that replays and keeps samples by their Shapley values for a nearest-neighbour classifier"""

    selection: Named[Selection] = "aser"
    retrieval: Named[Retrieval] = "aser"
    stream_share: float = 0.5
    own: ClassVar[frozenset[PartName]] = frozenset({"retrieval"})
