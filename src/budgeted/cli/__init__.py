"""The command line: thin. It parses, calls and prints; every command is one small file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Union

import tyro
from tyro.conf import subcommand

from budgeted.cli.blocks import Blocks
from budgeted.cli.demo import Demo
from budgeted.errors import BudgetedError

# tyro reads subcommands off a Union object
Command = Union[  # noqa: UP007
    Annotated[Blocks, subcommand("blocks")],
    Annotated[Demo, subcommand("demo")],
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake is one line on the error stream and exit code 2."""
    command: Blocks | Demo = tyro.cli(
        Command,
        prog="budgeted",
        description="Train on a stream inside a hard budget of compute and bytes, and show what was spent.",
        args=arguments,
    )
    try:
        command.run()
    except BudgetedError as error:
        print(f"budgeted: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
