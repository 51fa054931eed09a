"""MEMO (Zhou et al., "A Model or 603 Exemplars", ICLR 2023): the shallow layers are shared, the last stage is added to.

When a task ends the network gets one more last stage, which starts as a copy of the newest; the older ones rest, with
their statistics. The joint classifier reads the features of all of them, an auxiliary one those of the newest alone:
it tells the classes that came since the boundary from one another and from all old ones, which are one class to it.

    loss = cross-entropy of the joint logits + auxiliary_weight * cross-entropy of the auxiliary ones

The auxiliary classifier is drawn anew at every boundary, and is no part of a prediction. What the stages take comes
off the memory: the paper's own question is whether samples or stages are the better use of the bytes.

On a stream without tasks a boundary is after every fifth. Where no class has come since the last one, there is nothing
to tell the old ones from: the auxiliary term, a cross-entropy over one class, is nothing.

Deviations (ours / paper and its authors' code / published code), all of them in docs/methods/memo.md:
- new stage: trained / the same / never given to the optimizer, so that it stays what it was copied from;
- shared layers: trained on, also through the stages that rest / the same / the same;
- weights of the classifier after a task: as they are / new rows scaled to the old rows' norm / as they are;
- batches, memory: half stream, half a greedily balanced memory / herding, many epochs / as ours;
- bytes: of every stage, when it comes / of every stage / typed by hand: one stage, however many there are.

Cost: every stage's forward, and the gradient through it to the shared layers. Bytes: the stages, the wider head, and an
auxiliary classifier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Step
from budgeted.network.expandable import Expandable


@METHODS.register("memo")
@dataclass
class MemoryEfficientExpandable(Method):
    """ER and one more last stage of the net for every task: old ones rest, an auxiliary classifier drives the new"""

    kept = ("_old",)
    boundaries: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True
    rests: ClassVar[str] = "all last stages but the newest"
    needs_classes: ClassVar[bool] = True
    stream_share: float = 0.5

    auxiliary_weight: float = limited(1.0, "0 or more")
    """weight of the auxiliary classifier's cross-entropy"""
    _old: int = field(default=0, init=False)  # classes at the last boundary

    def model(self, model: nn.Module, example: Any) -> nn.Module:
        return Expandable(model, example)

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        self._renew_auxiliary()  # its room, so that no slot must be given up when it comes

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        joint = super().loss(step, logits)
        new = len(self.learner.class_labels) - self._old
        if not self._old or not new:
            return joint
        feature = self.learner.network.last_feature()[:, -self._auxiliary.in_features :]
        told = F.linear(feature, self._auxiliary.weight[: 1 + new], self._auxiliary.bias[: 1 + new])
        return joint + self.auxiliary_weight * F.cross_entropy(told, auxiliary_labels(step.labels, self._old))

    def end_task(self) -> None:
        """The network gets its new stage by itself."""
        self._old = len(self.learner.class_labels)
        self._renew_auxiliary()

    @property
    def _auxiliary(self) -> nn.Linear:
        found = self.learner.network.beside["auxiliary"]
        assert isinstance(found, nn.Linear)
        return found

    def _renew_auxiliary(self) -> None:
        """Drawn by a linear layer's own law: a row for all old classes, and one for each that may come."""
        network, classes = self.learner.network, self.learner.problem.classes
        assert isinstance(network.model, Expandable)
        assert classes is not None
        inputs, rows = network.model.width, 1 + classes
        layer, bound = torch.nn.utils.skip_init(nn.Linear, inputs, rows), 1 / math.sqrt(inputs)
        drawn = self.learner.generator("technique").uniform(-bound, bound, (rows, inputs + 1)).astype(np.float32)
        layer.weight.data, layer.bias.data = torch.from_numpy(drawn).split([inputs, 1], 1)
        layer.bias.data = layer.bias.data[:, 0].clone()
        network.put_beside("auxiliary", layer)


def auxiliary_labels(rows: Tensor, old: int) -> Tensor:
    """Old classes are the first one, those that came since follow in their order."""
    return (rows - (old - 1)).clamp(min=0)
