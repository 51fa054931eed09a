"""How many training steps are due: what every sample brings, and what freezing saved on top of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from fractions import Fraction

from budgeted.budget import Compute

_STRETCHES = 20  # of the stream: savings are spent within one
_RECENT = 100  # steps whose mean saving says what the next ones will save


class Due:
    """Training steps that are due, counted in whole parts of one: exact, so that ten tenths are one."""

    def __init__(self, iterations: float) -> None:
        """iterations: what a sample brings as a rule; other amounts are exact to a millionth."""
        self._parts, self._one = 0, Fraction(iterations).limit_denominator(10**6).denominator * 10**6
        self._granted = (0.0, 0)  # the last grant, in iterations and in parts

    @property
    def steps(self) -> int:
        """Whole steps that are due."""
        return self._parts // self._one

    def grant(self, iterations: float) -> None:
        if iterations != self._granted[0]:
            self._granted = (iterations, round(Fraction(iterations) * self._one))
        self._parts += self._granted[1]

    def take(self, steps: int) -> None:
        """These were run, or somebody else runs them, as far as there are so many."""
        self._parts -= min(steps, self.steps) * self._one

    def reset(self, steps: int = 0) -> None:
        """So many are due and no fraction more."""
        self._parts = steps * self._one

    def state(self) -> list[int]:
        return [self._parts, self._one]

    def load_state(self, state: Iterable[int]) -> None:
        parts, one = state
        self._parts = parts * self._one // one


class Savings:
    """What freezing has saved against an even spending of the compute, as iterations that it pays for."""

    def __init__(self, compute: Compute, samples: int) -> None:
        """samples: length of the stream that the compute is spread over."""
        self.compute = compute
        self.samples = samples
        self._recent: deque[float] = deque(maxlen=_RECENT)  # cost of the last steps over the most they might cost

    def note(self, cost: int, most: int) -> None:
        """A step cost this, and might have cost that."""
        self._recent.append(cost / most)

    def iterations(self, before: int, spent: int, most: int) -> float:
        """
        Iterations per sample that the savings pay for within the next twentieth; below zero after overspending.

        before: samples that came before this one.
        spent: compute spent on them.
        most: price of a full batch with nothing frozen; the first, small batches say nothing of what is to come.
        """
        if not self._recent:
            return 0.0
        saved = self.compute.amount * before / self.samples - spent
        stretch = max(1, min(self.samples - before, self.samples // _STRETCHES))
        per_step = most * sum(self._recent) / len(self._recent)
        return saved / (stretch * per_step)

    def state(self) -> list[float]:
        return list(self._recent)

    def load_state(self, state: Iterable[float]) -> None:
        self._recent.extend(float(share) for share in state)
