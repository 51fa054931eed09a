"""The fair table: all methods at the same executed compute and bytes, on two footings, each at the better of two rates.

As published, a method has its own selection, retrieval and share of the stream in a batch. On one footing every method
trains from the memory alone, which is balanced greedily and drawn from by class, so that a method's own idea can be
told from the company it keeps; that is for methods whose idea is a loss, a term or a second network.

The learning rate of every row is chosen by one rule, before the table: the better A_AUC of two rates on a shorter
stream and a seed that is not in the table (`choose-rate`); on a tie the lower one. Forwards and evaluations are in
bfloat16, those of rates and tables alike. Methods that are not there yet are left out, and are taken up by their names
when they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from budgeted import streams
from budgeted.bench.protocols import (
    EQUAL_COMPUTE,
    Recipe,
    at_equal_compute,
    balanced,
    cpu_fast,
    in_lower_precision,
    over_seeds,
    with_settings,
)
from budgeted.bench.sweep import places
from budgeted.bench.table import find_runs
from budgeted.budget import parse_compute
from budgeted.errors import BudgetedError
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from budgeted.runs.plan import Planner

COMPARED = (
    "vanilla", "al", "sar", "al-sar", "er", "der++", "mir", "aser", "ewc", "ocs", "cama", "bic", "gdumb", "rm", "clib",
    "lider", "remind", "memo", "x-der", "lider-x-der", "ccl-dc", "sparcl", "trire",
)  # fmt: skip
"""all methods of the table, those that are not there yet among them"""
OWN_IDEA = ("der++", "cama", "ewc", "bic", "lider-er", "memo", "x-der", "lider-x-der", "ccl-dc", "sparcl", "trire")
"""whose idea is a loss, a term or a second network"""
RATES = ("3e-4", "1e-3")
CHOSEN_ON, CHOSEN_AT = 11, 2_500
"""seed and samples of the stream on which rates are chosen"""
SEEDS = (1, 2, 3)
PAPER_CHARGES = {
    "ewc": 1.0, "mir": 4.12, "ocs": 2.0, "x-der": 2.33, "lider-x-der": 2.33, "memo": 1.49, "ccl-dc": 4.66,
    "remind": 0.88,
}  # fmt: skip
"""An iteration over ER's, as the paper prints it: of its methods whose compute or bytes we charge otherwise."""
RATE = "learner.learning_rate"
Rates = Mapping[str, str]
"""learning rates by row"""


def protocol(method: str) -> RunConfig:
    """`cpu-fast` in lower precision: rates and tables are of the same arithmetic."""
    return in_lower_precision(cpu_fast(method))


def published() -> list[RunConfig]:
    """Every method that is there as its authors have it; Vanilla with balanced classes and with a plain reservoir."""
    vanilla = protocol("vanilla")
    controls = [balanced(vanilla), with_settings(vanilla, {"learner.selection": "reservoir"})]
    return [at_equal_compute(each) for each in [*(protocol(name) for name in COMPARED if name in METHODS), *controls]]


def on_one_footing() -> list[RunConfig]:
    """Batches from the memory alone, greedy balancing, classes drawn alike where a method defines no retrieval."""
    found = [balanced(protocol("vanilla"))]
    for name in OWN_IDEA:
        if name not in METHODS or not METHODS[name].trains:
            continue
        config = with_settings(protocol(name), {"method.stream_share": "0", "learner.selection": "greedy-balanced"})
        found.append(config if "retrieval" in METHODS[name].own else balanced(config))
    return [at_equal_compute(each) for each in found]


def er_at_the_steps_of(other: RunConfig, iterations_of: Callable[[RunConfig], float]) -> RunConfig:
    """ER with as many steps as another method can pay for: what that method's choice is worth, apart from its price."""
    return replace(protocol("er"), iterations=round(iterations_of(other), 4))


def planned_iterations(config: RunConfig) -> float:
    """Steps per sample that the plan of a run finds in its compute."""
    info = streams.info(config.dataset)
    planner = Planner.of_run(config, info, config.limit or info.train_size)
    return planner.terms(config.budget(), config.slots, config.iterations, "real").iterations


def choose_rate() -> Recipe:
    total = parse_compute(EQUAL_COMPUTE)
    part = total.amount * CHOSEN_AT // (protocol("er").limit or 1)
    rows = {row_of(config): config for config in (*published(), *on_one_footing())}
    shorter = [replace(each, limit=CHOSEN_AT, compute=f"{part}FLOP") for each in rows.values()]
    return Recipe(
        "Which of two learning rates suits each row of the fair table? A shorter stream, a seed that is not in it.",
        over_seeds([with_settings(config, {RATE: rate}) for config in shorter for rate in RATES], (CHOSEN_ON,)),
    )


def chosen_rates(choosing: Recipe, name: str, out: Path) -> Rates:
    """From the records of a recipe that tries rates, in this folder: for each row the rate with the better A_AUC."""
    found = places(choosing.runs, out)
    missing = sum(place.state != "finished" for place in found)
    if missing:
        raise BudgetedError(
            f"{missing} of {len(found)} runs of {name} are not finished in {out}: "
            f"`budgeted sweep {name} --out {out}` first"
        )
    best: dict[str, tuple[float, str]] = {}
    for place in found:  # the lower rate comes first, and stays on a tie
        row, reached = row_of(place.config), float(find_runs([place.folder])[0].summary["a_auc"])
        if row not in best or reached > best[row][0]:
            best[row] = reached, place.config.settings[RATE]
    return {row: rate for row, (_, rate) in best.items()}


def as_published(rates: Rates, iterations_of: Callable[[RunConfig], float] = planned_iterations) -> Recipe:
    configs = [at_rate(config, rates) for config in published()]
    mir = next(config for config in configs if config.method == "mir")
    control = at_rate(er_at_the_steps_of(mir, iterations_of), rates)
    return Recipe(
        "Which method learns most from the same executed compute and bytes, as published? Protocol cpu-fast.",
        over_seeds([*configs, control], SEEDS),
    )


def one_footing(rates: Rates) -> Recipe:
    return Recipe(
        "What is each method's own idea worth, on one footing? Memory-only, balanced batches, protocol cpu-fast.",
        over_seeds([at_rate(config, rates) for config in on_one_footing()], SEEDS),
    )


def paper_charges(rates: Rates) -> Recipe:
    """The iterations and slots that the paper's own accounting gives; `as-published` has all at an honest price."""
    configs = [
        replace(protocol(name), iterations=round(1 / charge, 3), byte_rule="paper")
        for name, charge in PAPER_CHARGES.items()
    ]
    return Recipe(
        "Does it change the order of methods to charge them as the paper does? Gaussian stream, protocol cpu-fast.",
        over_seeds([at_rate(config, rates) for config in configs], SEEDS[:2]),
    )


def row_of(config: RunConfig) -> str:
    """What a learning rate is chosen for: the method and its parts and settings, whatever the stream and the budget."""
    settings = {key: value for key, value in config.settings.items() if key != RATE}
    return json.dumps([config.method, config.retrieval, config.freezing, settings], sort_keys=True)


def at_rate(config: RunConfig, rates: Rates) -> RunConfig:
    return with_settings(config, {RATE: rates[row_of(config)]} if rates else {})


FROM_RATES: dict[str, Callable[[Rates], Recipe]] = {
    "as-published": as_published,
    "one-footing": one_footing,
    "paper-charges": paper_charges,
}
"""recipes that are made from the records of `choose-rate`"""


def unrated() -> dict[str, Callable[[], Recipe]]:
    """These recipes before there are records, for a list of what there is: the same runs, at the default rate."""
    return {
        "choose-rate": choose_rate,
        "as-published": lambda: as_published({}, lambda config: 1.0),
        "one-footing": lambda: one_footing({}),
        "paper-charges": lambda: paper_charges({}),
    }
