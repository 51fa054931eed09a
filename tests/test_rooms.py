"""Imports between rooms point downwards only; the checker is itself checked on made-up trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "budgeted"

TOP_TO_BOTTOM = (
    "cli",
    "bench",
    "runs",
    "learner",
    "methods",
    "plugin",
    "integrations",
    "problems",
    "replay",
    "network",
    "freezing",
    "streams",
    "models",
    "audit",
    "budget",
    "registry",
    "limits",
    "errors",
    "later",
)
# The audit measures what the others claim, so it shares no code with them and none of them leans on it.
MAY_IMPORT_AUDIT = {"cli", "bench", "audit"}
AUDIT_MAY_IMPORT = {"audit", "errors"}
# The package's own files: they stand above every room, and rooms take nothing from them but the version.
DOORS = {"__init__", "__main__"}


def violations(package: Path) -> list[str]:
    """One line for every import in the package that the order of rooms forbids."""
    return [
        f"{file.relative_to(package)}:{line}: {reason}"
        for file in sorted(package.rglob("*.py"))
        for line, reason in file_violations(file, package)
    ]


def file_violations(file: Path, package: Path) -> Iterator[tuple[int, str]]:
    parts = file.relative_to(package).with_suffix("").parts
    room = parts[0]
    if room in DOORS and len(parts) == 1:
        return
    if room not in TOP_TO_BOTTOM:
        yield 1, f"room {room!r} has no place in the order"
        return
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        for target in imported(node, (package.name, *parts[:-1])):
            if target[0] == package.name and (reason := objection(room, target[1:])):
                yield getattr(node, "lineno", 1), reason


def imported(node: ast.AST, here: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The dotted names that an import statement in package `here` asks for, in full."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield tuple(alias.name.split("."))
    elif isinstance(node, ast.ImportFrom):
        base = here[: len(here) - node.level + 1] if node.level else ()
        named = tuple(node.module.split(".")) if node.module else ()
        for alias in node.names:
            yield (*base, *named, alias.name)


def objection(room: str, target: tuple[str, ...]) -> str | None:
    """Why `room` may not import `target`, a name inside the package; None where it may."""
    if target == ("__version__",):
        return None
    if not target or target[0] not in TOP_TO_BOTTOM:
        return f"{room} imports the package itself, which stands above it; name a room"
    other = target[0]
    if TOP_TO_BOTTOM.index(other) < TOP_TO_BOTTOM.index(room):
        return f"{room} imports {other}, which stands above it"
    if other == "audit" and room not in MAY_IMPORT_AUDIT:
        return f"{room} imports audit, which only cli and bench may"
    if room == "audit" and other not in AUDIT_MAY_IMPORT:
        return f"audit imports {other}, but may import errors only"
    return None


def test_imports_point_downwards() -> None:
    assert len(list(PACKAGE.rglob("*.py"))) > 5, "the package was not found"
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line", "reason"),
    [
        ("budget/cost.py", "import budgeted.models", "budget imports models"),
        ("budget/cost.py", "import numpy, budgeted.cli.main as entry", "budget imports cli"),
        ("budget/cost.py", "from budgeted.learner import learner", "budget imports learner"),
        ("budget/cost.py", "from budgeted import errors, runs", "budget imports runs"),
        ("budget/cost.py", "from ..streams.order import gaussian", "budget imports streams"),
        ("budget/cost.py", "from .. import models", "budget imports models"),
        ("budget/__init__.py", "from ..models import build", "budget imports models"),
        ("budget/prices/conv.py", "from ...models import build", "budget imports models"),
        ("errors.py", "from .budget import Budget", "errors imports budget"),
        ("replay/memory.py", "def f():\n    from budgeted.methods import er", "replay imports methods"),
        ("replay/memory.py", "if TYPE_CHECKING:\n    from budgeted.runs import Run", "replay imports runs"),
        (
            "replay/memory.py",
            "try:\n    import budgeted.bench\nfinally:\n    pass",
            "replay imports bench",
        ),
        ("models/resnet.py", "from budgeted.audit import counter", "only cli and bench"),
        ("runs/folder.py", "import budgeted.audit", "only cli and bench"),
        ("audit/counter.py", "from budgeted.budget import Ledger", "may import errors only"),
        ("audit/counter.py", "from budgeted.models import build", "stands above"),
        ("models/resnet.py", "import budgeted", "imports the package itself"),
        ("models/resnet.py", "from budgeted import *", "imports the package itself"),
        ("helpers/strings.py", "import math", "room 'helpers' has no place"),
        ("helpers.py", "import math", "room 'helpers' has no place"),
    ],
)
def test_checker_sees_a_forbidden_import(tmp_path: Path, file: str, line: str, reason: str) -> None:
    found = violations(tree(tmp_path, file, line))
    assert len(found) == 1
    assert found[0].startswith(f"{file}:")
    assert reason in found[0]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("__init__.py", "from budgeted.cli import main"),
        ("__main__.py", "from budgeted.cli import main"),
        ("cli/__init__.py", "from budgeted.audit import counter\nfrom budgeted import __version__"),
        ("bench/tables.py", "import budgeted.audit.counter\nimport budgeted.runs"),
        ("audit/counter.py", "from budgeted.errors import BudgetedError\nfrom .timing import clock"),
        (
            "models/resnet.py",
            "import budgeted.models.parts\nfrom . import parts\nfrom ..errors import X",
        ),
        ("methods/er.py", "import torch\nimport budgeted_other.cli\nfrom budgeted.budget import Ledger"),
    ],
)
def test_checker_lets_allowed_imports_pass(tmp_path: Path, file: str, line: str) -> None:
    assert violations(tree(tmp_path, file, line)) == []


def tree(root: Path, file: str, source: str) -> Path:
    package = root / "budgeted"
    (package / file).parent.mkdir(parents=True)
    (package / file).write_text(source + "\n", encoding="utf-8")
    return package
