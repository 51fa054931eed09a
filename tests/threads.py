"""Another thread at a chosen moment: inside a forward, between two steps, or all the time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from torch import Tensor, nn


def elsewhere(action: Callable[[], object]) -> None:
    """Run it in another thread and wait; what it raises is raised here."""
    with beside(action):
        pass


@contextlib.contextmanager
def beside(action: Callable[[], object]) -> Iterator[None]:
    """It runs in another thread beside the block, which waits for it at its end."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failed:
        raise failed[0]


@contextlib.contextmanager
def all_the_time(action: Callable[[], object]) -> Iterator[None]:
    """Another thread does it again and again while the block runs, and has begun before it does."""
    stop, begun = threading.Event(), threading.Event()

    def repeat() -> None:
        try:
            while not stop.is_set():
                action()
                begun.set()
        finally:
            begun.set()

    with beside(repeat):
        begun.wait()
        try:
            yield
        finally:
            stop.set()


class Meeting(nn.Module):
    """Passes its input on, and lets something happen in the middle of the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: list[Callable[[], object]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.happens:
            self.happens.pop()()
        return x
