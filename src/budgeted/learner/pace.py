"""How many training steps a sample is due, and when training ends: nobody's business but this.

Three ways to be paced. By steps: so many for every sample, and what freezing saved buys more if that is wanted. By a
total of compute over a stream of known length, or by a rate of compute for every sample of a stream without end: the
samples bring compute, and a step is due when enough is there for what steps have cost lately.

Where the length is known, steps may come more often early in the stream, or late: after a share s of it, s ** power of
them have come.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from budgeted.budget import Budget, Compute
from budgeted.budget.account import Account
from budgeted.errors import BudgetedError

log = logging.getLogger("budgeted")
_STRETCHES = 20  # of the stream: savings are spent within one
_RECENT = 100  # steps whose mean cost, over the most they might have cost, says what the next ones will cost


def crowding(parts: int, power: float) -> npt.NDArray[np.float64]:
    """Steps in each of equal parts of the stream, where 1 is as many as in the mean."""
    if power == 1:
        return np.ones(parts)
    return np.diff(np.linspace(0, 1, parts + 1) ** power) * parts


class Pace:
    """Grants steps as samples arrive, and ends training when what is left does not pay for the next one."""

    def __init__(
        self,
        account: Account,
        budget: Budget,
        iterations: float | None,
        samples: int | None,
        *,
        spend_savings: bool = False,
        spending: Sequence[float] = (),
        power: float = 1.0,
    ) -> None:
        """
        iterations: steps for every sample; None leaves it to the compute.
        samples: length of the stream, if known.
        spend_savings: what freezing saves buys more steps, spread over the rest of the stream.
        spending: shares of the compute that are planned to be spent after equal parts of the stream; none: as by
            the power.
        power: after a share s of the stream, s ** power of the steps have come.
        """
        if iterations is not None and (not math.isfinite(iterations) or iterations < 0):
            raise BudgetedError(f"iterations per sample must not be negative or endless, got {iterations}")
        if spend_savings and (samples is None or budget.compute is None):
            raise BudgetedError(
                "spend_savings spreads a compute budget over a stream: give both the budget and samples"
            )
        if power != 1 and (samples is None or (budget.compute is not None and budget.compute.each)):
            raise BudgetedError(
                f"learner.pace_power={power} goes by the length of the stream: say how many samples there are "
                "(DataFacts.samples) under a total of compute, or leave it at 1"
            )
        self.iterations = iterations
        self.power = power
        self.spent_up = False
        self.spend_savings = spend_savings
        self._account, self._compute, self._samples = account, budget.compute, samples
        self.spending = tuple(spending)
        self._parts = 0  # steps that are due, in whole parts of one: exact, so that ten tenths are one
        self._one = Fraction(iterations or 1).limit_denominator(10**6).denominator * 10**6
        self._granted = (0.0, 0)  # the last grant, in steps and in parts
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._bank = 0.0  # what freezing has saved and nothing was bought for yet
        self._dearest_extra = 0  # of what nobody can say before a step: draws, similarity, a method's own work
        if iterations is None and budget.compute is not None and samples is None and not budget.compute.each:
            raise BudgetedError(
                "a total of compute is spread over a stream of known length: say how many samples there are, "
                "give iterations, or give a rate such as 2GFLOP/sample"
            )

    # -- steps that are due ------------------------------------------------------------------------------------

    @property
    def due(self) -> int:
        """Whole steps that are due."""
        return self._parts // self._one

    def arrive(self, before: int, most: Callable[[], int]) -> None:
        """
        A sample has arrived: grant what it is due.

        before: samples that came before it.
        most: price of a full batch with nothing frozen; the first, small batches say nothing of what is to come.
        """
        if self.iterations is None:
            return self._grant(self._paid(before, most))
        saved = self._saved(before, most) if self.spend_savings else 0.0
        if self.power == 1:
            return self._grant(self.iterations + saved)
        self._grant(saved)
        whole = self.iterations * (self._samples or 0) * self._one
        self._parts += round(whole * self._come(before + 1)) - round(whole * self._come(before))  # so none is lost

    def take(self, steps: int = 1) -> None:
        """These are run, as far as there are so many."""
        self._parts -= min(steps, self.due) * self._one

    def reset(self, steps: int = 0) -> None:
        """So many are due and no fraction more."""
        self._parts = steps * self._one

    def _grant(self, steps: float) -> None:
        steps = max(0.0, steps)
        if steps != self._granted[0]:
            self._granted = (steps, round(Fraction(steps) * self._one))
        self._parts += self._granted[1]

    def _paid(self, before: int, most: Callable[[], int]) -> float:
        """Steps that this sample's part of the compute pays for, at what steps have cost lately."""
        if self._compute is None:
            return 1.0
        left = self._account.ledger.left or 0
        waiting = self._parts / self._one * self._per_step(most)  # granted, and not yet spent
        parts: float = 1 if self._compute.each or self._samples is None else max(1, self._samples - before)
        if self.power != 1 and parts > 1:
            parts = (1 - self._come(before)) / (self._come(before + 1) - self._come(before))
        return (left - waiting) / parts / self._per_step(most)

    def _come(self, arrived: int) -> float:
        """Share of the steps that have come with so many samples."""
        assert self._samples is not None
        return float(min(1.0, arrived / self._samples) ** self.power)

    def _saved(self, before: int, most: Callable[[], int]) -> float:
        """Steps more for this sample, so that what freezing saved is spent within the next twentieth of the stream, as
        far as less was spent than planned. Where nothing is frozen a plan that was a little off moves no step."""
        assert self._compute is not None
        assert self._samples is not None
        if not self._bank:
            return 0.0
        spent = self._account.ledger.spent.under(self._compute.rule)
        unspent = self._compute.over(self._samples).amount * self._planned(before / self._samples) - spent
        stretch = max(1, min(self._samples - before, self._samples // _STRETCHES))
        given = max(0.0, min(self._bank, unspent)) / stretch
        self._bank -= given
        return given / self._per_step(most)

    def _planned(self, share: float) -> float:
        """Share of the compute that is planned to be spent when this share of the stream has arrived."""
        if not self.spending:
            return share if self.power == 1 else share**self.power
        place = share * len(self.spending)
        whole = min(int(place), len(self.spending) - 1)
        start = self.spending[whole - 1] if whole else 0.0
        return start + (self.spending[whole] - start) * (place - whole)

    def _per_step(self, most: Callable[[], int]) -> float:
        return most() * (sum(self._recent) / len(self._recent) if self._recent else 1.0)

    # -- the end of training -----------------------------------------------------------------------------------

    def affords(self, most: int, arrived: int, steps: int) -> bool:
        """Can a step that costs so much at most be paid, and as much beside it as was ever met? If not, training ends
        here; under a rate, the next sample brings more."""
        if self._compute is None or (self._account.ledger.left or 0) >= most + 2 * self._dearest_extra:
            return True
        self.end(arrived, steps)
        return False

    def met(self, *extras: int) -> None:
        """A step had so much that nobody could say beforehand."""
        self._dearest_extra = max(self._dearest_extra, *extras)

    def note(self, cost: int, most: int, saved: int = 0) -> None:
        """A step cost this, at most it might have cost that; so much was saved by what rested in it."""
        if self._compute is not None and most:
            self._recent.append(cost / most)
            self._bank += max(0, saved)

    def end(self, arrived: int, steps: int) -> None:
        """What is left of the compute pays for no further training: say so, once."""
        if self._compute is not None and self._compute.each:
            return
        if not self.spent_up:
            self.spent_up = True
            log.warning(
                "the compute budget of %s is spent after %d samples and %d steps: from here on samples are stored and "
                "predictions given, but nothing is trained",
                self._compute,
                arrived,
                steps,
            )

    def raised(self, compute: Compute) -> None:
        """The budget is this from now on: what was refused may be run."""
        self._compute, self.spent_up = compute, False

    # -- saving ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "due": [self._parts, self._one],
            "recent": list(self._recent),
            "bank": self._bank,
            "extra": self._dearest_extra,
            "spent_up": self.spent_up,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        parts, one = state["due"]
        self._parts = int(parts) * self._one // int(one)
        self._recent.extend(float(share) for share in state["recent"])
        self._bank = float(state["bank"])
        self._dearest_extra = int(state["extra"])
        self.spent_up = bool(state["spent_up"])
