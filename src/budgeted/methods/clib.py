"""CLIB (Koh et al., ICLR 2022): memory-only training, sample-wise importance, a learning rate that follows the loss.

The importance of a stored sample is how much the loss of the whole memory falls when it is trained on. After a step the
loss of every stored sample is measured; the mean fall d since the last measurement, over the samples that were measured
both times, moves the importance H of the samples trained on since then by an exponential average:

    H_i += (1 - ema) * (d - mean of H over those trained on).

A newcomer starts with the mean importance of its class. When the memory is full, the largest class loses its least
important sample. Two learning rates, one below and one above the present, take turns; when a t-test says that one of
them lets the loss fall faster, it becomes the present one.

Deviations (ours / authors' code, of which the published code is a copy):
- tracking: H moves towards the fall / `H += (1 - ema) * (d + mean(H) / |B|)`, which grows without end;
- measured: after every 10th step / after every step, every 10th on ImageNet: a measurement of 200 slots after every
  step would cost four times the training;
- a turn of a learning rate: by the length of the stream, 200 turns in all / 10 measurements;
- the two learning rates: two steps apart / one step apart, and the first two turns do not count;
- fall over a turn of a learning rate: sum of the measured falls / loss before less loss after;
- augmentation: that of every method here / AutoAugment and CutMix.

Cost: a forward of the whole memory after every `importance_period`-th step, charged as `retrieval`. Bytes: importance,
loss and a mark per slot (9), and the falls under the two learning rates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.limits import limited
from budgeted.methods.lent import LentToMethod
from budgeted.methods.method import METHODS, Method, Named, PartName, Step
from budgeted.replay import Column, Selection
from budgeted.replay.importance import IMPORTANCE

LOSS, TRAINED = "loss", "trained"
_FIRST = 0.1  # share of the stream after which the two learning rates are compared for the first time


@METHODS.register("clib")
@dataclass
class SampleWiseImportance(Method):
    """memory only; the largest class loses the sample that lowers the loss least; the learning rate follows the loss"""

    kept = ("_rate", "_fall", "_steps", "_measured", "_falls", "_turns", "_turn")
    own: ClassVar[frozenset[PartName]] = frozenset({"selection"})
    of_classes: ClassVar[bool] = True
    selection: Named[Selection] = "least-important"

    ema: float = limited(0.9, "from 0 to below 1")
    """weight of the old importance in the moving average"""
    importance_period: int = limited(10, "at least 1")
    """steps between two measurements of the memory's loss"""
    adaptive_rate: bool = True
    """whether the learning rate follows the loss; otherwise it stays as set"""
    rate_step: float = limited(0.95, "between 0 and 1")
    """ratio of the present learning rate to the next higher, and of the next lower to the present"""
    rate_period: int | None = limited(None, "at least 1")
    """measurements in one turn of a learning rate; None: as many as let the two be compared for the first time after a
    tenth of the stream, or 10 where nobody knows how long it is"""
    rate_turns: int = limited(10, "at least 2")
    """turns of each learning rate before they are compared"""
    significance: float = limited(0.05, "between 0 and 0.5")
    """of the t-test that moves the learning rate"""
    _rate: float = field(default=0.0, init=False)  # the present one
    _steps: int = field(default=0, init=False)
    _measured: int = field(default=0, init=False)
    _turn: int = field(default=0, init=False)  # turns that are over: the higher rate has the even ones
    _fall: float = field(default=0.0, init=False)  # of this turn
    _falls: npt.NDArray[np.float64] = field(init=False, repr=False)  # of the turns of the lower rate, and the higher
    _turns: list[int] = field(default_factory=lambda: [0, 0], init=False)  # how many of each there are

    def __post_init__(self) -> None:
        super().__post_init__()
        self._falls = np.zeros((2, self.rate_turns))

    def columns(self, classes: int | None) -> tuple[Column, ...]:
        return (
            Column(IMPORTANCE, (), torch.float32, host=True),
            Column(LOSS, (), torch.float32, host=True),
            Column(TRAINED, (), torch.uint8, host=True),
        )

    def begin(self, learner: LentToMethod) -> None:
        super().begin(learner)
        group = learner.network.optimizer.param_groups[0]
        self._rate = float(group["lr"])
        if self.adaptive_rate and "initial_lr" in group:  # left there by a schedule
            raise BudgetedError(
                "clib moves the learning rate itself: keep learner.schedule=constant and learner.warm_up=0, or set "
                "method.adaptive_rate=false"
            )
        self._take_turn()

    def stored(self, slot: int, place: int | None) -> None:
        """A newcomer is as important as its class, or as all, or not at all."""
        memory = self.learner.memory
        importance = memory.host(IMPORTANCE)
        others = np.flatnonzero(memory.labels == memory.labels[slot])
        if others.size == 1:
            others = np.arange(len(memory))
        others = others[others != slot]
        importance[slot] = importance[others].mean() if others.size else 0.0
        memory.host(LOSS)[slot] = np.nan  # not measured yet

    def after_step(self, step: Step, logits: Tensor) -> None:
        memory = self.learner.memory
        memory.host(TRAINED)[step.slots] = 1
        self._steps += 1
        if self._steps % self.importance_period:
            return
        everything = memory.gather(np.arange(len(memory)))
        answers = self.learner.answers("retrieval", everything.samples)
        losses = F.cross_entropy(answers, everything.labels, reduction="none").numpy()
        self._credit(losses.astype(np.float32))

    def _credit(self, losses: np.ndarray) -> None:
        """The memory's loss was measured: credit its fall to those trained on, and to the learning rate."""
        memory = self.learner.memory
        before, importance, trained = memory.host(LOSS), memory.host(IMPORTANCE), memory.host(TRAINED)
        both = ~np.isnan(before)
        if both.any():
            fall = float((before[both] - losses[both]).mean())
            credited = trained == 1
            importance[credited] += (1 - self.ema) * (fall - importance[credited].mean())
            self._follow(fall)
        before[:] = losses
        trained[:] = 0

    def _follow(self, fall: float) -> None:
        """Let the two learning rates take turns, and move to the better one."""
        if not self.adaptive_rate:
            return
        self._measured += 1
        self._fall += fall
        if not self._turn_over():
            return
        which = int(self._turn % 2 == 0)
        self._turn += 1
        self._falls[which, self._turns[which]] = self._fall
        self._turns[which] += 1
        self._fall = 0.0
        if min(self._turns) >= self.rate_turns:
            chance = better_by_chance(*self._falls)
            if chance < self.significance:
                self._rate *= self.rate_step
            elif chance > 1 - self.significance:
                self._rate /= self.rate_step
            if min(chance, 1 - chance) < self.significance:
                self._turns = [0, 0]
            else:  # the oldest turn of each makes room
                self._falls[:, :-1] = self._falls[:, 1:].copy()
                self._turns = [count - 1 for count in self._turns]
        self._take_turn()

    def _turn_over(self) -> bool:
        """After so many measurements, or after an even part of the stream, with a measurement in it."""
        samples = self.learner.problem.samples
        if self.rate_period is not None or samples is None:
            return self._measured % (self.rate_period or 10) == 0
        return self.learner.arrived >= (self._turn + 1) * samples * _FIRST / (2 * self.rate_turns)

    def _take_turn(self) -> None:
        if self.adaptive_rate:
            for group in self.learner.network.optimizer.param_groups:
                group["lr"] = self._rate / self.rate_step if self._turn % 2 == 0 else self._rate * self.rate_step


def better_by_chance(lower: npt.NDArray[np.float64], higher: npt.NDArray[np.float64]) -> float:
    """Chance of seeing the lower rate this far ahead if it were no better (Welch's one-sided t-test)."""
    if np.ptp(lower) == 0 and np.ptp(higher) == 0:  # no spread: nothing to test by
        return 0.5
    from scipy import stats  # slow to import, and nothing else here needs it

    return float(stats.ttest_ind(lower, higher, equal_var=False, alternative="greater").pvalue)
