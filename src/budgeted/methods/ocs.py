"""OCS: online coreset selection (Yoon et al., 2022).

Of the samples that just arrived, only the best are trained on and offered to the memory. A sample's gradient should be
near the mean gradient of those that arrived with it (similarity), unlike that of each other one (diversity), and near
the gradient of what is stored of other classes (affinity), so that learning it costs the least of what was known:

    score(i) = cos(g_i, mean g) - mean over j of cos(g_i, g_j) + tau cos(g_i, gradient of stored samples)

Twice as many samples wait as have places in a batch: 16 for 8. Every step scores them anew with the present model,
trains on the 8 with the highest scores and on 8 drawn from the memory; the last step's 8 enter the memory.

Cost: for every step a forward and backward of the 16 and of 8 stored samples, in one pass, and the products of
their gradients; at a batch of 16 about 2.5 times ER. Bytes: as ER, with twice as many samples that wait.
Deviations, ours / paper / published code: docs/methods/ocs.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method
from budgeted.network.per_sample import flat


@METHODS.register("ocs")
@dataclass
class OnlineCoreset(Method):
    """ER that trains on and keeps the arrived samples whose gradients speak for the others and for the memory"""

    of_classes: ClassVar[bool] = True
    needs_stream = True
    stream_share: float = 0.5

    choices: int = limited(2, "at least 1")
    """arrived samples for each place that they have in a batch"""
    tau: float = limited(1000.0, "0 or more")
    """weight of the affinity with what is stored"""

    def pick(self, samples: Tensor, rows: Tensor) -> Tensor:
        stored = self._stored_of_others(rows)
        scores = coreset_scores(self.learner, samples, rows, stored, self.tau)
        return scores.argsort(descending=True, stable=True)[: self.learner.stream_batch].cpu()

    def _stored_of_others(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """As many stored samples as a batch has of the stream, of classes that have not just arrived."""
        memory, generator = self.learner.memory, self.learner.generator("technique")
        others = np.flatnonzero(~np.isin(memory.labels, rows.numpy()))
        chosen = generator.choice(others, min(len(others), self.learner.stream_batch), replace=False)
        stored = memory.gather(chosen.astype(np.int64))
        return stored.samples, stored.labels


def coreset_scores(
    learner: LentToMethod, samples: Tensor, rows: Tensor, stored: tuple[Tensor, Tensor], tau: float
) -> Tensor:
    """The score of each sample; gradients of all parameters, in evaluation mode; charged as similarity."""
    arrived, count = len(rows), len(stored[1])
    network = learner.network
    images = learner.inputs_of(torch.cat([samples, stored[0]]) if count else samples)
    labels = torch.cat([rows, stored[1]]).to(network.device)
    like = network.linear_head.weight.detach()
    products, square = like.new_zeros(arrived, arrived + (count > 0)), like.new_zeros(())
    for _, of_parameter in network.per_sample_gradients("similarity", images, labels, together=count):
        learner.run("similarity", _add_products, products, square, flat(of_parameter))
    return learner.run("similarity", scores_of, products, square.sqrt(), tau)


def _add_products(products: Tensor, square: Tensor, rows: Tensor) -> None:
    """Products of the samples' gradients for one more parameter; a last row beyond the samples is of what is stored."""
    samples = len(products)
    products.addmm_(rows[:samples], rows.T)
    if len(rows) > samples:
        square += rows[-1].dot(rows[-1])


def scores_of(products: Tensor, past: Tensor, tau: float) -> Tensor:
    """Similarity + diversity + tau affinity, from the products of the samples' gradients with each other and, in one
    more column if there is one, with the gradient of what is stored, whose norm is `past`."""
    arrived = len(products)
    own = products[:, :arrived]
    norms = own.diagonal().sqrt().clamp(min=1e-12)
    # the mean gradient's products follow from those between the samples
    similarity = own.mean(1) / (norms * own.mean().clamp(min=1e-24).sqrt())
    cosines = own / (norms[:, None] * norms)
    others = max(1, arrived - 1)
    diversity = -(cosines.sum(1) - cosines.diagonal()) / others
    if products.shape[1] == arrived:
        return similarity + diversity
    affinity: Tensor = products[:, arrived] / (norms * past.clamp(min=1e-12))
    return similarity + diversity + tau * affinity
