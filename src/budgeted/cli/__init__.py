"""The command line: thin. It parses, calls and prints; every command is one small file."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from budgeted import __version__
from budgeted.cli.commands import read
from budgeted.cli.output import mute, show_anything
from budgeted.errors import BudgetedError, Terminated, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake is one line on the error stream and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    show_anything()
    try:
        with _terminable():
            return _main(given)
    except KeyboardInterrupt:
        _say("budgeted: interrupted")
        return 130
    except Terminated:
        _say("budgeted: interrupted")
        return 143


def _main(given: list[str]) -> int:
    try:
        if given == ["--version"]:
            print(f"budgeted {__version__}")
        else:
            read(given).run_()
        sys.stdout.flush()
    except BudgetedError as error:
        return _refused(str(error))
    except BrokenPipeError:  # `budgeted list | head`
        mute(sys.stdout)
    except OSError as error:
        if error.filename is None:  # it was the standard output
            mute(sys.stdout)
        what = "print" if error.filename is None else f"read or write {error.filename}"
        return _refused(f"cannot {what}: {error.strerror or error}")
    except MemoryError as error:
        return _refused(f"{str(error) or 'out of memory'}: this does not fit into the machine's memory, ask for less")
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error):
            raise
        return _refused(f"{str(error).rpartition('] ')[2]}: this does not fit into the machine's memory, ask for less")
    return 0


def _refused(text: str) -> int:
    with contextlib.suppress(OSError, ValueError):  # what was printed before it comes before it
        sys.stdout.flush()
    _say(f"budgeted: error: {one_line(text)}")
    return 2


def _say(line: str) -> None:
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        mute(sys.stderr)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only there may a signal be caught
        yield
        return
    before = signal.signal(signal.SIGTERM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
