"""CAMA: stored logits renewed by a confidence-aware moving average (Kim et al., ICLR 2024), over DER++.

What DER++ stores is what the model knew when a sample was new, and often too little. CAMA renews it whenever the
sample is replayed, the more the surer the model now is of the sample's class:

    confidences of a class: the last N softmax scores of the true label, over all samples trained on
    gamma = clip(mean confidence - 1 / classes, 0, 1)
    stored logits = (1 - gamma) stored + gamma new

The confidences of the step's batch go in first, then the slots replayed in it are renewed. A logit that was not known
(its class came later) takes the new value as it is.

Cost: as DER++, plus a softmax of the batch and 5 operations per replayed logit. Bytes: as DER++, plus N confidences
of 4 bytes per declared class. Deviations, ours / paper / published code: docs/methods/cama.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.der import LOGITS, DarkExperienceReplay
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Step


@METHODS.register("cama")
@dataclass
class ConfidenceAwareMovingAverage(DarkExperienceReplay):
    """DER++ with stored logits renewed by a confidence-aware moving average"""

    kept = ("confidences",)

    recent: int = limited(5, "at least 1")
    """N: how many of the last confidences of a class count"""

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        # oldest first; NaN where a class has had fewer
        self.confidences = torch.full((self.classes, self.recent), torch.nan)

    def after_step(self, step: Step, logits: Tensor) -> None:
        super().after_step(step, logits)
        chances = self.learner.run("backward", _chances, logits.float(), step.labels)
        for label, chance in zip(step.labels.tolist(), chances.tolist(), strict=True):
            self._note(label, chance)
        self._renew(step, logits[step.new :].float())

    def gamma(self, label: int) -> float:
        """How far a stored logit of this class moves to the new one."""
        known = self.confidences[label].double().numpy()
        known = known[~np.isnan(known)]
        surplus = known.mean() - 1 / self.learner.network.linear_head.out_features if known.size else 0.0
        return float(np.clip(surplus, 0, 1))

    def _note(self, label: int, confidence: float) -> None:
        row = self.confidences[label].numpy()
        row[:-1] = row[1:].copy()
        row[-1] = confidence

    def _renew(self, step: Step, new: Tensor) -> None:
        if len(new) == 0:
            return
        gamma = torch.tensor([[self.gamma(label)] for label in step.labels[step.new :].tolist()]).to(new)
        renewed = step.columns[LOGITS].to(new.device, copy=True)
        self.learner.run("backward", _follow, renewed[:, : new.shape[1]], new, gamma)
        memory = self.learner.memory
        memory.write(LOGITS, step.slots, renewed.to(memory.device))


def _chances(logits: Tensor, labels: Tensor) -> Tensor:
    """Softmax scores of the true labels."""
    return torch.softmax(logits, 1).gather(1, labels[:, None])[:, 0]


def _follow(old: Tensor, new: Tensor, gamma: Tensor) -> None:
    """Move stored logits towards the new ones; one that was not known takes the new value as it is."""
    old.copy_(torch.where(old.isnan(), new, old.lerp(new, gamma)))
