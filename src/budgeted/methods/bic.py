"""BiC (Wu et al., "Large Scale Incremental Learning", CVPR 2019): distillation, and a correction of a bias.

An older model teaches its n classes to the present one, which has m more; T = 2:

    loss = cross-entropy + mean of -softmax(teacher / T) . log softmax(logits / T)

In this online form, of the authors of i-Blurry, the teacher is the model at the last boundary, or before the newest
class came; it teaches from the first boundary on. `method.offline=true` is the paper's form: the model at the last
boundary teaches, with weight n / (n + m), and the cross-entropy has the rest, which leaves it next to nothing where
nearly all classes are old.

Some samples of every class are withheld from training. Before an evaluation two numbers are fitted on them, with the
model as it is, and the logits of the new classes are predicted with as alpha * logit + beta. The old model's bytes and
those of the withheld samples count; the fit is charged as `evaluation_training`.

New are the classes that came since the last boundary; while none has come, those that came before it stay new. On a
stream without tasks a boundary is after every fifth: so the method runs on any stream.

Deviations (ours / paper and its authors' code / published code), all of them in docs/methods/bic.md:
- evaluation: with the correction / the same / the uncorrected accuracy is returned;
- fit: Newton's method on logits computed once, with decay towards (1, 0) / 200 epochs of SGD, with decay of beta / 256
  epochs of Adam at 1e-3 on logits computed once, which cannot move alpha by more than about a quarter for a batch;
- withheld: every tenth sample of a class, a reservoir of 5 of them; one that is replaced is trained on / a tenth of the
  exemplars / 5, 2 or 50 per class;
- distillation: both terms with weight 1 / weighed n to m against cross-entropy / both with weight 1;
- batches, memory: those of ER / herding, many epochs / those of ER;
- gradients: as they are / as they are / clipped at 10.

Cost: a forward of the old model in every step once it teaches; the fit. Bytes: a model, 5 samples a class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.bias import IDENTITY, Correction, fit
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.replay import Selection


@METHODS.register("bic")
@dataclass
class BiasCorrection(Method):
    """ER with distillation from the model at the last boundary and a fitted correction of the bias to new classes"""

    kept = ("_teacher", "_taught", "_kept", "_met", "_old", "_before", "_correction", "_rows")
    boundaries: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5
    temperature: float = limited(2.0, "above 0")
    """T, by which both models' logits are divided"""
    validation: int = limited(5, "at least 1")
    """samples of every class that are withheld from training"""
    every: int = limited(10, "at least 2")
    """one of so many samples of a class may be withheld (the paper's 9 to 1)"""
    decay: float = limited(0.01, "above 0")
    """pull of the correction towards none: it matters where the withheld samples are few"""
    offline: bool = False
    """the paper's form: n to m against the cross-entropy, and no new teacher between boundaries"""
    corrected_teacher: bool = True
    """whether the teacher answers with the correction fitted for it (as its authors have it), or as it is"""
    _teacher: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _rows: int = field(default=0, init=False)  # classes that the teacher teaches; none before the first boundary
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
        self._teacher = learner.network.copy_of_weights()  # its room, so that no slot must be given up when it comes

    # -- training ----------------------------------------------------------------------------------------------

    def admits(self, sample: Tensor, row: int) -> Tensor | None:
        """Every tenth sample of a class goes through a reservoir; one that is not kept there, or no longer, goes on."""
        if row >= len(self._met):
            return sample
        self._met[row] += 1
        number, late = divmod(int(self._met[row]), self.every)
        full = number > self.validation and not late
        place = int(self.learner.generator("technique").integers(number)) if full else number - 1
        if late or place >= self.validation:
            return sample
        replaced = self._kept[row, place].clone() if full else None
        self._kept[row, place] = sample
        return replaced

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        classified, rows, old = F.cross_entropy(logits, step.labels), self._rows, min(self._old, self._rows)
        if not rows:
            return classified
        answers = self.learner.network.answers_of(self._teacher, step.inputs)
        taught = self.learner.run("forward", _softened, answers, self._taught, old, rows, self.temperature)
        distilled = -(taught * F.log_softmax(logits[:, :rows] / self.temperature, dim=1)).sum(1).mean()
        share = rows / logits.shape[1]
        return share * distilled + (1 - share) * classified if self.offline else distilled + classified

    def grown(self) -> None:
        """A class has come: the model, which does not know it yet, teaches the others."""
        seen = len(self.learner.class_labels)
        if 0 < self._rows < seen and not self.offline:
            self._teacher, self._rows = self.learner.network.copy_of_weights(), seen - 1

    def end_task(self) -> None:
        """From here on the model as it is teaches what it knows, with the correction that its last predictions had."""
        seen = len(self.learner.class_labels)
        self._teacher, self._rows = self.learner.network.copy_of_weights(), seen
        fitted = self.corrected_teacher and self._correction.first == self._first_new(seen)
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
        first, held = self._first_new(seen), np.minimum(self._met // self.every, self.validation)[:seen]
        network, self._correction = self.learner.network, IDENTITY
        price = network.price_of(2 * int(held.sum()))  # the fit on their logits is far below their forward
        if first and held[:first].any() and held[first:].any() and self.learner.affords(price):
            samples = torch.cat([self._kept[row, :count] for row, count in enumerate(held)])
            labels = torch.from_numpy(np.repeat(np.arange(len(held)), held))
            logits = self.learner.answers("evaluation_training", samples, as_predicted=True)[:, :seen]
            self._correction = network.run_once("evaluation_training", fit, logits, labels, first, self.decay)

    def respond(self, model: nn.Module, inputs: Any) -> Tensor:
        return self._correction(super().respond(model, inputs))


def _softened(answers: Tensor, correction: Correction, old: int, rows: int, temperature: float) -> Tensor:
    """The correction is of classes that were there at the boundary."""
    return F.softmax(torch.cat([correction(answers[:, :old]), answers[:, old:rows]], 1) / temperature, dim=1)
