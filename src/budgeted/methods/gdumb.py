"""GDumb: a greedy sampler and a dumb learner (Prabhu et al., 2020).

While the stream runs nothing is trained: samples enter a class-balanced memory, a newcomer only while its class has
less than an even share. Before every evaluation a model is trained from scratch on the memory alone, in shuffled passes
over it, with a learning rate that falls along half a cosine.

The training steps of an evaluation are those that became due since the last one (`--iterations` per sample, or what
`--compute` pays for): as many in all as any other method runs. They make at least one pass over the memory, and are
nine tenths at least of those of the model in use, which a shorter training would replace by a worse one.
`method.epochs` sets a number of passes instead, 256 by its authors. Where too few steps are due, it says so, predicts
with the model that it has, and goes on saving; where what is left of a compute budget does not pay for them, training
has ended.

Cost: nothing while the stream runs; forward, backward and optimizer of every training step, charged as
`evaluation_training`. Bytes: model and slots; with `method.restart=given`, the starting weights once more.
Deviations, ours / paper / published code: docs/methods/gdumb.md.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from budgeted.errors import BudgetedError, UnknownName
from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Named, PartName
from budgeted.models.initialise import DRAWN, draw
from budgeted.replay import Selection
from budgeted.replay.membership import Slots

log = logging.getLogger("budgeted")
_HARDLY_LESS = 0.9  # at a fraction of an iteration per sample, even spans of the stream are due uneven steps


@METHODS.register("gdumb")
@dataclass
class TrainsForEvaluation(Method):
    """balance the memory, train from scratch on it at every evaluation, and never in between"""

    kept = ("_start", "_trained")
    trains: ClassVar[bool] = False
    own: ClassVar[frozenset[PartName]] = frozenset({"selection", "retrieval", "freezing"})
    selection: Named[Selection] = "greedy-quota"

    epochs: int | None = limited(None, "at least 1")
    """passes over the memory at every evaluation; None: as many as the iterations due since the last one make"""
    last_rate: float = limited(0.01, "from 0 to 1")
    """share of the learning rate that is left at the last step of the cosine"""
    restart: Literal["draw", "given"] = "draw"
    """every training starts from newly drawn weights, or from those that the model had at first (kept, and counted)"""
    _start: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    _trained: int = field(default=0, init=False)  # steps of the model in use

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restart not in ("draw", "given"):
            raise UnknownName("method.restart", self.restart, ("draw", "given"))

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        if self.restart == "given":
            head = {id(tensor) for tensor in learner.network.head.parameters()}
            kept = {**dict(learner.network.model.named_parameters()), **dict(learner.network.model.named_buffers())}
            self._start = {name: kept[name].detach().clone() for name in kept if id(kept[name]) not in head}
            return
        for name, module in learner.network.model.named_modules():
            own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            if own and not isinstance(module, DRAWN):
                raise BudgetedError(
                    f"nobody knows how to draw the weights of {type(module).__name__} at {name!r} anew: "
                    "start from those given, with --set method.restart=given"
                )

    def before_prediction(self) -> None:
        learner, stored = self.learner, len(self.learner.memory)
        if stored < 2 or learner.spent_up:
            return
        batch = min(learner.batch_size, stored)
        a_pass = -(-stored // batch)
        steps = self._steps(batch, a_pass)
        if steps == 0:
            return
        self._restart()
        rates = [float(group["lr"]) for group in learner.network.optimizer.param_groups]
        shuffled = _batches(stored, batch, steps, learner.generator("technique"))
        for step, slots in enumerate(shuffled):
            share = self.last_rate + (1 - self.last_rate) * (1 + math.cos(math.pi * step / steps)) / 2
            for group, rate in zip(learner.network.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            drawn = learner.memory.gather(slots)
            learner.practise("evaluation_training", drawn.samples, drawn.labels)
        for group, rate in zip(learner.network.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        learner.network.optimizer.state.clear()  # the next training starts without it

    def _steps(self, batch: int, a_pass: int) -> int:
        """Steps to train now: a pass over the memory at least, and hardly less a training than the last; or none."""
        learner = self.learner
        wanted = learner.due if self.epochs is None else self.epochs * a_pass
        price = learner.network.practice_price(batch)
        least = a_pass if self.epochs is not None else max(a_pass, int(_HARDLY_LESS * self._trained))
        if not learner.affords(price * least):  # nor later: what is left only falls
            learner.end_training()
            return 0
        if wanted < least:
            log.warning("%d training steps are due, this training takes %d: the model stays as it is", wanted, least)
            return 0
        paid = bisect.bisect_left(range(1, wanted + 1), True, key=lambda steps: not learner.affords(price * steps))
        learner.take_due(paid)
        self._trained = paid
        return paid

    def _restart(self) -> None:
        """A model that has learned nothing, and an optimizer that remembers nothing."""
        learner = self.learner
        seed = int(learner.generator("technique").integers(2**62))
        generator = torch.Generator(learner.network.device).manual_seed(seed)
        if self.restart == "draw":
            for name, module in learner.network.model.named_modules():
                draw(name, module, generator)
            learner.network.restarted()
            return
        kept = {**dict(learner.network.model.named_parameters()), **dict(learner.network.model.named_buffers())}
        with torch.no_grad():
            for name, tensor in self._start.items():
                kept[name].copy_(tensor)
        draw("head", learner.network.head, generator)
        learner.network.restarted()


def _batches(stored: int, batch: int, steps: int, generator: np.random.Generator) -> Iterator[Slots]:
    """Passes over the memory, each in an order of its own, cut into batches of one size: the last of a pass goes on
    with the first of the next."""
    waiting: Slots = np.zeros(0, np.int64)
    for _ in range(steps):
        while len(waiting) < batch:
            waiting = np.concatenate([waiting, generator.permutation(stored)])
        yield waiting[:batch]
        waiting = waiting[batch:]
