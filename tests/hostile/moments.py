"""A process that is killed at its nth operation on a file: before it, or in the middle of a write.

Every operation counts that changes something below one folder: opening to write, writing, syncing, cutting, renaming,
removing, making folders; and the writing of tensors, which is done outside of Python, as one more.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from budgeted.learner import state

_AUDITED = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Moments:
    """Counts operations below a folder; at the `fatal` one the process is killed. 0: none is."""

    def __init__(self, folder: Path, fatal: int = 0) -> None:
        self.folder = os.fspath(folder)
        self.fatal = fatal
        self.count = 0
        self.names: list[str] = []

    def install(self) -> None:
        """In this process, for good: it is a child made for one case."""
        sys.addaudithook(self._heard)
        for name in ("write", "pwrite"):
            setattr(os, name, self._torn(name, getattr(os, name)))
        for name in ("fsync", "ftruncate"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        state.save_file = self._tensors(state.save_file)  # type: ignore[attr-defined]

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _AUDITED or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITES):
            return
        if os.fsdecode(arguments[0]).startswith(self.folder) and self._is_now(event):
            kill()

    def _is_now(self, name: str) -> bool:
        self.count += 1
        self.names.append(name)
        return self.count == self.fatal

    def _ours(self, handle: int) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{handle}").startswith(self.folder)
        except OSError:
            return False

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, *more: Any) -> Any:
            if self._ours(handle) and self._is_now(name):
                kill()
            return real(handle, *more)

        return call

    def _torn(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(handle: int, content: Any, *more: Any) -> Any:
            if self._ours(handle) and self._is_now(name):
                # a few bytes at a known place are written whole by the kernel; longer content may be torn
                real(handle, bytes(content)[: len(content) // 2] if name == "write" else content, *more)
                kill()
            return real(handle, content, *more)

        return call

    def _tensors(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensors: Any, path: Any, *more: Any) -> Any:
            now = self._is_now("tensors")
            real(tensors, path, *more)
            if now:
                os.truncate(path, os.path.getsize(path) // 2)
                kill()

        return call


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit  # never reached
