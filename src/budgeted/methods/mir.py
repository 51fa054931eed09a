"""MIR: maximally interfered retrieval (Aljundi et al., 2019): ER that replays what the coming update would hurt most.

Half of a batch are the samples that just arrived. 50 candidates are drawn uniformly from the reservoir; the gradient on
the arrived samples makes a virtual step of the optimizer on copies of the parameters; the candidates whose loss rises
most are the other half. That gradient is the arrived samples' part of the step, so they are run once. The retrieval
itself is `budgeted.replay.mir`; with `--retrieval mir` any other method takes it.

Cost: for every step two forwards of the candidates and one pass over the parameters; at a batch of 16 and 50 candidates
about 3.1 times ER. Bytes: as ER.
Deviations, ours / paper / published code: docs/methods/mir.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from budgeted.methods.method import METHODS, Method, Named, PartName
from budgeted.replay import Retrieval, Selection


@METHODS.register("mir")
@dataclass
class MIR(Method):
    """ER that replays the samples whose loss would rise most by the coming update"""

    selection: Named[Selection] = "reservoir"
    retrieval: Named[Retrieval] = "mir"
    stream_share: float = 0.5
    own: ClassVar[frozenset[PartName]] = frozenset({"retrieval"})
