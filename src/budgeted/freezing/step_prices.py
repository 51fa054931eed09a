"""Prices of a training step, cached by input shape and frozen set.

The forward is traced once per input shape; every frozen set is then priced from that trace by arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from budgeted.budget import NOTHING, BlockPrices, Cost, Pricer, Rule, total, trace
from budgeted.budget.pricing import Unpriced
from budgeted.freezing.chain import BlockChain, chain_of_trace
from budgeted.freezing.units import Granularity

Signature = tuple[object, ...]


def signature(model: nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Signature:
    """What a price depends on besides the frozen set: shapes, dtypes, mode, and the parameters' shapes."""
    leaves = pytree.tree_leaves((tuple(inputs), dict(keywords)))
    shapes = tuple((tuple(t.shape), t.dtype) if isinstance(t, Tensor) else type(t) for t in leaves)
    return (*shapes, model.training)


@dataclass(slots=True)
class _Shape:
    """One input shape's chain and prices."""

    chain: BlockChain
    pricer: Pricer
    by_set: dict[frozenset[int], BlockPrices] = field(default_factory=dict)
    saved: dict[Rule, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class StepPrices:
    """Prices of forward, loss and backward of a model, per block, for any input shape and frozen set."""

    model: nn.Module
    loss: Callable[[Any], Tensor] | None = None
    granularity: Granularity = "block"
    unpriced: Unpriced = "refuse"
    _shapes: dict[Signature, _Shape] = field(default_factory=dict)

    def chain(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> BlockChain:
        return self._at(inputs, keywords).chain

    def of(
        self,
        inputs: Sequence[Any],
        frozen: Collection[int] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> BlockPrices:
        """Prices per block of one step on a batch like `inputs` with these blocks frozen."""
        shape = self._at(inputs, keywords)
        key = frozenset(frozen)
        if key not in shape.by_set:
            shape.by_set[key] = shape.pricer.prices(shape.chain.trained(key))
        return shape.by_set[key]

    def saved(self, inputs: Sequence[Any], rule: Rule, keywords: Mapping[str, Any] | None = None) -> tuple[int, ...]:
        """Backward saved by freezing the first n blocks, for n from 0 to L-1."""
        shape = self._at(inputs, keywords)
        if rule not in shape.saved:
            backward = [
                total(self.of(inputs, range(n), keywords).backward).under(rule) for n in range(len(shape.chain))
            ]
            shape.saved[rule] = tuple(backward[0] - cost for cost in backward)
        return shape.saved[rule]

    def to_feature(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Cost:
        """Running the loss and the head backwards to the last feature, and no further."""
        shape = self._at(inputs, keywords)
        return NOTHING if shape.chain.feature is None else shape.pricer.backward_to(shape.chain.feature)

    def forget(self) -> None:
        """The model changed (a head that grew, parameters thawed by hand): price anew."""
        self._shapes.clear()

    def _at(self, inputs: Sequence[Any], keywords: Mapping[str, Any] | None) -> _Shape:
        key = signature(self.model, inputs, keywords or {})
        if key not in self._shapes:
            traced = trace(self.model, inputs, keywords, self.loss)
            chain = chain_of_trace(self.model, traced, self.granularity)
            self._shapes[key] = _Shape(chain, Pricer(traced, chain.block_of, len(chain), unpriced=self.unpriced))
        return self._shapes[key]


def cross_entropy_of(outputs: Any) -> Tensor:
    """Cross-entropy of a model's outputs with targets of the right shape, for pricing."""
    logits = outputs if isinstance(outputs, Tensor) else outputs["logits"]
    logits = logits.reshape(-1, logits.shape[-1])
    targets = torch.zeros(logits.shape[0], dtype=torch.long, device=logits.device)
    return nn.functional.cross_entropy(logits, targets)
