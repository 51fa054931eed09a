"""TriRE: retain, revise and rewind (Vijayan et al., NeurIPS 2023), over experience replay.

Every task leaves a part of the network behind, the weights in S, that later tasks may move by what is replayed alone.

retain   Weights outside S learn from the stream, those in S from the memory. At the end the task's own part is found:
         the channels that won most often (were among the most active of their layer), less those dropped because they
         won in earlier tasks, and of their weights those with the highest importance |w| + |gradient|.
revise   At a lower learning rate the task's part learns: from the stream outside S, from the memory inside; the rest
         rests. Then it joins S.
rewind   Weights outside S go back to what they were late in retain and learn from the stream again, so that what the
         task did not need is ready for the next.

Layers without a mask (the first, the head, norms) learn from both throughout. The loss on the memory has a second term,
the distance to the logits of a slow model, a moving average of the weights that is updated in a part of the steps:

    loss on the memory = CE + ema_weight * MSE(logits, logits of the slow model)

The stream's half of a batch and the replayed half are run apart, since their gradients go to different weights. A task
is a fifth of the stream (`tasks`); where they end is told, or after every fifth of a stream that has none. Where
batches are of the memory alone, it is the stream as well.

Cost: as ER, a forward of the slow model on what is replayed, and a few operations per weight. Bytes: the slow model,
the weights to go back to, two masks, two counts per channel.
Deviations, ours / paper / published code: docs/methods/trire.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.masks import masked_weights
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.methods.task_part import count_wins, directed, extracted, go_back
from budgeted.network.head import carried_over
from budgeted.replay import Selection

RETAIN, REVISE, REWIND = range(3)
_ACTIVITY = "activity"


@METHODS.register("trire")
@dataclass
class TriRE(Method):
    """ER that retains each task's most active weights, revises them gently and rewinds the others"""

    kept = ("ema", "earlier", "task", "shared", "wins", "past", "phase", "noted", "began", "length", "moves")
    boundaries: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5

    tasks: int = limited(5, "at least 1")
    """tasks that the stream is taken to have"""
    retain: float = limited(0.6, "between 0 and 1")
    """share of a task that retains"""
    revise: float = limited(0.2, "between 0 and 1")
    """share of a task that revises; the rest rewinds"""
    late: float = limited(0.9, "from 0 to 1")
    """share of retain after which the weights are noted that rewind goes back to"""
    winners: float = limited(0.3, "from 0 to 1")
    """share of a layer's channels that a task's part has, and that win with every sample"""
    weights: float = limited(0.2, "from 0 to 1")
    """share of these channels' weights in it"""
    dropout: float = limited(1.0, "0 or more")
    """how surely channels are dropped that won in earlier tasks"""
    slow: float = limited(0.1, "above 0")
    """learning rate of revise over the others'"""
    ema_weight: float = limited(0.2, "0 or more")
    """weight of the distance to the slow model"""
    momentum: float = limited(0.999, "from 0 to below 1")
    """of the slow model"""
    ema_share: float = limited(0.1, "from 0 to 1")
    """share of the steps that move the slow model"""
    _apart: tuple[Any, Tensor] | None = field(default=None, init=False, repr=False)  # the stream's half of this step

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        groups = learner.network.optimizer.param_groups
        if self.slow != 1 and any("initial_lr" in group for group in groups):
            raise BudgetedError(
                "trire slows the learning rate itself: keep learner.schedule=constant, or method.slow=1"
            )
        self._rates, self._watched = [float(group["lr"]) for group in groups], list[str]()
        self.phase, self.noted = RETAIN, False  # whether the weights to go back to are noted
        self.began = 0  # samples that had arrived when the task began
        self.moves = 0  # of the slow model
        self.length = (learner.problem.samples or 0) / self.tasks  # of a task; unknown: that of the last
        self.ema, self.earlier, self.task, self.shared, self.wins, self.past = (dict[str, Tensor]() for _ in range(6))
        self.grown()

    # -- a step ------------------------------------------------------------------------------------------------

    def pick(self, samples: Any, rows: Tensor) -> Tensor:
        """None of what waits, which is run apart; all as long as nothing is stored."""
        if min(len(rows), len(self.learner.memory)) < 2:  # batch norm wants two
            return torch.arange(len(rows))
        self._apart = self.learner.inputs_of(samples, augment=True), rows.to(self.learner.network.device)
        return torch.arange(0)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        loss = super().loss(step, logits)
        if step.new:
            return loss
        return loss + self.ema_weight * F.mse_loss(logits, self.learner.network.answers_of(self.ema, step.inputs))

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Give every weight the gradient of the half that it learns from."""
        network, problem = self.learner.network, self.learner.problem
        gradients = {name: p.grad for name, p in network.trained_by_name().items() if p.grad is not None}
        on_stream: Mapping[str, Tensor | None] = {}  # as long as nothing is stored all gradients are the stream's
        if self._apart is not None:
            (inputs, rows), self._apart = self._apart, None
            loss = partial(problem.loss, inputs=inputs, rows=rows)
            on_stream = network.gradients("backward", inputs, loss, learning=True)
        given = ([kept.get(name) for name in gradients] for kept in (gradients, on_stream, self.shared, self.task))
        when = (self.phase == REVISE, self.phase == REWIND, self.learner.stream_batch == 0)
        self.learner.run("backward", directed, *given, *when, network.loss_scale)

    @torch.no_grad()
    def after_step(self, step: Step, logits: Tensor) -> None:
        network, run = self.learner.network, self.learner.run
        for path, feature in zip(self._watched, network.take_features(_ACTIVITY), strict=True):
            if self.phase == RETAIN and path in self.wins:
                run("fisher", count_wins, self.wins[path], feature.detach(), self._channels(self.wins[path]))
        if self.learner.generator("technique").random() < self.ema_share:
            self.moves += 1
            now, names = network.weights(), [name for name, kept in self.ema.items() if kept.is_floating_point()]
            share = 1 - min(1 - 1 / (self.moves + 1), self.momentum)  # the mean of all, until that is the slower
            slow, fast = ([part[name] for name in names] for part in (self.ema, now))
            run("optimizer", torch._foreach_lerp_, slow, fast, share)
        if self.length:  # how long a task is shows when the first has ended
            self._go_on((self.learner.arrived - self.began) / self.length)

    # -- the phases --------------------------------------------------------------------------------------------

    def _go_on(self, passed: float) -> None:
        """Enter the next phase if as much of the task has passed."""
        if self.phase == RETAIN and passed >= self.retain * self.late:
            self._note()
        if self.phase == RETAIN and passed >= self.retain:
            self._end_phase()
        last = self.began + 1.5 * self.length > (self.learner.problem.samples or torch.inf)
        if self.phase == REVISE and passed >= self.retain + self.revise and not last:
            self._end_phase()
            for name, weight in masked_weights(self.learner.network).items():
                self.learner.run("optimizer", go_back, weight, self.earlier[name], self.shared[name])

    def end_task(self) -> None:
        """A task that ends early is extracted now; another begins."""
        while self.phase != REWIND:
            self._end_phase()
        for path, wins in self.wins.items():
            self.past[path] += wins
            wins.zero_()
        if self.learner.problem.samples is None:
            self.length = float(self.learner.arrived - self.began)
        self.phase, self.noted, self.began = RETAIN, False, self.learner.arrived

    def _note(self) -> None:
        """The weights to go back to, once."""
        for name, weight in () if self.noted else masked_weights(self.learner.network).items():
            self.earlier[name].copy_(weight.detach())
        self.noted = True

    def _end_phase(self) -> None:
        """After retain the task's part is found; after revise, which is slower, it joins S."""
        if self.phase == RETAIN:
            self._note()
            self.task = {name: self._part(name, w) for name, w in masked_weights(self.learner.network).items()}
        else:
            for name, shared in self.shared.items():
                self.learner.run("fisher", Tensor.logical_or_, shared, self.task[name])
        self.phase += 1
        for group, rate in zip(self.learner.network.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * (self.slow if self.phase == REVISE else 1.0)

    def _part(self, name: str, weight: Tensor) -> Tensor:
        """Of a layer's weights, those of this task."""
        wins, past = (kept[name.removesuffix(".weight")] for kept in (self.wins, self.past))
        gradient, channels = torch.zeros_like(weight) if weight.grad is None else weight.grad, self._channels(wins)
        draws = torch.from_numpy(self.learner.generator("technique").random(len(wins), dtype=np.float32)).to(wins)
        count = round(self.weights * channels * weight[0].numel()) or 1
        given = (weight.detach(), gradient, wins, past, draws, channels, count, self.dropout)
        return self.learner.run("fisher", extracted, *given)

    def _channels(self, wins: Tensor) -> int:
        return round(self.winners * len(wins)) or 1

    def grown(self) -> None:
        """What is new belongs to no task; the slow model takes it as it is."""
        network = self.learner.network
        weights = {name: weight.detach() for name, weight in masked_weights(network).items()}
        self.ema = carried_over(self.ema, network.copy_of_weights())
        self.earlier = carried_over(self.earlier, {name: weight.clone() for name, weight in weights.items()})
        for mask, count in (("task", "wins"), ("shared", "past")):
            none = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in weights.items()}
            zeros = {name.removesuffix(".weight"): weight.new_zeros(len(weight)) for name, weight in weights.items()}
            setattr(self, mask, carried_over(getattr(self, mask), none))
            setattr(self, count, carried_over(getattr(self, count), zeros))
        new = [path for path in self.wins if path not in self._watched]
        network.note_features(new, _ACTIVITY)
        self._watched += new
