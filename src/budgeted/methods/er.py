"""ER: experience replay (Rolnick et al., 2019), as the paper runs it.

Half of every batch are the samples that just arrived, half are drawn uniformly from a reservoir. Arriving samples wait
until half a batch (8 of 16) is together; then all iterations due are run with these same 8 and 8 newly drawn ones
each, and the 8 enter the reservoir.

Cost: as Vanilla. Bytes: model, slots, and the waiting half batch (counted under rule `real`).
"""

from __future__ import annotations

from dataclasses import dataclass

from budgeted.methods.method import METHODS, Method, Named
from budgeted.replay import Selection


@METHODS.register("er")
@dataclass
class ER(Method):
    """experience replay: half of a batch just arrived, half from a reservoir"""

    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5
