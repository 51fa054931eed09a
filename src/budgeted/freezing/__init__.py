"""Block chains of any feed-forward module, freezing policies, and the backward pass that leaves out what is frozen."""

from __future__ import annotations

from typing import Any

from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing.adaptive import AdaptivePrefix, Criterion, criterion
from budgeted.freezing.chain import Block, BlockChain, NoBlockChain, block_chain
from budgeted.freezing.layer_freezing import BadLoss, FrozenStep, LayerFreezing
from budgeted.freezing.policies import (
    ConstantPrefix,
    FreezingPolicy,
    LinearPrefix,
    NeverFreeze,
    RandomPrefix,
    StepView,
)
from budgeted.freezing.step_prices import StepPrices, cross_entropy_of

POLICIES: dict[str, type[FreezingPolicy]] = {
    "none": NeverFreeze,
    "constant": ConstantPrefix,
    "linear": LinearPrefix,
    "random": RandomPrefix,
    "adaptive": AdaptivePrefix,
}


def policy(name: str, **settings: Any) -> FreezingPolicy:
    """Build a policy by name, as in `policy("constant", n=4)`."""
    if name not in POLICIES:
        raise UnknownName("freezing policy", name, POLICIES)
    try:
        return POLICIES[name](**settings)
    except TypeError as error:
        raise BudgetedError(f"freezing policy {name!r}: {error}") from error


__all__ = [
    "POLICIES",
    "AdaptivePrefix",
    "BadLoss",
    "Block",
    "BlockChain",
    "ConstantPrefix",
    "Criterion",
    "FreezingPolicy",
    "FrozenStep",
    "LayerFreezing",
    "LinearPrefix",
    "NeverFreeze",
    "NoBlockChain",
    "RandomPrefix",
    "StepPrices",
    "StepView",
    "block_chain",
    "criterion",
    "cross_entropy_of",
    "policy",
]
