"""The ledger: what was spent, on what, and whether the next step can still be paid.

Every cost carries both rules; the budget is held under the rule that it was given in. A charge that does not fit is
refused before it is written down, so the ledger never shows more than the budget.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from budgeted.budget.cost import NOTHING, Cost, total
from budgeted.budget.units import Compute, Rule, format_compute, parse_bytes, parse_compute
from budgeted.errors import BudgetedError, UnknownName

Purpose = Literal["forward", "backward", "optimizer", "fisher", "similarity", "retrieval", "evaluation_training"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


class BudgetSpent(BudgetedError):
    """The charge does not fit into what is left; nothing was charged."""


@dataclass(frozen=True, slots=True, init=False)
class Budget:
    """What may be spent: compute under one rule, and bytes that persist between steps. None means no limit.

    Both are taken as text, too: Budget("5TFLOP", "2MB"), or a rate of compute such as "2GFLOP/sample".
    """

    compute: Compute | None
    bytes: int | None

    def __init__(self, compute: Compute | str | None = None, bytes: int | str | None = None) -> None:
        if isinstance(compute, str):
            compute = parse_compute(compute)
        if isinstance(bytes, str):
            bytes = parse_bytes(bytes)
        if compute is not None and not isinstance(compute, Compute):
            raise BudgetedError(f"{compute!r} is no compute: give a quantity with its unit, such as '5TFLOP'")
        if bytes is not None and (isinstance(bytes, bool) or not isinstance(bytes, int) or bytes < 0):
            raise BudgetedError(f"{bytes!r} is no number of bytes: give a whole number, or '2MB'")
        object.__setattr__(self, "compute", compute)
        object.__setattr__(self, "bytes", bytes)

    def with_compute(self, amount: int, rule: Rule) -> Budget:
        return Budget(Compute(amount, rule), self.bytes)

    def without_bytes(self) -> Budget:
        return Budget(self.compute, None)

    def without_compute(self) -> Budget:
        return Budget(None, self.bytes)


@dataclass(slots=True)
class Ledger:
    """Spending by purpose under both rules, with wall-clock seconds and peak memory kept beside it."""

    compute: Compute | None = None
    steps: int = 0
    spent_on: dict[Purpose, Cost] = field(default_factory=lambda: dict.fromkeys(PURPOSES, NOTHING))
    seconds_on: dict[str, float] = field(default_factory=dict)
    arrived: int = 0
    """samples that have arrived: each brings its part where the compute is a rate"""

    @property
    def allowed(self) -> int | None:
        """What may be spent so far under the budget's rule; None without a budget."""
        if self.compute is None:
            return None
        return self.compute.amount * self.arrived if self.compute.each else self.compute.amount

    @property
    def spent(self) -> Cost:
        return total(self.spent_on.values())

    @property
    def left(self) -> int | None:
        """What is left under the budget's rule; None without a budget."""
        allowed = self.allowed
        return None if self.compute is None or allowed is None else allowed - self.spent.under(self.compute.rule)

    def affords(self, cost: Cost) -> bool:
        return self.compute is None or cost.under(self.compute.rule) <= (self.left or 0)

    def charge(self, costs: Mapping[Purpose, Cost], steps: int = 1) -> None:
        """Charge one step, or work between steps, all of its purposes or none."""
        for purpose, cost in costs.items():
            if purpose not in self.spent_on:
                raise UnknownName("purpose", purpose, PURPOSES)
            if cost.paper < 0 or cost.real < 0:
                raise BudgetedError(f"a charge cannot be negative: {purpose} {cost}")
        step = total(costs.values())
        if not self.affords(step):
            self.refuse(step)
        for purpose, cost in costs.items():
            self.spent_on[purpose] += cost
        self.steps += steps

    def refuse(self, cost: Cost) -> NoReturn:
        """Say what a step would cost and what is left."""
        if self.compute is None:
            raise BudgetSpent("there is no compute budget to refuse by")
        rule = self.compute.rule
        raise BudgetSpent(
            f"the step costs {format_compute(cost.under(rule), rule)}, but only "
            f"{format_compute(max(self.left or 0, 0), rule)} of {self.compute} is left: "
            "raise the compute budget or stop training here"
        )

    @contextlib.contextmanager
    def clock(self, what: str) -> Iterator[None]:
        """Keep the wall-clock seconds of what happens inside."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_on[what] = self.seconds_on.get(what, 0.0) + time.perf_counter() - start

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, ready for JSON."""
        return {
            "steps": self.steps,
            "spent": {name: [cost.paper, cost.real] for name, cost in self.spent_on.items()},
            "seconds": dict(self.seconds_on),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"steps", "spent", "seconds"} <= set(state):
            raise BudgetedError("this is no saved state of a ledger: it needs steps, spent and seconds")
        unknown = set(state["spent"]) - set(PURPOSES)
        if unknown:
            raise UnknownName("purpose", sorted(unknown)[0], PURPOSES)
        self.steps = int(state["steps"])
        self.spent_on = dict.fromkeys(PURPOSES, NOTHING)
        for name, (paper, real) in state["spent"].items():
            self.spent_on[name] = Cost(int(paper), int(real))
        self.seconds_on = {name: float(seconds) for name, seconds in state["seconds"].items()}


def peak_memory() -> int:
    """Peak resident bytes of this process since it started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
