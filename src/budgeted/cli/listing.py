"""`budgeted list`: the names that other commands take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rich import box
from rich.table import Table
from tyro.conf import Positional, arg

from budgeted import models, streams
from budgeted.bench.recipes import RECIPES
from budgeted.cli.console import wide_console
from budgeted.freezing.registry import POLICIES
from budgeted.methods import METHODS
from budgeted.problems import PROBLEMS
from budgeted.replay import CODECS, RETRIEVALS, SELECTIONS

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

    def run_(self) -> None:
        rows = _ROWS[self.what]()
        if self.json:
            print(json.dumps(rows, indent=1))
            return
        table = Table(box=box.SIMPLE_HEAD)
        for column in rows[0]:
            table.add_column(column)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        wide_console().print(table)


def _methods() -> list[dict[str, Any]]:
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


def _datasets() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in streams.names():
        info = streams.known_info(name)
        facts: tuple[Any, ...] = ("?",) * 4  # of a package's own, which says so when it is loaded
        if info is not None:
            facts = (info.classes, "x".join(map(str, info.input_shape)), info.train_size, info.test_size)
        rows.append({"name": name, **dict(zip(("classes", "input", "train", "test"), facts, strict=True))})
    return rows


def _recipes() -> list[dict[str, Any]]:
    made = {name: make() for name, make in RECIPES.items()}
    return [{"name": name, "runs": len(made[name].runs), "question": made[name].question} for name in made]


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


_ROWS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "datasets": _datasets,
    "models": lambda: [{"name": name, "summary": models.describe(name)} for name in models.names()],
    "freezing": lambda: [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in POLICIES.items()],
    "retrieval": lambda: [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in RETRIEVALS.items()],
    "selection": lambda: [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in SELECTIONS.items()],
    "codecs": lambda: [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in CODECS.items()],
    "problems": lambda: [{"name": name, "summary": _first_line(kind.__doc__)} for name, kind in PROBLEMS.items()],
    "streams": lambda: [{"name": name} for name in streams.order_names()],
    "recipes": _recipes,
}
