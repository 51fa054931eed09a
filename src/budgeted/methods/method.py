"""What a method is: a composition of selection, retrieval and freezing, and its loss.

A method names the parts that it is made of; a run may replace any of them that the method does not define itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.methods.technique import Technique

Part = Literal["selection", "retrieval", "freezing"]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """One published algorithm, by its parts."""

    name: str
    """as it is typed"""
    summary: str
    """one line for a list"""
    selection: str = "greedy-balanced"
    """which samples stay in the memory"""
    retrieval: str = "uniform"
    """which samples are replayed"""
    freezing: str = "none"
    """which blocks rest"""
    stream_share: float = 0.0
    """share of a batch that is taken from the samples that just arrived; 0 trains from the memory alone"""
    loss: Loss = F.cross_entropy
    """mean loss of a batch: logits and labels to a scalar"""
    technique: type[Technique] = Technique
    """what it adds to the loop"""
    boundaries: bool = False
    """whether it does something when a task ends; on a stream without tasks, after every fifth of it"""
    own: frozenset[Part] = frozenset()
    """parts that make the method what it is and cannot be replaced"""

    def with_parts(self, **parts: str | None) -> Method:
        """The method with other parts; None leaves a part as it is."""
        wanted = {part: name for part, name in parts.items() if name is not None and name != getattr(self, part)}
        for part in wanted:
            if part in self.own:
                raise BudgetedError(
                    f"method {self.name!r} defines its own {part} ({getattr(self, part)}): "
                    f"leave --{part} out, or choose another method"
                )
        return replace(self, **wanted)  # type: ignore[arg-type]

    @property
    def plain_cross_entropy(self) -> bool:
        return self.loss is F.cross_entropy and self.technique.plain
