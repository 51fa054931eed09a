"""The commands by name: each is one file, and only the one that is called is imported.

`budgeted --help` reads what the commands say of themselves out of their files, so that it answers without torch.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Protocol, cast

from budgeted.errors import BudgetedError, UnknownName

COMMANDS = {
    "run": "run:RunCommand",
    "plan": "plan:PlanCommand",
    "costs": "costs:CostsCommand",
    "sweep": "sweep:Sweep",
    "table": "table:Table",
    "compare": "compare:Compare",
    "query": "query:Query",
    "report": "report:Report",
    "watch": "watch:Watch",
    "verify": "verify:Verify",
    "predict": "predict:Predict",
    "export": "export:Export",
    "list": "listing:List",
    "data": "data:Data",
    "blocks": "blocks:Blocks",
    "check": "check:Check",
    "demo": "demo:Demo",
}
"""name of the command: file and class; in the order of the help"""
ABOUT = "Train on a stream inside a hard budget of compute and bytes; see what it spent."


class Command(Protocol):
    def run_(self) -> None: ...


def read(given: Sequence[str]) -> Command:
    """The command that a command line asks for, with its settings."""
    name, rest = (given[0], list(given[1:])) if given else ("", [])
    if name in ("-h", "--help", "help"):
        print(overview())
        raise SystemExit(0)
    if name not in COMMANDS:
        if name and not name.startswith("-"):
            raise UnknownName("command", name, COMMANDS)
        raise BudgetedError("give a command first, as in `budgeted run`: see `budgeted --help`")
    return _parse(name, rest)


def overview() -> str:
    """What `budgeted --help` shows."""
    width = max(map(len, COMMANDS)) + 4
    lines = [f"  {name:{width - 2}}{_wrapped(summary(name), width)}" for name in COMMANDS]
    return "\n".join(
        [
            "usage: budgeted COMMAND [OPTIONS]",
            "",
            ABOUT,
            "",
            "commands:",
            *lines,
            "",
            "`budgeted COMMAND --help` shows its options, `budgeted --version` the version.",
        ]
    )


def summary(name: str) -> str:
    """The first line of what the command's class says of itself."""
    file, _, kind = COMMANDS[name].partition(":")
    tree = ast.parse((files(__package__) / f"{file}.py").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind)
    return (ast.get_docstring(found) or "").partition("\n\n")[0].replace("\n", " ")


def _wrapped(text: str, indent: int) -> str:
    import shutil
    import textwrap

    width = max(40, min(100, shutil.get_terminal_size().columns) - indent)
    return ("\n" + " " * indent).join(textwrap.wrap(text, width))


def _parse(name: str, rest: list[str]) -> Command:
    import tyro
    from tyro.conf import DisallowNone, FlagCreatePairsOff

    from budgeted.cli.help_texts import with_help_texts
    from budgeted.cli.parsing import parsed

    file, _, kind = COMMANDS[name].partition(":")
    module = importlib.import_module(f"{__package__}.{file}")
    command = getattr(module, kind)
    default = module.default(rest) if hasattr(module, "default") else None

    def parse() -> object:
        return tyro.cli(
            with_help_texts(command),
            prog=f"budgeted {name}",
            args=rest,
            config=(DisallowNone, FlagCreatePairsOff),
            **({} if default is None else {"default": default}),
        )

    return cast(Command, parsed(parse, [name, *rest], [*COMMANDS]))
