"""BiC (Wu et al., "Large Scale Incremental Learning", CVPR 2019): distillation, and a correction of a bias.

The model at the last boundary teaches its n classes to the present one, which has m more; T = 2:

    loss = n / (n + m) * mean of -softmax(teacher / T) . log softmax(logits / T)  +  m / (n + m) * cross-entropy.

Some samples of every class are withheld from training. Before an evaluation two numbers are fitted on them, with the
model as it is, and the logits of the new classes are predicted with as alpha * logit + beta. The old model's bytes and
those of the withheld samples count; the fit is charged as `evaluation_training`.

New are the classes that came since the last boundary; while none has come, those that came before it stay new. On a
stream without tasks a boundary is after every fifth: so the method runs on any stream.

Deviations (ours / paper and its authors' code / published code), all of them in docs/methods/bic.md:
- evaluation: with the correction / the same / the uncorrected accuracy is returned;
- fit: Newton's method on logits computed once, with decay towards (1, 0) / 200 epochs of SGD, with decay of beta / 256
  epochs of Adam at 1e-3 on logits computed once, which cannot move alpha by more than about a quarter for a batch;
- withheld: every tenth sample of a class, a reservoir of 5 of them / a tenth of the exemplars / 5, 2 or 50 per class;
- distillation: weighed n to m against cross-entropy / the same / both with weight 1;
- batches, memory: those of ER / herding, many epochs / those of ER;
- gradients: as they are / as they are / clipped at 10.

Cost: a forward of the old model in every step once there is one; the fit. Bytes: a model, 5 samples a class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.methods.bias import IDENTITY, Correction, fit
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.replay import Selection


@METHODS.register("bic")
@dataclass
class BiasCorrection(Method):
    """ER with distillation from the model at the last boundary and a fitted correction of the bias to new classes"""

    kept = ("_teacher", "_taught", "_kept", "_met", "_held", "_old", "_before", "_correction", "_teaches")
    limits = {  # noqa: RUF012
        "temperature": "above 0", "validation": "at least 1", "every": "at least 2", "decay": "above 0"
    }  # fmt: skip
    boundaries: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5
    temperature: float = 2.0
    """T, by which both models' logits are divided"""
    validation: int = 5
    """samples of every class that are withheld from training"""
    every: int = 10
    """one of so many samples of a class may be withheld (the paper's 9 to 1)"""
    decay: float = 0.01
    """pull of the correction towards none: it matters where the withheld samples are few"""
    corrected_teacher: bool = True
    """whether the teacher answers with the correction fitted for it (as its authors have it), or as it is"""
    _teacher: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _teaches: bool = field(default=False, init=False)  # from the first boundary on
    _old: int = field(default=0, init=False)  # classes at the last boundary
    _before: int = field(default=0, init=False)  # classes at the boundary before the last that came
    _correction: Correction = field(default=IDENTITY, init=False)
    _taught: Correction = field(default=IDENTITY, init=False)  # the teacher's own

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        classes, image = learner.problem.classes, learner.problem.columns()[0]
        if classes is None:
            raise BudgetedError("bic reserves room for withheld samples of every class: say how many classes there are")
        self._kept = torch.zeros(classes, self.validation, *image.shape, dtype=image.dtype)
        self._met = np.zeros(classes, np.int32)  # samples of each class so far
        self._held = np.zeros(classes, np.int32)
        self._teacher = learner.network.copy_of_weights()  # its room, so that no slot must be given up when it comes

    # -- training ----------------------------------------------------------------------------------------------

    def withholds(self, sample: Tensor, row: int) -> bool:
        """Every tenth sample of a class goes through a reservoir; one that is not kept there is trained on."""
        if row >= len(self._met):
            return False
        self._met[row] += 1
        place, late = divmod(int(self._met[row]), self.every)
        if late:
            return False
        if self._held[row] < self.validation:
            place = int(self._held[row])
            self._held[row] += 1
        else:
            place = int(self.learner.generator("technique").integers(place))
        if place >= self.validation:
            return False
        self._kept[row, place] = sample
        return True

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        classified = F.cross_entropy(logits, step.labels)
        if not self._teaches:
            return classified
        taught = self._answers(step.inputs)
        share = self._old / logits.shape[1]
        return share * distillation(logits[:, : self._old], taught, self.temperature) + (1 - share) * classified

    def _answers(self, images: Tensor) -> Tensor:
        """The teacher's, softened."""
        answers = self.learner.network.answers_of(self._teacher, images)
        return self.learner.run("forward", _softened, answers, self._taught, self._old, self.temperature)

    def end_task(self) -> None:
        """From here on the model as it is teaches what it knows, with the correction that its last predictions had."""
        seen = len(self.learner.class_labels)
        self._teacher, self._teaches = self.learner.network.copy_of_weights(), True
        first = self._first_new(seen)
        fitted = self.corrected_teacher and self._correction.first == first
        self._taught = self._correction if fitted else IDENTITY
        if seen > self._old:
            self._before, self._old = self._old, seen

    def _first_new(self, seen: int) -> int:
        """The first of the classes that came last: behind the last boundary, or before it until others come."""
        return self._old if seen > self._old else self._before

    # -- evaluation --------------------------------------------------------------------------------------------

    def before_prediction(self) -> None:
        """Fit the correction on the withheld samples, if there are old and new ones and it can be paid."""
        seen = len(self.learner.class_labels)
        first = self._first_new(seen)
        held = self._held[:seen]
        self._correction = IDENTITY
        if first == 0 or not held[:first].any() or not held[first:].any():
            return
        if not self.learner.affords(self.learner.network.price_of(2 * int(held.sum()))):
            return  # the fit on their logits is far below their forward
        samples = torch.cat([self._kept[row, : held[row]] for row in range(seen)])
        labels = torch.from_numpy(np.repeat(np.arange(seen), held))
        logits = self.learner.answers("evaluation_training", samples, as_predicted=True)[:, :seen]
        self._correction = self.learner.network.run_once("evaluation_training", fit, logits, labels, first, self.decay)

    def corrected(self, logits: Tensor) -> Tensor:
        return self._correction(logits)


def distillation(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Mean cross-entropy of softened answers with the teacher's, which are softened already."""
    return -(taught * F.log_softmax(logits / temperature, dim=1)).sum(1).mean()


def _softened(answers: Tensor, correction: Correction, old: int, temperature: float) -> Tensor:
    return F.softmax(correction(answers)[:, :old] / temperature, dim=1)
