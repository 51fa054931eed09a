"""`budgeted list`: the names that other commands take.

Our own are written down in `lists.json`, so that a list comes without importing torch; where installed packages bring
parts of their own the list is made anew. After a change of ours, `python -m budgeted.cli.listing` writes the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from rich import box
from rich.table import Table
from tyro.conf import Positional, arg

from budgeted.bench.speed import kept_rate, measured_rate, seconds_of
from budgeted.cli.console import wide_console
from budgeted.errors import BudgetedError
from budgeted.registry import load

What = Literal[
    "methods", "datasets", "models", "freezing", "retrieval", "selection", "codecs", "problems", "streams", "recipes"
]


@dataclass(frozen=True)
class List:
    """List what there is: methods, data sets, models, parts of learners, streams or recipes."""

    what: Annotated[Positional[What], arg(metavar="WHAT")]
    """What to list: methods, datasets, models, freezing, retrieval, selection, codecs, problems, streams or recipes."""
    json: bool = False
    """Print JSON for a script."""
    measure: bool = False
    """With recipes: measure the speed of this machine anew. It is measured once and kept otherwise."""

    def run_(self) -> None:
        rows = _known(self.what)
        if self.what == "recipes":
            rows = _with_costs(rows, self._speed(), self.json)
        elif self.measure:
            raise BudgetedError("--measure is for `budgeted list recipes`")
        if self.json:
            print(json.dumps(rows, indent=1))
            return
        table = Table(box=box.SIMPLE_HEAD)
        for column in rows[0]:  # the first is typed again: it is never cut
            table.add_column(column, no_wrap=column == "name", max_width=_NARROW.get(column))
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console = wide_console()
        console.print(table)
        if self.what == "datasets":
            console.print(
                "your own: folder:PATH, manifest:FILE, wds:PATTERN, hf:NAME, FILE.npz, FILE.py:NAME", highlight=False
            )
        elif self.what in _GROUPS:
            console.print("your own: FILE.py:NAME or package.module:NAME", highlight=False)

    def _speed(self) -> float:
        found = None if self.measure else kept_rate()
        if found is None:
            print("measuring the speed of this machine, which is kept", file=sys.stderr)
            found = measured_rate()
        return found


Rows = list[dict[str, Any]]
LISTS = "lists.json"
_GROUPS = {"methods": "methods", "models": "models", "freezing": "freezing", "retrieval": "retrievals"}
_GROUPS |= {"selection": "selections", "datasets": "datasets", "codecs": "codecs", "problems": "problems"}
"""lists that an installed package may add to, and the group of its entry points"""


def _known(what: What) -> Rows:
    """What is written down, or what there is where others add to it."""
    if what in _GROUPS and entry_points(group=f"budgeted.{_GROUPS[what]}"):
        return made(what)
    rows: Rows = json.loads((files(__package__) / LISTS).read_text(encoding="utf-8"))[what]
    return rows


def made(what: What) -> Rows:
    """The list as the registries have it: this imports everything."""
    return _ROWS[what]()


def _methods() -> Rows:
    from budgeted.methods import METHODS

    return [
        {
            "name": method.name,
            "summary": method.summary(),
            "selection": method.selection,
            "retrieval": method.retrieval,
            "freezing": method.freezing,
        }
        for method in METHODS.values()
    ]


def _datasets() -> Rows:
    from budgeted import streams

    rows: Rows = []
    for name in streams.names():
        info = streams.known_info(name)
        facts: tuple[Any, ...] = ("?",) * 4  # of a package's own, which says so when it is loaded
        if info is not None:
            facts = (info.classes, "x".join(map(str, info.input_shape)), info.train_size, info.test_size)
        rows.append({"name": name, **dict(zip(("classes", "input", "train", "test"), facts, strict=True))})
    return rows


def _models() -> Rows:
    from budgeted import models

    return [{"name": name, "summary": models.describe(name)} for name in models.names()]


def _parts(registry: str) -> Rows:
    """The classes of a registry, which is named as `module:NAME`."""
    return [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in load(registry).items()]


def _streams() -> Rows:
    from budgeted import streams

    return [{"name": name} for name in streams.order_names()]


def _recipes() -> Rows:
    from budgeted.bench.recipes import RECIPES

    recipes = {name: make() for name, make in RECIPES.items()}
    return [{"name": name, "runs": len(each.runs), "question": each.question} for name, each in recipes.items()]


COSTS = "recipe_costs.json"
"""Operations of each recipe's runs, which takes minutes to find out; written with the lists."""


def _with_costs(rows: Rows, speed: float, exact: bool) -> Rows:
    """Columns of what each recipe takes, about, evaluations included: compute, and hours of one core here."""
    costs = json.loads((files(__package__) / COSTS).read_text(encoding="utf-8"))
    found: Rows = []
    for row in rows:
        cost = costs.get(row["name"])
        hours = None if cost is None else seconds_of(cost, row["runs"], speed) / 3600
        said: tuple[Any, Any] = (cost, hours) if exact else (_compute(cost), _hours(hours))
        found.append({
            "name": row["name"], "runs": row["runs"], "FLOP, about": said[0], "hours here": said[1],
            "question": row["question"],
        })  # fmt: skip
    return found


_NARROW = {"FLOP, about": 7, "hours here": 7}
"""widths that leave room for the question on a terminal of 80 columns"""


def _hours(hours: float | None) -> str:
    if hours is None:  # questions over pictures, measurements, calculations
        return "not counted"
    return f"{hours:.2f}" if hours < 1 else f"{hours:.1f}" if hours < 100 else f"{hours:,.0f}"


def _compute(cost: int | None) -> str:
    """Without torch: thousands of operations by their letter."""
    if cost is None:
        return ""
    unit, letter = next(((unit, letter) for unit, letter in _LETTERS if cost >= unit), (1, ""))
    return f"{cost / unit:.3g}{letter}"


_LETTERS = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"))


def _recipe_costs() -> dict[str, int]:
    """Of recipes all of whose runs can be priced."""
    from budgeted.bench.recipe_costs import cost_of
    from budgeted.bench.recipes import RECIPES

    costs = {name: cost_of(make().runs) for name, make in RECIPES.items()}
    return {name: cost.total for name, cost in costs.items() if cost.runs and not cost.unpriced}


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


_ROWS: dict[str, Callable[[], Rows]] = {
    "methods": _methods,
    "datasets": _datasets,
    "models": _models,
    "freezing": partial(_parts, "budgeted.freezing:POLICIES"),
    "retrieval": partial(_parts, "budgeted.replay:RETRIEVALS"),
    "selection": partial(_parts, "budgeted.replay:SELECTIONS"),
    "codecs": partial(_parts, "budgeted.replay:CODECS"),
    "problems": partial(_parts, "budgeted.problems:PROBLEMS"),
    "streams": _streams,
    "recipes": _recipes,
}


if __name__ == "__main__":
    everything = {what: made(what) for what in get_args(What)}
    Path(__file__).with_name(LISTS).write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    Path(__file__).with_name(COSTS).write_text(json.dumps(_recipe_costs(), indent=1) + "\n")
