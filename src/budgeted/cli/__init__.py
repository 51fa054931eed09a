"""The command line: thin. It parses, calls and prints; every command is one small file."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from budgeted import __version__
from budgeted.cli.commands import read
from budgeted.errors import BudgetedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake is one line on the error stream and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"budgeted {__version__}")
        return 0
    try:
        read(given).run_()
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
