"""Block chains of any feed-forward module, freezing policies, and the backward pass that leaves out what is frozen."""

from __future__ import annotations

from budgeted.freezing.adaptive import AdaptivePrefix, Criterion, criterion
from budgeted.freezing.block_cyclic import BlockCyclic
from budgeted.freezing.chain import Block, BlockChain, NoBlockChain, block_chain
from budgeted.freezing.egeria import Egeria
from budgeted.freezing.given import BadLoss
from budgeted.freezing.layer_freezing import FrozenStep, LayerFreezing
from budgeted.freezing.policies import (
    ConstantPrefix,
    FreezingPolicy,
    LinearPrefix,
    NeverFreeze,
    RandomPrefix,
    StepView,
)
from budgeted.freezing.ptlf import TaskCorrelated
from budgeted.freezing.registry import POLICIES, policy
from budgeted.freezing.step_prices import StepPrices, cross_entropy_of

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
