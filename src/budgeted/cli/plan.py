"""`budgeted plan`: what a budget buys, before any data is there."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rich import box
from rich.table import Table
from tyro.conf import UseAppendAction, arg

from budgeted import streams
from budgeted.budget import format_bytes, format_compute, total
from budgeted.cli.console import wide_console
from budgeted.cli.recommend import recommend_for
from budgeted.cli.set_argument import with_pairs
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig
from budgeted.runs.plan import Plan as LearnerPlan
from budgeted.runs.plan import make_plan
from budgeted.runs.run import DEFAULT_SLOTS


@dataclass(frozen=True)
class PlanCommand:
    """Print what a budget buys: slots, bytes by item, compute by item under both rules, iterations, predicted time.

    Example: budgeted plan --method al-sar --dataset cifar10 --model resnet32 --memory 7998016B --iterations 1
    --rule paper. What to take for a budget: budgeted plan --recommend --memory 5MB --compute 40TFLOP --limit 10000
    """

    method: str = "cram"
    """What learns: see `budgeted list methods`."""
    dataset: str = "cifar10"
    """Which data set; without its files a plan goes by its shape and size, and by classes of one size."""
    data: str | None = None
    """Folder with the data sets, whose labels say what arrives when; the user's cache folder if not given."""
    stream: str = "gaussian"
    """In which order samples arrive: gaussian, disjoint, blurry or domain; what some methods cost depends on it."""
    model: str = ""
    """Which model: see `budgeted list models`. If not given, resnet32; cnn8 for the 8 x 8 digits."""
    memory: str | None = None
    """Byte budget: 7998016B, 7.6MB or 7.6MiB."""
    slots: int | None = None
    """Places in the memory, instead of --memory (200 if neither is given)."""
    iterations: float | None = None
    """Training steps per sample."""
    compute: str | None = None
    """Compute budget instead of --iterations: 171.94TMAC or 350TFLOP."""
    rule: Literal["paper", "real"] = "real"
    """How bytes are counted: real (every byte that persists) or paper (as the paper's tables)."""
    batch_size: int = 16
    """Samples in a training batch."""
    freezing: str | None = None
    """Replace the method's freezing."""
    codec: str | None = None
    """Replace the method's codec."""
    problem: str | None = None
    """What is learned, if not classes of images."""
    retrieval: str | None = None
    """Replace the method's retrieval."""
    eval_every: int = 100
    """Samples between two evaluations, before which some methods train."""
    limit: int | None = None
    """Samples of the stream, if not the whole training set."""
    seed: int = 1
    """Of the run: in which order its samples arrive, where the data are there."""
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Any other setting."""
    measure: bool = True
    """Run nothing: leave out the predicted time, and what the method runs beside a plain step."""
    recommend: bool = False
    """Say what to take for --memory and --compute: network, codec, batch, settings, from what our own runs came to."""
    json: bool = False
    """Print JSON for a script."""

    def run_(self) -> None:
        if self.recommend:
            return recommend_for(self)
        info = streams.info(self.dataset)
        of_a_run = {item.name for item in dataclasses.fields(RunConfig)}
        given = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name in of_a_run}
        if self.compute is None and self.iterations is None:
            given["iterations"] = 1.0
        config = RunConfig(**given, settings=with_pairs({}, self.set))
        plan = make_plan(
            config.build_method(),
            info,
            config.network,
            settings=config.build_settings(info.flips, info.problem),
            samples=self.limit,
            slots=DEFAULT_SLOTS if self.slots is None and self.memory is None else self.slots,
            budget=config.budget(),
            iterations=config.iterations,
            rule=self.rule,
            stream=self.stream,
            eval_every=self.eval_every,
            seed=self.seed,
            problem=config.problem,
            measure=self.measure,
            dataset=self._data_if_there,
        )
        if self.json:
            print(json.dumps(_as_json(plan), indent=1))
        else:
            _print(plan)

    def _data_if_there(self) -> streams.Dataset | None:
        """What arrives when, and pictures to estimate slots from; without them a plan goes by what is usual."""
        try:
            return streams.load(self.dataset, self.data, test=False)
        except BudgetedError:
            if self.data is not None:
                raise
            return None


def _as_json(plan: LearnerPlan) -> dict[str, Any]:
    found = dataclasses.asdict(plan)
    del found["typical"]
    found["slots_estimated_from"] = plan.typical and plan.typical.looked_at
    found["bytes"]["total"] = sum(plan.bytes.values())
    return found


def _slots(plan: LearnerPlan) -> str:
    if plan.slots is None:
        return "slots as the pictures take (give --data to estimate them)"
    if plan.typical is None:
        return f"{plan.slots:,} slots"
    return f"about {plan.slots:,} slots ({plan.typical.each:.0f} bytes each, from {plan.typical.looked_at} samples)"


def _print(plan: LearnerPlan) -> None:
    console = wide_console()
    console.print(
        f"{plan.method} on {plan.dataset} with {plan.model}: {plan.samples:,} samples, batch {plan.batch_size}, "
        f"{plan.iterations:g} iterations per sample ({plan.steps:,} in all)",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, title=f"bytes (rule {plan.rule})", title_justify="left")
    table.add_column("item")
    table.add_column("bytes", justify="right")
    for name, count in plan.bytes.items():
        table.add_row(f"memory, {_slots(plan)}" if name == "memory" else name, f"{count:,}")
    table.add_section()
    all_bytes = sum(plan.bytes.values())
    table.add_row("all", f"{all_bytes:,} ({format_bytes(all_bytes)})")
    console.print(table)
    table = Table(box=box.SIMPLE_HEAD, title="compute with nothing frozen", title_justify="left")
    table.add_column("item")
    for rule in ("paper", "real"):
        table.add_column(f"a step, rule {rule}", justify="right")
    for rule in ("paper", "real"):
        table.add_column(f"the run, rule {rule}", justify="right")
    for name, cost in [*plan.per_step.items(), ("all", total(plan.per_step.values()))]:
        run = cost * plan.steps
        row = (
            [format_compute(c.paper, "paper") for c in (cost, run)],
            [format_compute(c.real, "real") for c in (cost, run)],
        )
        if name == "all":
            table.add_section()
        table.add_row(name, row[0][0], row[1][0], row[0][1], row[1][1])
    console.print(table)
    if plan.seconds is not None:
        console.print(
            f"predicted training time here: {plan.seconds / 60:.1f} minutes "
            f"({1000 * plan.seconds / max(1, plan.steps):.1f} ms a step, measured over a few)",
            highlight=False,
        )
