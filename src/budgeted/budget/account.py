"""Who pays: work of a step is charged with the step, work between steps at once, nothing beyond the budget."""

from __future__ import annotations

from collections.abc import Mapping

from budgeted.budget.cost import NOTHING, Cost, total
from budgeted.budget.ledger import Ledger, Purpose


class Account:
    """A ledger, and what the step under way has run so far beside its own forward and backward."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.in_step = False
        self._aside: dict[Purpose, Cost] = {}
        self._own = NOTHING

    @property
    def aside(self) -> Cost:
        """What was run beside the step under way."""
        return total(self._aside.values())

    def begin_step(self) -> None:
        self.in_step = True
        self._clear()

    def owe(self, own: Cost) -> None:
        """The step's own forward, backward and update: refused if they cannot be paid; if they can, whatever is still
        run beside them leaves enough for them."""
        self.require(own)
        self._own = own

    def end_step(self, costs: Mapping[Purpose, Cost], steps: int = 1) -> dict[Purpose, Cost]:
        """Charge the step, and what was run beside it; answers with all of it by purpose."""
        together = dict(costs)
        for purpose, cost in self._aside.items():
            together[purpose] = together.get(purpose, NOTHING) + cost
        self.drop_step()
        self.ledger.charge(together, steps)
        return together

    def drop_step(self) -> None:
        self.in_step = False
        self._clear()

    def charge(self, purpose: Purpose, cost: Cost) -> None:
        """Charge what was run: with the step under way, or at once between steps."""
        self.require(cost)
        if self.in_step:
            self._aside[purpose] = self._aside.get(purpose, NOTHING) + cost
        else:
            self.ledger.charge({purpose: cost}, steps=0)

    def affords(self, cost: Cost) -> bool:
        """Would this fit into what is left of the compute?"""
        return self.ledger.compute is None or self.ledger.affords(cost + self.aside + self._own)

    def require(self, cost: Cost) -> None:
        """Refuse what cannot be paid, before it is run."""
        if not self.affords(cost):
            self.ledger.refuse(cost + self.aside + self._own)

    def _clear(self) -> None:
        self._aside.clear()
        self._own = NOTHING
