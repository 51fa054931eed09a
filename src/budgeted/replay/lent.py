"""What a learner lends to a retrieval or a selection that looks at the network before it decides."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from budgeted.budget import Cost
from budgeted.network import Network
from budgeted.replay.memory import Memory


class Lent(Protocol):
    """A learner as these parts see it. Whatever they run goes through the network, and is charged because it ran."""

    network: Network
    memory: Memory

    def inputs_of(self, samples: Any, *, augment: bool = False) -> Any:
        """Samples as the model wants them, varied as in training if asked."""

    def generator(self, name: str) -> np.random.Generator:
        """The run's own generator for this purpose."""

    def affords(self, cost: Cost) -> bool:
        """Would this fit into what is left of the compute?"""

    @property
    def class_labels(self) -> list[Any]:
        """Labels of the head's rows, in order of first appearance."""
