"""The command line: thin. It parses, calls and prints; every command is one small file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Protocol, Union

import tyro
from tyro.conf import subcommand

from budgeted import __version__
from budgeted.cli.blocks import Blocks
from budgeted.cli.check import Check
from budgeted.cli.costs import Costs
from budgeted.cli.data import Data
from budgeted.cli.demo import Demo
from budgeted.cli.listing import List
from budgeted.cli.plan import Plan
from budgeted.cli.run import Run, config_default
from budgeted.cli.sweep import Sweep
from budgeted.cli.table import Table
from budgeted.errors import BudgetedError


class Command(Protocol):
    def run_(self) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake is one line on the error stream and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"budgeted {__version__}")
        return 0
    try:
        command = _parse(given)
        command.run_()
    except BudgetedError as error:
        print(f"budgeted: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `budgeted list | head`
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("budgeted: interrupted", file=sys.stderr)
        return 130
    return 0


def _parse(given: list[str]) -> Command:
    default = Run(run=config_default(given)) if given[:1] == ["run"] else Run()
    # tyro reads subcommands off a Union object
    commands = Union[  # noqa: UP007
        Annotated[Run, subcommand("run", default=default)],
        Annotated[Plan, subcommand("plan")],
        Annotated[Costs, subcommand("costs")],
        Annotated[Sweep, subcommand("sweep")],
        Annotated[Table, subcommand("table")],
        Annotated[List, subcommand("list")],
        Annotated[Data, subcommand("data")],
        Annotated[Blocks, subcommand("blocks")],
        Annotated[Check, subcommand("check")],
        Annotated[Demo, subcommand("demo")],
    ]
    parsed: Command = tyro.cli(
        commands,
        prog="budgeted",
        description="Train on a stream inside a hard budget of compute and bytes, and show what was spent.",
        args=given,
    )
    return parsed
