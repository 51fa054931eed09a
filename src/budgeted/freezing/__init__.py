"""Block chains of any feed-forward module, freezing policies, and the backward pass that leaves out what is frozen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from budgeted.freezing.chain import Block, BlockChain, NoBlockChain, block_chain
from budgeted.freezing.given import BadLoss
from budgeted.freezing.layer_freezing import FrozenStep, LayerFreezing
from budgeted.freezing.policies import (
    POLICIES,
    ConstantPrefix,
    FreezingPolicy,
    LinearPrefix,
    NeverFreeze,
    RandomPrefix,
    StepView,
)
from budgeted.freezing.registry import policy
from budgeted.freezing.step_prices import StepPrices, cross_entropy_of
from budgeted.later import later

if TYPE_CHECKING:
    from budgeted.freezing.adaptive import AdaptivePrefix, Criterion, criterion
    from budgeted.freezing.block_cyclic import BlockCyclic
    from budgeted.freezing.egeria import Egeria
    from budgeted.freezing.ptlf import TaskCorrelated

__all__ = [
    "POLICIES",
    "AdaptivePrefix",
    "BadLoss",
    "Block",
    "BlockChain",
    "BlockCyclic",
    "ConstantPrefix",
    "Criterion",
    "Egeria",
    "FreezingPolicy",
    "FrozenStep",
    "LayerFreezing",
    "LinearPrefix",
    "NeverFreeze",
    "NoBlockChain",
    "RandomPrefix",
    "StepPrices",
    "StepView",
    "TaskCorrelated",
    "block_chain",
    "criterion",
    "cross_entropy_of",
    "policy",
]

# which names a file registers, in the order of lists
POLICIES.later(__name__, {
    "policies": ("none", "constant", "linear", "random"), "block_cyclic": ("block-cyclic",),
    "adaptive": ("adaptive",), "egeria": ("egeria",), "ptlf": ("ptlf",),
})  # fmt: skip

_FILES = {
    "adaptive": ("AdaptivePrefix", "Criterion", "criterion"),
    "block_cyclic": ("BlockCyclic",),
    "egeria": ("Egeria",),
    "ptlf": ("TaskCorrelated",),
}
__getattr__, __dir__ = later(__name__, _FILES)
