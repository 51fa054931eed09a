"""SparCL: sparse continual learning (Wang et al., NeurIPS 2022), over experience replay.

Three kinds of sparsity, all of them moving with the stream:

weights    A share `density` of every layer's weights is active, the others are 0. Now and then the active weights that
           matter least leave and as many others, drawn at random, begin at 0. What matters is the continual weight
           importance

               CWI = |w| + alpha |gradient on the stream| + beta |gradient on the memory|

           where the loss on the stream knows no classes but those in the batch, so that what was learned of others is
           not in its way. When a task ends the active share is widened, and at the next adjustment brought back.
gradients  Of the active weights only those with the largest gradients, the same sum without |w|, are trained.
data       Arrived samples are trained on in several steps. After `passes` of them the share `removed` that was mistaken
           least often is left out of the others: the batch is smaller by it.

Cost: as ER less the samples left out, and in every `refresh`-th step both halves of the batch once more. Kernels are
dense, and so is what is charged; what sparse ones would execute is in `budgeted costs`, beside it. Bytes: two masks.
Deviations, ours / paper / published code: docs/methods/sparcl.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.masks import masked_weights, share_of, strongest
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.problems.batches import at
from budgeted.replay import Selection

_UNKNOWN = 25_000  # samples that a stream is taken to have if nobody says


@METHODS.register("sparcl")
@dataclass
class SparseContinualLearning(Method):
    """ER with few active weights, fewer gradients, and the easiest of what arrived left out"""

    kept = ("active", "trained", "steps", "adjusted", "mistakes", "passed", "met")
    boundaries: ClassVar[bool] = True
    of_classes: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5

    density: float = limited(0.25, "between 0 and 1")
    """share of a layer's weights that are active"""
    gradient_density: float = limited(0.2, "between 0 and 1")
    """share of a layer's weights that are trained"""
    alpha: float = limited(0.5, "0 or more")
    """weight of the gradient on the stream in the importance"""
    beta: float = limited(1.0, "0 or more")
    """weight of the gradient on the memory in the importance"""
    within: float = limited(0.01, "from 0 to below 1")
    """share of a layer's weights that an adjustment exchanges"""
    between: float = limited(0.01, "from 0 to below 1")
    """share of a layer's weights that become active when a task ends, until the next adjustment"""
    adjust: float = limited(0.02, "above 0")
    """share of the stream between two adjustments of the active weights"""
    refresh: int = limited(48, "at least 1")
    """steps between two choices of the trained weights; adjustments fall on them"""
    removed: float = limited(0.3, "from 0 to below 1")
    """share of the arrived samples that is left out of the later steps on them"""
    passes: int = limited(3, "at least 1")
    """steps on arrived samples before some are left out"""

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        self.active: dict[str, Tensor] = {}
        self.trained: dict[str, Tensor] = {}
        self.steps = self.adjusted = 0  # since the last boundary; samples that had arrived at an adjustment
        self.mistakes = torch.zeros(learner.stream_batch)  # of the samples that wait, in `passed` steps on them
        self.passed = self.met = 0  # samples that had arrived when these came together
        self.grown()

    def grown(self) -> None:
        """Layers that came begin with the largest of their weights."""
        weights = masked_weights(self.learner.network)
        for name in self.active.keys() - weights.keys():
            del self.active[name], self.trained[name]
        for name, weight in weights.items():
            if name not in self.active:
                self.active[name] = self.learner.run("fisher", _begin, weight, share_of(weight, self.density))
                self.trained[name] = self.active[name].clone()

    # -- data --------------------------------------------------------------------------------------------------

    def pick(self, samples: Tensor, rows: Tensor) -> Tensor:
        if self.met != self.learner.arrived:  # they have just come together
            self.mistakes.zero_()
            self.passed, self.met = 0, self.learner.arrived
        staying = len(rows) - int(self.removed * len(rows)) if self.passed >= self.passes else len(rows)
        return self.mistakes[: len(rows)].argsort(descending=True, stable=True)[:staying].sort().values

    # -- gradients and weights ---------------------------------------------------------------------------------

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        weights = masked_weights(self.learner.network)
        if self.steps % self.refresh == 0:
            self._refresh(step, weights)
        self.steps += 1
        gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        if gradients:  # all of them may rest
            masks = [self.trained[name] for name in gradients]
            self.learner.run("backward", torch._foreach_mul_, [*gradients.values()], masks)

    @torch.no_grad()
    def after_step(self, step: Step, logits: Tensor) -> None:
        weights = masked_weights(self.learner.network)
        self.learner.run("optimizer", torch._foreach_mul_, [*weights.values()], [self.active[n] for n in weights])
        if step.new and self.passed < self.passes:
            mistaken = self.learner.run("backward", _mistaken, logits[: step.new], step.labels[: step.new])
            self.mistakes[: step.new] += mistaken.cpu()
            self.passed += 1

    def end_task(self) -> None:
        for name, weight in masked_weights(self.learner.network).items():
            count = share_of(weight, self.density + self.between)
            self.active[name] = self.learner.run("fisher", _expanded, self.active[name], self._draws(weight), count)
        self.steps, self.adjusted = 0, self.learner.arrived  # the new ones are trained from the next step on

    def _refresh(self, step: Step, weights: dict[str, nn.Parameter]) -> None:
        """Choose the trained weights anew; before them the active ones, if the stream has gone on far enough."""
        names = [*weights]
        on_stream, on_memory = self._gradients(step, slice(step.new)), self._gradients(step, slice(step.new, None))
        given = ([part.get(name) for name in names] for part in (on_stream, on_memory))
        found = self.learner.run("fisher", gradient_importance, [*weights.values()], *given, self.alpha, self.beta)
        importance = dict(zip(names, found, strict=True))
        every = self.adjust * (self.learner.problem.samples or _UNKNOWN)
        if self.learner.arrived - self.adjusted >= every:
            self.adjusted = self.learner.arrived
            for name, weight in weights.items():
                fewer, count = share_of(weight, self.density - self.within), share_of(weight, self.density)
                given_weight = (weight, self.active[name], importance[name], self._draws(weight))
                self.active[name] = self.learner.run("fisher", adjusted, *given_weight, min(fewer, count), count)
        for name, weight in weights.items():
            count = min(share_of(weight, self.gradient_density), share_of(weight, self.density))
            self.trained[name] = self.learner.run("fisher", _of_active, importance[name], self.active[name], count)

    def _gradients(self, step: Step, part: slice) -> dict[str, Tensor | None]:
        """Of the loss on a part of the batch; that on the stream knows its own classes alone."""
        inputs, labels = at(step.inputs, part), step.labels[part]
        if len(labels) < 2:  # batch norm wants two
            return {}
        problem, network = self.learner.problem, self.learner.network
        if part.start is not None or not problem.closed:
            return network.gradients("fisher", inputs, lambda outputs: problem.loss(outputs, inputs, labels))
        classes, own = labels.unique(return_inverse=True)
        return network.gradients("fisher", inputs, lambda logits: F.cross_entropy(logits[:, classes], own))

    def _draws(self, like: Tensor) -> Tensor:
        drawn = self.learner.generator("technique").random(tuple(like.shape), dtype=np.float32)
        return torch.from_numpy(drawn).to(like.device)


def gradient_importance(
    weights: list[Tensor], on_stream: list[Tensor | None], on_memory: list[Tensor | None], alpha: float, beta: float
) -> list[Tensor]:
    """alpha |gradient on the stream| + beta |gradient on the memory|, as far as there are such."""
    found = [torch.zeros_like(weight) for weight in weights]
    for share, gradients in ((alpha, on_stream), (beta, on_memory)):
        for place, gradient in enumerate(gradients):
            if gradient is not None:
                found[place].add_(gradient.abs(), alpha=share)
    return found


def adjusted(weight: Tensor, active: Tensor, importance: Tensor, draws: Tensor, fewer: int, count: int) -> Tensor:
    """Shrink to the `fewer` active weights with the highest CWI, then expand to `count` by some that begin at 0."""
    staying = _of_active(weight.abs() + importance, active, fewer)
    weight.mul_(staying)
    return _expanded(staying, draws, count)


def _of_active(scores: Tensor, active: Tensor, count: int) -> Tensor:
    """Mask of the active weights with the highest scores."""
    return strongest(scores.masked_fill(~active, -torch.inf), count)


def _expanded(active: Tensor, draws: Tensor, count: int) -> Tensor:
    """The active weights, and others to make `count`: those with the highest draws."""
    return strongest(draws.masked_fill(active, torch.inf), count)


def _begin(weight: Tensor, count: int) -> Tensor:
    """Mask of the largest weights; the others become 0."""
    active = strongest(weight.abs(), count)
    weight.mul_(active)
    return active


def _mistaken(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(1) != labels).float()
