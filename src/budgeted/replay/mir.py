"""MIR: replay the samples that the coming update would hurt most (Aljundi et al., 2019).

    virtual = parameters - rate * gradient of the loss on the samples that just arrived
    score   = loss of a stored sample at the virtual parameters - its loss at the present ones

Some stored samples, the candidates, are drawn uniformly; those with the highest score are replayed. The virtual step is
a plain SGD step at the optimizer's present learning rate, on copies. All three passes see samples without augmentation
and the model in training mode, where batch norms use the statistics of the batch; running statistics are copied too,
so that neither parameters nor buffers of the model move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.replay.incoming import MeetsTheStream, uniform_beside
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import RETRIEVALS, Facts


@dataclass(frozen=True)
class MIRSettings:
    """How many samples MIR looks at."""

    candidates: int = 50
    """stored samples whose loss is compared before and after the virtual step"""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise BudgetedError(f"retrieval.candidates must be 1 or more, got {self.candidates}")


@RETRIEVALS.register("mir")
class MaximallyInterfered(MeetsTheStream):
    """Those whose loss would rise most by an update on what just arrived."""

    @classmethod
    def settings_type(cls) -> type:
        return MIRSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any], facts: Facts) -> Self:
        return cls(MIRSettings(**settings), cls.standing_in(facts))

    def __init__(self, settings: MIRSettings | None = None, standing_in: int = 0) -> None:
        super().__init__(standing_in)
        self.settings = settings or MIRSettings()

    def choose(
        self, memory: Memory, count: int, generator: np.random.Generator, incoming: tuple[Tensor, Tensor], taken: Slots
    ) -> Slots:
        looked_at = min(max(self.settings.candidates, count), len(memory) - len(taken))
        candidates = uniform_beside(memory, looked_at, taken, generator)
        if looked_at == count or len(incoming[1]) == 0:  # nothing to choose, or nothing to choose by
            return candidates[:count]
        batch = memory.gather(candidates)
        increase = loss_increase(self.learner, incoming, (batch.samples, batch.labels)).cpu().numpy()
        self.operations += 2 * looked_at  # the difference of losses, and one look at each for the largest
        return candidates[np.argsort(-increase, kind="stable")[:count]]


def loss_increase(learner: Lent, incoming: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]) -> Tensor:
    """How much each candidate's loss rises under a virtual SGD step on `incoming`; charged as retrieval."""
    if len(incoming[1]) == 1:  # batch norm wants two; the mean loss of a sample and itself is its own
        incoming = incoming[0].repeat(2, 1, 1, 1), incoming[1].repeat(2)
    network = learner.network
    labels, asked_labels = incoming[1].to(network.device), candidates[1].to(network.device)
    asked = learner.inputs_of(candidates[0])
    loss = lambda outputs: F.cross_entropy(outputs, labels)  # noqa: E731
    gradients = network.gradients("retrieval", learner.inputs_of(incoming[0]), loss)
    rates = {id(p): float(group["lr"]) for group in network.optimizer.param_groups for p in group["params"]}
    moving = {name: p for name, p in network.model.named_parameters() if gradients.get(name) is not None}
    moved = network.run(
        "retrieval",
        _virtual,
        [*moving.values()],
        [gradients[name] for name in moving],
        [rates.get(id(p), 0.0) for p in moving.values()],
    )
    before, after = (
        F.cross_entropy(network.outputs_with(weights, asked, "retrieval"), asked_labels, reduction="none")
        for weights in ({}, dict(zip(moving, moved, strict=True)))
    )
    return after - before


def _virtual(parameters: list[Tensor], gradients: list[Tensor], rates: list[float]) -> list[Tensor]:
    """Copies of the parameters, a plain SGD step further."""
    return [p - rate * gradient for p, gradient, rate in zip(parameters, gradients, rates, strict=True)]
