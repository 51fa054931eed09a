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
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from budgeted.budget import NOTHING, Cost
from budgeted.errors import BudgetedError
from budgeted.replay.incoming import MeetsTheStream, uniform_beside
from budgeted.replay.membership import Slots
from budgeted.replay.memory import Memory
from budgeted.replay.retrieval import RETRIEVALS, Facts
from budgeted.replay.view import LearnerView


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

    def most(self, learner: LearnerView, new: int, batch: int) -> Cost:
        arrived, taken = self.coming(new, batch)
        count = batch - new - taken
        looked_at = min(max(self.settings.candidates, count), len(learner.memory) - taken)
        if looked_at == count or arrived == 0:
            return NOTHING
        passes = _price(learner, _like(learner, max(2, arrived)), _like(learner, looked_at))
        return passes + Cost(0, batch + 2 * looked_at)


def loss_increase(learner: LearnerView, incoming: tuple[Tensor, Tensor], candidates: tuple[Tensor, Tensor]) -> Tensor:
    """How much each candidate's loss rises under a virtual SGD step on `incoming`; charged as retrieval."""
    model = learner.model
    if len(incoming[1]) == 1:  # batch norm wants two; the mean loss of a sample and itself is its own
        incoming = incoming[0].repeat(2, 1, 1, 1), incoming[1].repeat(2)
    images, asked = learner.images_of(incoming[0]), learner.images_of(candidates[0])
    labels, asked_labels = incoming[1].to(learner.device), candidates[1].to(learner.device)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    training = model.training
    model.train()
    with learner.aside(), torch.enable_grad():
        loss = F.cross_entropy(_run(model, parameters, images), labels)
        gradients = torch.autograd.grad(loss, [*parameters.values()], allow_unused=True)
    with learner.aside(), torch.no_grad():
        rates = {id(p): float(group["lr"]) for group in learner.optimizer.param_groups for p in group["params"]}
        virtual = {
            name: p if gradient is None else p - rates.get(id(p), 0.0) * gradient
            for (name, p), gradient in zip(parameters.items(), gradients, strict=True)
        }
        before = F.cross_entropy(_run(model, parameters, asked), asked_labels, reduction="none")
        after = F.cross_entropy(_run(model, virtual, asked), asked_labels, reduction="none")
    learner.charge("retrieval", _price(learner, images, asked))
    model.train(training)
    return after - before


def _run(model: nn.Module, parameters: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """The model's outputs with these parameters; what its buffers learn from the pass is lost with their copies."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    logits: Tensor = functional_call(model, {**parameters, **buffers}, (images,))
    return logits


def _price(learner: LearnerView, images: Tensor, candidates: Tensor) -> Cost:
    """A training pass on what arrived, the virtual step, two forwards of the candidates, and their pixels' scaling."""
    passes = learner.pass_price(images, backward=True) + 2 * learner.pass_price(candidates)
    stepped = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    return passes + Cost(0, 2 * stepped + 2 * images.numel() + 2 * candidates.numel())


def _like(learner: LearnerView, count: int) -> Tensor:
    """A batch's shape without data."""
    return torch.empty(count, *learner.data.input_shape, device="meta")
