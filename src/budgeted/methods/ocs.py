"""OCS: online coreset selection (Yoon et al., 2022).

Of the samples that just arrived, only the best are trained on and offered to the memory. A sample's gradient should be
near the mean gradient of those that arrived with it (similarity), unlike that of each other one (diversity), and near
the gradient of what is stored of other classes (affinity), so that learning it costs the least of what was known:

    score(i) = cos(g_i, mean g) - mean over j of cos(g_i, g_j) + tau cos(g_i, gradient of stored samples)

Twice as many samples wait as have places in a batch: 16 for 8. Every step scores them anew with the present model,
trains on the 8 with the highest scores and on 8 drawn from the memory; the last step's 8 enter the memory.

Cost: for every step a forward and backward of the 16, and of 8 stored samples, and the products of 16 gradients; at a
batch of 16 about 2.5 times ER. Bytes: as ER, with twice as many samples that wait.
Deviations, ours / paper / published code: docs/methods/ocs.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from budgeted.budget import NOTHING, Cost
from budgeted.errors import BudgetedError
from budgeted.methods.method import Method
from budgeted.methods.technique import Technique
from budgeted.replay.view import LearnerView


@dataclass
class OnlineCoreset(Technique):
    """Trains on, and stores, those of the arrived samples whose gradients speak for the others and for the memory."""

    choices: int = 2
    """arrived samples for each place that they have in a batch"""
    tau: float = 1000.0
    """weight of the affinity with what is stored"""
    _picked: list[int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.choices < 1:
            raise BudgetedError(f"method.choices must be 1 or more, got {self.choices}")
        if not (math.isfinite(self.tau) and self.tau >= 0):
            raise BudgetedError(f"method.tau must be a number of 0 or more, got {self.tau}")

    def begin(self, learner: LearnerView) -> None:
        super().begin(learner)
        if learner.stream_batch == 0:
            raise BudgetedError("coreset selection chooses among samples of the stream: raise learner.batch_size")

    def pick(self, samples: Tensor, rows: Tensor) -> Tensor:
        scores = coreset_scores(self.learner, samples, rows, self._stored_of_others(rows), self.tau)
        best = scores.argsort(descending=True, stable=True)[: self.learner.stream_batch].cpu()
        self._picked = sorted(best.tolist())
        return best

    def offered(self, waiting: int) -> Sequence[int]:
        """Those of the last step; all where there was nothing to choose, or no step."""
        picked, self._picked = self._picked, None
        return range(waiting) if picked is None else picked

    def _stored_of_others(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As many stored samples as a batch has of the stream, of classes that have not just arrived."""
        memory, generator = self.learner.memory, self.learner.generator("technique")
        others = np.flatnonzero(~np.isin(memory.labels, rows.numpy()))
        chosen = generator.choice(others, min(len(others), self.learner.stream_batch), replace=False)
        stored = memory.gather(chosen.astype(np.int64))
        return stored.samples, stored.labels

    def most(self, new: int, batch: int) -> Cost:
        stream = self.learner.stream_batch
        if new < stream or self.choices == 1:
            return NOTHING  # all that wait have a place
        return _price(self.learner, stream * self.choices, min(stream, len(self.learner.memory)))


def coreset_scores(
    learner: LearnerView, samples: Tensor, rows: Tensor, stored: tuple[Tensor, Tensor], tau: float
) -> Tensor:
    """The score of each sample; gradients of all parameters, in evaluation mode; charged as similarity."""
    parameters = {name: p.detach() for name, p in learner.model.named_parameters() if p.requires_grad}
    buffers = dict(learner.model.named_buffers())

    def loss(given: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(learner.model, {**given, **buffers}, (images,)), labels)

    def loss_of_one(given: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return loss(given, image[None], label[None])

    images, labels = learner.images_of(samples), rows.to(learner.device)
    training = learner.model.training
    learner.model.eval()  # a gradient of one sample alone: with batch statistics there is none
    with learner.aside():
        of_each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(parameters, images, labels)
        gradients = torch.cat([gradient.flatten(1) for gradient in of_each.values()], 1)
        past = None
        if len(stored[1]):
            mean = grad(loss)(parameters, learner.images_of(stored[0]), stored[1].to(learner.device))
            past = torch.cat([gradient.flatten() for gradient in mean.values()])
    learner.charge("similarity", _price(learner, len(rows), len(stored[1])))
    learner.model.train(training)
    return scores_of(gradients, past, tau)


def scores_of(gradients: Tensor, past: Tensor | None, tau: float) -> Tensor:
    """Similarity + diversity + tau affinity of each row, the gradient of one sample."""
    products = gradients @ gradients.T
    norms = products.diagonal().sqrt().clamp(min=1e-12)
    # the mean gradient's products follow from those between the samples
    similarity = products.mean(1) / (norms * products.mean().clamp(min=1e-24).sqrt())
    cosines = products / (norms[:, None] * norms)
    others = max(1, len(gradients) - 1)
    diversity = -(cosines.sum(1) - cosines.diagonal()) / others
    if past is None:
        return similarity + diversity
    affinity: Tensor = gradients @ past / (norms * past.norm().clamp(min=1e-12))
    return similarity + diversity + tau * affinity


def _price(learner: LearnerView, arrived: int, stored: int) -> Cost:
    """Forward and backward of the arrived and the stored samples, and the products of their gradients."""
    training = learner.model.training
    learner.model.eval()
    cost = Cost()
    for count in (arrived, stored):
        if count:
            images = torch.empty(count, *learner.data.input_shape, device="meta")
            cost += learner.pass_price(images, backward=True) + Cost(0, 2 * images.numel())
    learner.model.train(training)
    size = sum(p.numel() for p in learner.model.parameters() if p.requires_grad)
    products = 2 * arrived * arrived * size + (2 * arrived * size + 2 * size if stored else 0)
    return cost + Cost(0, products + 8 * arrived * arrived)


OCS = Method(
    "ocs",
    "ER that trains on and keeps the arrived samples whose gradients speak for the others and for the memory",
    stream_share=0.5,
    technique=OnlineCoreset,
)
