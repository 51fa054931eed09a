"""MIR: replay the samples that the coming update would hurt most (Aljundi et al., 2019).

    virtual = parameters after a step on the gradient of the loss on the samples that just arrived
    score   = loss of a stored sample at the virtual parameters - its loss at the present ones

Some stored samples, the candidates, are drawn uniformly; those with the highest score are replayed. The virtual step is
that of the run's own optimizer, or a plain SGD step at its present rate, on copies. Candidates are seen without
augmentation, by the model in training mode, where batch norms use the statistics of the batch; running statistics are
copied too, so that neither parameters nor buffers of the model move.

Where the loss is the plain one of the batch, the gradient on the arrived samples is their part of the coming step, as
its authors have it: they are varied as in training, the batch norms learn from them, and they are not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import UnknownName
from budgeted.limits import limited, refuse_outside_limits
from budgeted.network.foreseen import foreseen
from budgeted.replay.incoming import MeetsTheStream, uniform_beside
from budgeted.replay.lent import Lent
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import RETRIEVALS, Facts


@dataclass(frozen=True)
class MIRSettings:
    """How many samples MIR looks at."""

    candidates: int = limited(50, "at least 1")
    """stored samples whose loss is compared before and after the virtual step"""
    virtual: Literal["optimizer", "sgd"] = "optimizer"
    """the virtual step: as the run's own optimizer steps, or plain SGD at its present rate (as the published code)"""
    reuse: bool = True
    """whether the gradient on the arrived samples is their part of the step; otherwise they are run twice"""

    def __post_init__(self) -> None:
        refuse_outside_limits(self, "retrieval.")
        if self.virtual not in ("optimizer", "sgd"):
            raise UnknownName("retrieval.virtual", self.virtual, ("optimizer", "sgd"))


@RETRIEVALS.register("mir")
class MaximallyInterfered(MeetsTheStream):
    """Those whose loss would rise most by an update on what just arrived."""

    of_classes = True

    @classmethod
    def settings_type(cls) -> type:
        return MIRSettings

    @classmethod
    def made(cls, settings: Mapping[str, Any], facts: Facts) -> Self:
        return cls(MIRSettings(**settings), cls.standing_in(facts), plain=facts.plain and facts.new > 0)

    def __init__(self, settings: MIRSettings | None = None, standing_in: int = 0, *, plain: bool = False) -> None:
        """plain: whether the step's loss is the plain one of its batch, so that gradients of its parts add up."""
        super().__init__(standing_in)
        self.settings = settings or MIRSettings()
        self._reuses = plain and self.settings.reuse
        self._ahead: dict[str, Tensor] = {}

    def ahead(self) -> Mapping[str, Tensor]:
        found, self._ahead = self._ahead, {}
        return found

    def choose(
        self, memory: Memory, count: int, generator: np.random.Generator, incoming: tuple[Tensor, Tensor], taken: Slots
    ) -> Slots:
        looked_at = min(max(self.settings.candidates, count), len(memory) - len(taken))
        candidates = uniform_beside(memory, looked_at, taken, generator)
        if looked_at == count or len(incoming[1]) == 0:  # nothing to choose, or nothing to choose by
            return candidates[:count]
        batch = memory.gather(candidates)
        reused = self._reuses and self.learner.network.scaler is None
        gradients = gradient_on(self.learner, incoming, reused)
        plain = self.settings.virtual == "sgd"
        increase = loss_increase(self.learner, gradients, (batch.samples, batch.labels), plain).cpu().numpy()
        self._ahead = gradients if reused else {}
        self.operations += 2 * looked_at  # the difference of losses, and one look at each for the largest
        return candidates[np.argsort(-increase, kind="stable")[:count]]


def gradient_on(learner: Lent, incoming: tuple[Tensor, Tensor], learning: bool) -> dict[str, Tensor]:
    """Of the loss on `incoming`; `learning`: as in a training step, varied, and the batch norms learn from it."""
    if len(incoming[1]) == 1:  # batch norm wants two; the mean loss of a sample and itself is its own
        incoming = incoming[0].repeat(2, 1, 1, 1), incoming[1].repeat(2)
    labels = incoming[1].to(learner.network.device)
    inputs = learner.inputs_of(incoming[0], augment=learning)
    loss = lambda outputs: F.cross_entropy(outputs, labels)  # noqa: E731
    found = learner.network.gradients("retrieval", inputs, loss, learning=learning)
    return {name: gradient for name, gradient in found.items() if gradient is not None}


def loss_increase(
    learner: Lent, gradients: Mapping[str, Tensor], candidates: tuple[Tensor, Tensor], plain: bool
) -> Tensor:
    """How much each candidate's loss rises under a virtual step on these gradients; charged as retrieval."""
    network = learner.network
    asked, labels = learner.inputs_of(candidates[0]), candidates[1].to(network.device)
    moved = foreseen(network, "retrieval", gradients, plain=plain)
    before, after = (
        F.cross_entropy(network.outputs_with(weights, asked, "retrieval"), labels, reduction="none")
        for weights in ({}, moved)
    )
    return after - before
