"""Layer freezing at work inside somebody else's training loop: what is the same in every one of them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from budgeted.budget import BudgetSpent, Compute, Cost, Ledger, parse_compute
from budgeted.errors import BudgetedError
from budgeted.freezing import BlockChain, FreezingPolicy, LayerFreezing
from budgeted.freezing import policy as policy_by_name

log = logging.getLogger("budgeted")


class FreezingAtWork:
    """Knows the engine once the first batch has been seen, charges, and tells what was spent."""

    unseen = "the blocks are not known yet: they are found with the first batch"

    def __init__(
        self,
        policy: FreezingPolicy | str,
        budget: Compute | str | None,
        options: Mapping[str, Any] | None,
        settings: Mapping[str, Any],
    ) -> None:
        if settings and not isinstance(policy, str):
            raise BudgetedError(
                f"{', '.join(settings)}: settings go with a policy's name; this policy is built already"
            )
        self._policy = policy_by_name(policy, **settings) if isinstance(policy, str) else policy
        self._compute = parse_compute(budget) if isinstance(budget, str) else budget
        self._options = dict(options or {})
        self._engine: LayerFreezing | None = None
        self._handles: list[Any] = []
        self._begin(None)

    @property
    def spent(self) -> Cost:
        """What this training spent so far, sittings before a resume included."""
        return self.ledger.spent

    @property
    def frozen_share(self) -> float:
        """Share of the backward that was not run (rule `real`), over all backwards."""
        return self._shares / self._backwards if self._backwards else 0.0

    @property
    def engine(self) -> LayerFreezing:
        """The `LayerFreezing` at work: there once the first batch has been seen."""
        if self._engine is None:
            raise BudgetedError(self.unseen)
        return self._engine

    @property
    def chain(self) -> BlockChain:
        """The blocks, stem first, head last."""
        return self.engine.chain

    def _told(self) -> dict[str, float]:
        """For the logs."""
        spent = self.spent
        return {
            "spent_mac": float(spent.paper), "spent_flop": float(spent.real), "frozen_share": self.frozen_share,
        }  # fmt: skip

    def _begin(self, saved: Mapping[str, Any] | None) -> None:
        """A training begins, or goes on from what `_state` gave."""
        self.ledger, self.budget_spent, self._saved = Ledger(self._compute), False, saved
        self._shares, self._backwards = 0.0, 0
        if saved is not None:
            self.ledger.load_state_dict(saved["ledger"])
            self._shares, self._backwards = float(saved["shares"]), int(saved["backwards"])

    def _state(self, freezing: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "freezing": freezing, "ledger": self.ledger.state_dict(), "shares": self._shares,
            "backwards": self._backwards,
        }  # fmt: skip

    def _attach(self, module: nn.Module, args: Any, kwargs: Any, optimizer: Any) -> LayerFreezing:
        """To what is trained, at its first forward, whose inputs show the shapes."""
        self._engine = LayerFreezing(
            module,
            copy.deepcopy(self._policy),  # another training starts as this one did
            args,
            keywords=kwargs,
            loss="graph",
            optimizer=optimizer,
            ledger=self.ledger,
            **self._options,
        )
        return self._engine

    def _go_on(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._saved is not None:
            self.engine.load_state_dict(self._saved["freezing"])
        self.engine.note_forward(module, args, kwargs)  # its own hook is too late for this one

    def _stop(self, module: nn.Module, step: int, error: BudgetSpent) -> None:
        self.budget_spent = True
        module.zero_grad()  # so that the optimizer moves nothing in this step
        log.warning("training stops in step %d: %s", step, error)

    def _take_hooks_off(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._engine is not None:
            self._engine.remove()
