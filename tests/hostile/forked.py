"""Children of one prepared process: torch is imported once, a case costs what it does and no more.

The parent never runs a backward: autograd's threads do not survive a fork. What every run would compute alike (the
fingerprint of the arithmetic, the digits' file) is computed once, in a child or here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import torch

import budgeted.cli  # noqa: F401  (imported before the first fork, with all that it imports)
from budgeted import registry
from budgeted.runs import arithmetic, environment
from tests.hostile.attack import confine

#: Seconds without an answer after which a child hangs.
PATIENCE = 60.0
#: Bytes of address space that a case may take beyond what the prepared process has.
MEMORY = 2**30


@dataclass(frozen=True)
class Ended:
    """How a child ended: what it answered, or the signal that ended it."""

    answer: Any
    killed: bool
    hung: bool
    peak: int
    """bytes resident at most"""


@cache
def prepare() -> None:
    """What a child would otherwise do each time."""
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], fused=True)  # loads what compiles
    from sklearn import datasets

    digits = datasets.load_digits()
    datasets.load_digits = lambda: digits
    vars(registry)["entry_points"] = cache(entry_points)
    known = run(lambda: arithmetic.fingerprint(1, "cpu")).answer
    vars(environment)["fingerprint"] = lambda threads, device: known


def run(
    work: Callable[[], Any], *, patience: float = PATIENCE, kill_after: float | None = None, memory: int | None = None
) -> Ended:
    """Do it in a child; `kill_after` so many seconds it is killed, unless it has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _be_the_child(work, writer, memory)
    os.close(writer)
    try:
        content, in_time = _all_of(reader, patience if kill_after is None else kill_after)
    finally:
        os.close(reader)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    killed = os.WIFSIGNALED(status)
    answer = pickle.loads(content) if content and not killed else None
    return Ended(answer, killed, not in_time and kill_after is None, usage.ru_maxrss * 1024)


def _all_of(reader: int, seconds: float) -> tuple[bytes, bool]:
    content, end = b"", time.monotonic() + seconds
    with selectors.DefaultSelector() as ready:
        ready.register(reader, selectors.EVENT_READ)
        while ready.select(max(0.0, end - time.monotonic())):
            if not (piece := os.read(reader, 1 << 16)):
                return content, True
            content += piece
    return content, False


def _be_the_child(work: Callable[[], Any], writer: int, memory: int | None) -> None:
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if memory is not None:
            confine(memory)
        answer = work()
    except BaseException as problem:
        answer = Crash(type(problem).__name__, str(problem), traceback.format_exc())
    with contextlib.suppress(BaseException):
        content = pickle.dumps(answer)
        while content:
            content = content[os.write(writer, content) :]
    os._exit(0)


@dataclass(frozen=True)
class Crash:
    """An exception that nobody caught."""

    kind: str
    text: str
    trace: str
