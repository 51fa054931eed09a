"""`budgeted costs`: what every method and every freezing policy costs, in slots and in compute."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from budgeted.bench.compute_costs import Setup, multipliers, policy_costs
from budgeted.bench.costs import Costs as Tables
from budgeted.bench.published import paper_setting
from budgeted.bench.slot_costs import paper_rows, slot_row
from budgeted.budget import parse_bytes
from budgeted.cli.output import Forgiving, refuse_without_folder
from budgeted.errors import BudgetedError
from budgeted.methods import METHODS
from budgeted.runs.config import MOST_BATCH

What = Literal["slots", "multipliers", "policies", "all"]


@dataclass(frozen=True)
class CostsCommand:
    """Print what every method costs: slots of a byte budget, compute of an iteration over ER's, freezing policies.

    Slots are planned; compute is measured by running each method for a few steps on noise. No data are needed. Example:
    budgeted costs multipliers --dataset cifar10 --audit
    """

    what: Annotated[Positional[What], arg(metavar="{slots,multipliers,policies,all}")] = "all"
    """Which table."""
    dataset: str | None = None
    """Which data set's shape; if not given, slots of all the paper's budgets, and compute on cifar10."""
    model: str | None = None
    """Which model; the paper's for its data sets."""
    memory: str | None = None
    """Byte budget: 7998016B, 7.6MB or 7.6MiB; the paper's for its data sets."""
    batch_size: int | None = None
    """Samples in a training batch; the paper's for its data sets."""
    iterations: float = 1.0
    """Training steps per sample."""
    eval_every: int = 100
    """Samples between two evaluations, for methods that train for one."""
    arriving: int | None = None
    """Classes that arrive while a method is measured; a fifth of all if not given."""
    methods: tuple[str, ...] = ()
    """Only these; see `budgeted list methods`."""
    audit: bool = False
    """Count independently what is executed, and print it over what is charged."""
    json: bool = False
    """Print JSON for a script."""
    csv: Path | None = None
    """Write one line per row here."""

    def run_(self) -> None:
        refuse_without_folder(self.csv)
        chosen = [METHODS[name] for name in self.methods] or list(METHODS.values())
        setup = self._setup()
        costs = Tables(setup)
        if self.what in ("slots", "all"):
            alone = self.dataset is not None or self.memory is not None or self.model is not None
            where = (setup.dataset, setup.model, setup.budget, setup.batch_size)
            costs.slots += [slot_row(each, *where) for each in chosen] if alone else paper_rows(chosen)
        if self.what in ("multipliers", "all"):
            for row in multipliers(chosen, setup):
                print(f"{row.method}: {row.over_er['real']:.4f}", file=Forgiving())
                costs.multipliers.append(row)
        if self.what in ("policies", "all"):
            costs.policies += policy_costs(setup)
        print(json.dumps(costs.json(), indent=1) if self.json else costs.markdown())
        if self.csv is not None:
            self.csv.write_text(costs.csv())

    def _setup(self) -> Setup:
        dataset = self.dataset or "cifar10"
        model, memory, batch = self.model, self.memory, self.batch_size
        if model is None or memory is None:
            known = paper_setting(dataset)
            model, memory, batch = model or known.model, memory or f"{known.budget}B", batch or known.batch_size
        if not 2 <= (batch or 16) <= MOST_BATCH:
            raise BudgetedError(f"--batch-size must be 2 to {MOST_BATCH:,}")
        return Setup(
            dataset,
            model,
            parse_bytes(memory),
            batch or 16,
            self.iterations,
            self.eval_every,
            self.arriving,
            self.audit,
        )
