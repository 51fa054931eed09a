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
is a fifth of the stream (`tasks`); where they end is told, or after every fifth of a stream that has none.

Cost: as ER, a forward of the slow model on what is replayed, and a few operations per weight. Bytes: the slow model,
the weights to go back to, two masks, two counts per channel.
Deviations, ours / paper / published code: docs/methods/trire.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.methods.lent import LentToMethod
from budgeted.methods.masks import masked_layers, masked_weights
from budgeted.methods.method import METHODS, Method, Named, Step
from budgeted.methods.phases import (
    RETAIN,
    REVISE,
    REWIND,
    both,
    count_wins,
    directed,
    extracted,
    follow,
    go_back,
    keep_up,
    of_stream,
    unite,
)  # fmt: skip
from budgeted.replay import Selection

_ACTIVITY = "activity"


@METHODS.register("trire")
@dataclass
class TriRE(Method):
    """ER that retains each task's most active weights, revises them gently and rewinds the others"""

    kept = ("ema", "earlier", "task", "shared", "wins", "past", "phase", "noted", "began", "length", "steps")
    limits = {  # noqa: RUF012
        "tasks": "at least 1", "retain": "between 0 and 1", "revise": "between 0 and 1", "late": "from 0 to 1",
        "winners": "from 0 to 1", "weights": "from 0 to 1", "dropout": "0 or more", "slow": "above 0",
        "ema_weight": "0 or more", "momentum": "from 0 to below 1", "ema_share": "from 0 to 1",
    }  # fmt: skip
    boundaries: ClassVar[bool] = True
    leaves_out: ClassVar[bool] = True
    selection: Named[Selection] = "reservoir"
    stream_share: float = 0.5

    tasks: int = 5
    """tasks that the stream is taken to have"""
    retain: float = 0.6
    """share of a task that retains"""
    revise: float = 0.2
    """share of a task that revises; the rest rewinds"""
    late: float = 0.9
    """share of retain after which the weights are noted that rewind goes back to"""
    winners: float = 0.3
    """share of a layer's channels that a task's part has, and that win with every sample"""
    weights: float = 0.2
    """share of these channels' weights in it"""
    dropout: float = 1.0
    """how surely channels are dropped that won in earlier tasks"""
    slow: float = 0.1
    """learning rate of revise over the others'"""
    ema_weight: float = 0.2
    """weight of the distance to the slow model"""
    momentum: float = 0.999
    """of the slow model"""
    ema_share: float = 0.1
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
        self.began = self.steps = 0  # samples that had arrived when the task began
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
        trained = {name: p for name, p in network.trained_by_name().items() if p.grad is not None}
        gradients = {name: p.grad for name, p in trained.items()}
        masked = [name for name in trained if name in self.shared]
        parts = [[kept[name] for name in masked] for kept in (gradients, self.shared, self.task)]
        if self._apart is None:  # nothing was stored: these gradients are the stream's
            self.learner.run("backward", of_stream, *parts, self.phase)
            return
        inputs, rows = self._apart
        self._apart = None
        found = network.gradients("backward", inputs, lambda outputs: problem.loss(outputs, inputs, rows))
        on_stream = {name: found[name] for name in trained if found[name] is not None}
        scale = 1.0 if network.scaler is None else float(network.scaler.get_scale())
        dense = [name for name in on_stream if name not in self.shared]
        self.learner.run("backward", both, [gradients[n] for n in dense], [on_stream[n] for n in dense], scale)
        self.learner.run("backward", directed, *parts, [on_stream[n] for n in masked], self.phase, scale)

    @torch.no_grad()
    def after_step(self, step: Step, logits: Tensor) -> None:
        features = self.learner.network.take_features(_ACTIVITY)
        if self.phase == RETAIN:
            for path, feature in zip(self._watched, features, strict=True):
                if path in self.wins:
                    winning = self._channels(self.wins[path])
                    self.learner.run("fisher", count_wins, self.wins[path], feature.detach(), winning)
        self.steps += 1
        if self.learner.generator("technique").random() < self.ema_share:
            now, names = self._now(), [name for name, tensor in self.ema.items() if tensor.is_floating_point()]
            share = 1 - min(1 - 1 / (self.steps + 1), self.momentum)
            given = ([part[name] for name in names] for part in (self.ema, now))
            self.learner.run("optimizer", follow, *given, share)
        self._go_on()

    # -- the phases --------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Enter the next phase if as much of the task has passed."""
        if not self.length:
            return  # how long a task is shows when the first has ended
        passed = (self.learner.arrived - self.began) / self.length
        if self.phase == RETAIN and not self.noted and passed >= self.retain * self.late:
            self._note()
        if self.phase == RETAIN and passed >= self.retain:
            self._extract()
        last = self.began + 1.5 * self.length > (self.learner.problem.samples or torch.inf)
        if self.phase == REVISE and passed >= self.retain + self.revise and not last:
            self._join()
            for name, weight in masked_weights(self.learner.network).items():
                self.learner.run("optimizer", go_back, weight, self.earlier[name], self.shared[name])

    def end_task(self) -> None:
        """A task that ends early is extracted now; another begins."""
        if self.phase == RETAIN:
            self._extract()
        if self.phase == REVISE:
            self._join()
        for path, wins in self.wins.items():
            self.past[path] += wins
            wins.zero_()
        if self.learner.problem.samples is None:
            self.length = float(self.learner.arrived - self.began)
        self.phase, self.noted, self.began = RETAIN, False, self.learner.arrived

    def _note(self) -> None:
        for name, weight in masked_weights(self.learner.network).items():
            self.earlier[name].copy_(weight.detach())
        self.noted = True

    def _extract(self) -> None:
        """Find the task's part, and go over to revise."""
        if not self.noted:
            self._note()
        for name, weight in masked_weights(self.learner.network).items():
            path = name.removesuffix(".weight")
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            drawn = self.learner.generator("technique").random(len(weight), dtype=np.float32)
            draws = torch.from_numpy(drawn).to(weight.device)
            given = (weight.detach(), gradient, self.wins[path], self.past[path], draws)
            channels = self._channels(weight)
            count = round(self.weights * channels * weight[0].numel()) or 1
            self.task[name] = self.learner.run("fisher", extracted, *given, channels, count, self.dropout)
        self._set(REVISE, self.slow)

    def _channels(self, of_layer: Tensor) -> int:
        return round(self.winners * len(of_layer)) or 1

    def _join(self) -> None:
        for name, shared in self.shared.items():
            self.learner.run("fisher", unite, shared, self.task[name])
        self._set(REWIND, 1.0)

    def _set(self, phase: int, pace: float) -> None:
        self.phase = phase
        for group, rate in zip(self.learner.network.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * pace

    # -- growth ------------------------------------------------------------------------------------------------

    def grown(self) -> None:
        """What is new belongs to no task; the slow model takes it as it is."""
        network, now = self.learner.network, self._now()
        weights, paths = masked_weights(network), masked_layers(network)
        keep_up(self.ema, now)
        for kept, there in ((self.ema, now), (self.wins, paths), (self.past, paths), (self.earlier, weights),
                            (self.task, weights), (self.shared, weights)):  # fmt: skip
            for name in kept.keys() - {*there}:
                del kept[name]
        for path, (name, weight) in zip(paths, weights.items(), strict=True):
            if name not in self.shared:
                self.earlier[name] = weight.detach().clone()
                self.task[name], self.shared[name] = (torch.zeros_like(weight, dtype=torch.bool) for _ in range(2))
                self.wins[path], self.past[path] = (weight.new_zeros(len(weight)).detach() for _ in range(2))
        new = [path for path in paths if path not in self._watched]
        network.note_features(new, _ACTIVITY)
        self._watched += new

    def _now(self) -> dict[str, Tensor]:
        model = self.learner.network.model
        return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
