"""One side of a comparison as a process of its own: a line is asked, a line of JSON answers."""

from __future__ import annotations

import json
import subprocess
from typing import Any


class SideProcess:
    """Starts the side; the first line that it prints are its versions."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._answer()

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self.name!r} ended: see its error above")
        answer: dict[str, Any] = json.loads(line)
        return answer
