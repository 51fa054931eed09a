"""DER++: dark experience replay with labels (Buzzega et al., 2020).

A slot also keeps the logits that the model gave for its sample when it was trained on as a sample of the stream. A
batch is three parts in one forward: samples of the stream, replayed samples that keep their labels, replayed samples
that keep their logits:

    loss = CE(stream) + beta CE(replayed for labels) + alpha MSE(logits now, logits stored)

The replayed samples go to the two halves in turn, so that a retrieval that draws in order of a score favours neither.
A class that was not known when a sample was stored has no stored logit (NaN in the slot) and no part in the mean.
Where batches are of the memory alone, replayed samples stand in for those of the stream, and a slot gets the logits of
its sample's first replay.

Cost: as ER, plus a few operations per stored logit. Bytes: four per class and slot, for the declared classes.
Deviations, ours / paper / published code: docs/methods/der.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.replay import Column, Selection, Slots

LOGITS = "logits"


@METHODS.register("der++")
@dataclass
class DarkExperienceReplay(Method):
    """dark experience replay: labels and the logits of the past are replayed"""

    needs_classes = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.375

    alpha: float = limited(0.5, "0 or more")
    """weight of the stored logits"""
    beta: float = limited(0.5, "0 or more")
    """weight of the replayed labels"""
    _newest: Tensor | None = field(default=None, init=False, repr=False)

    def columns(self, classes: int | None) -> tuple[Column, ...]:
        self.classes = classes or 0
        return (Column(LOGITS, (self.classes,)),)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        first = self._first_part(step)
        replayed, labels, stored = logits[first:], step.labels[first:], step.columns[LOGITS][first - step.new :]
        terms = []
        if first:
            terms.append(self.of_labels(logits[:first], step.labels[:first]))
        if len(replayed):
            terms.append(self.beta * self.of_labels(replayed[::2], labels[::2]))
        if len(replayed) > 1:
            terms.append(self.alpha * _distance(replayed[1::2], stored[1::2]))
        return torch.stack(terms).sum()

    def _first_part(self, step: Step) -> int:
        """Samples of the stream; where batches are of the memory alone, as many of its samples in their place."""
        return step.new if self.learner.stream_batch else int(type(self).stream_share * len(step.labels))

    def of_labels(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The term of the labels, over samples of the stream or of the memory."""
        return F.cross_entropy(logits, labels)

    def after_step(self, step: Step, logits: Tensor) -> None:
        self._newest = logits[: step.new].float()
        if self.learner.stream_batch == 0:
            first = self.learner.run("backward", torch.isnan, step.columns[LOGITS][:, 0]).cpu()
            self.keep(step.slots[first.numpy()], logits.float()[first.to(logits.device)])

    def stored(self, slot: int, place: int | None) -> None:
        """The logits of the last step on the sample; none if it was stored without one."""
        newest = None if place is None or self._newest is None else self._newest[[place]]
        self.keep(np.array([slot]), torch.empty(1, 0) if newest is None else newest)

    def keep(self, slots: Slots, logits: Tensor) -> None:
        """Store these logits; classes that have none yet are not known."""
        memory, unknown = self.learner.memory, self.classes - logits.shape[1]
        memory.write(LOGITS, slots, F.pad(logits.to(memory.device), (0, unknown), value=math.nan))


def _distance(logits: Tensor, stored: Tensor) -> Tensor:
    """Mean squared distance to the stored logits, over those that are known."""
    stored = stored[:, : logits.shape[1]].to(logits.device)
    known = ~stored.isnan()
    return torch.where(known, logits - stored, 0.0).square().sum() / known.sum().clamp(min=1)
