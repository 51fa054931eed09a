"""Block by block: one block is trained at a time, for some steps, then the one before it; from the head to the stem.

Block coordinate descent, as BAdam does it (Luo et al., 2024) for models whose optimizer state would not fit: the
gradient runs down to the block whose turn it is, and the weight gradients of all others are left out. Deviations: the
last block that is trained never rests, the order is always from the last block to the first (BAdam also draws it anew
in every round), and the moments of a block that rests stay as they are, where BAdam clears them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import nn

from budgeted.freezing.chain import BlockChain
from budgeted.freezing.policies import POLICIES, FreezingPolicy, StepView
from budgeted.freezing.renamed import Before
from budgeted.limits import limited, refuse_outside_limits


@POLICIES.register("block-cyclic")
@dataclass
class BlockCyclic(FreezingPolicy):
    """Train one block at a time beside the last one, each for some steps, from the head to the stem and again."""

    every: int = limited(10, "at least 1")
    """steps for which a block has its turn"""
    looks: ClassVar[bool] = False
    _trained: tuple[int, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        refuse_outside_limits(self)

    def begin(self, model: nn.Module, chain: BlockChain, before: Before) -> None:
        super().begin(model, chain, before)
        learn = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._trained = tuple(i for i, block in enumerate(chain.blocks) if not learn.isdisjoint(block.parameters))

    def decide(self, view: StepView) -> frozenset[int]:
        turns = [block for block in self._trained if block <= view.most] or [view.most]
        active = turns[-1 - view.step // self.every % len(turns)]
        return view.prefix(view.most) - {active}
