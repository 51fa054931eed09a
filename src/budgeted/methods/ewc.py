"""EWC: elastic weight consolidation (Kirkpatrick et al., 2017), in the online form of EWC++ (Chaudhry et al., 2018).

Weights that mattered so far are held near where they were when the last task ended:

    loss = CE + strength / 2 * sum of F (theta - anchor)^2

over ER's batches. F is the diagonal of the Fisher information of all that was trained on: a running mean, over a
window of steps, of the squared gradients of the batch. At the end of a task the weights become the anchor and F as it
then is goes into the penalty. The penalty's own gradient, strength F (theta - anchor), is added to the gradients after
the backward: it needs no graph, F sees the gradient of the data alone, and the recorded loss is that of the data.

With `method.normalised=true` F is first scaled to 0 … 1, as EWC++ has it: the weight that matters most is pulled with
the whole strength, where F as it is leaves the penalty a few hundredths of the data's gradient.

Cost: as ER, plus 4 operations per parameter for F and 4 for the penalty once there is an anchor.
Bytes: three times the parameters (running F, F of the penalty, anchor).
Deviations, ours / paper / published code: docs/methods/ewc.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.replay import Selection

Tensors: TypeAlias = list[Tensor]


@METHODS.register("ewc")
@dataclass
class ElasticWeightConsolidation(Method):
    """elastic weight consolidation (EWC++) over experience replay"""

    kept = ("fisher", "importance", "anchor", "averaged", "anchored")
    boundaries: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5

    strength: float = limited(200.0, "0 or more")
    """lambda: weight of the penalty"""
    window: int = limited(500, "at least 1")
    """steps over which the Fisher information is averaged"""
    normalised: bool = False
    """whether F is scaled to 0 … 1 over all weights when it goes into the penalty (as in EWC++)"""

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        self.fisher, self.importance, self.anchor = (learner.network.zeros() for _ in range(3))
        self.averaged, self.anchored = 0, False  # steps in the running mean

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        trained = {name: p for name, p in self.learner.network.trained_by_name().items() if p.grad is not None}
        gradients = [parameter.grad for parameter in trained.values() if parameter.grad is not None]
        if self.learner.network.scaler is not None and not all(bool(g.isfinite().all()) for g in gradients):
            return  # the scaler leaves this step out
        self.averaged += 1
        share = 1 / min(self.averaged, self.window)
        self.learner.run("fisher", _average, [self.fisher[name] for name in trained], gradients, share)
        if self.anchored:
            importance, anchor = ([kept[name] for name in trained] for kept in (self.importance, self.anchor))
            self.learner.run("backward", _pull, gradients, [*trained.values()], anchor, importance, self.strength)

    @torch.no_grad()
    def end_task(self) -> None:
        if self.averaged == 0:
            return  # nothing was learned that could be held
        for name, parameter in self.learner.network.trained_by_name().items():
            self.anchor[name].copy_(parameter)
            self.importance[name].copy_(self.fisher[name])
        if self.normalised:
            self.learner.run("fisher", _scale, [*self.importance.values()])
        self.anchored = True

    @torch.no_grad()
    def penalty(self) -> float:
        """What the penalty is worth now; the steps themselves use just its gradient."""
        trained = self.learner.network.trained_by_name().items()
        moved = (float((self.importance[name] * (p - self.anchor[name]).square()).sum()) for name, p in trained)
        return self.strength / 2 * sum(moved) if self.anchored else 0.0

    def grown(self) -> None:
        """A new row matters nothing yet: it is free to move."""
        for kept in (self.fisher, self.importance, self.anchor):
            self.learner.network.pad(kept)


def _average(fisher: Tensors, gradients: Tensors, share: float) -> None:
    """One more step's squared gradients in the running mean."""
    torch._foreach_mul_(fisher, 1 - share)
    torch._foreach_addcmul_(fisher, gradients, gradients, value=share)


def _scale(fisher: Tensors) -> None:
    """To 0 … 1, over all weights together."""
    low, high = (torch.stack([end(each) for each in fisher]) for end in (torch.amin, torch.amax))
    for each in fisher:
        each.sub_(low.amin()).div_((high.amax() - low.amin()).clamp(min=1e-30))


def _pull(gradients: Tensors, parameters: Tensors, anchor: Tensors, importance: Tensors, strength: float) -> None:
    """The penalty's gradient."""
    torch._foreach_addcmul_(gradients, importance, torch._foreach_sub(parameters, anchor), value=strength)
