"""The records of a run: one line of JSON for every evaluation, and a digest that binds the lines to a checkpoint."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.learner.files import open_own, read_bytes, write_all

#: Bytes of all records of a run; a thousand classes at a thousand evaluations take 20 million.
MOST_RECORDS = 2**30


class Records:
    """The file, and the digest of all that was written to it: each line goes on the digest of those before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._bytes = 0

    def append(self, record: Mapping[str, Any]) -> None:
        """One line; it is in the file, whole, before the next checkpoint says so."""
        line = (json.dumps(record) + "\n").encode()
        with open_own(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as file:
            write_all(file.fileno(), line)
            os.fsync(file.fileno())
        self._digest.update(line)
        self._bytes += len(line)

    def state(self) -> dict[str, Any]:
        """By which a checkpoint knows the lines that belong to it."""
        return {"bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def take_up(self, state: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The lines that a checkpoint knows of, verified; what came after them, a torn line included, is cut off."""
        size = int(state["bytes"])
        if size and not os.path.lexists(self.path):  # to open it would make it
            raise BudgetedError(f"{self.path} has fewer records than the checkpoint knows of: restore it")
        with open_own(self.path, os.O_RDWR | os.O_CREAT) as file:
            content = b""
            while len(content) < size and (piece := os.read(file.fileno(), size - len(content))):
                content += piece
            if len(content) < size:
                raise BudgetedError(f"{self.path} has fewer records than the checkpoint knows of: restore it")
            self._digest = hashlib.sha256(content)
            self._bytes = size
            if self._digest.hexdigest() != state["sha256"]:
                raise BudgetedError(
                    f"{self.path} has other records than those the checkpoint was made with: restore it"
                )
            os.ftruncate(file.fileno(), size)
            os.fsync(file.fileno())
        return parsed(content)

    def begin(self) -> None:
        """Nothing was kept: the run begins anew."""
        self.take_up(self.state())


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of a run, whole or not: a torn last line is left out."""
    try:
        content = read_bytes(path, MOST_RECORDS)
        return parsed(content[: content.rfind(b"\n") + 1])
    except OSError as error:
        raise BudgetedError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BudgetedError(f"{path} is damaged: {error}") from error


def parsed(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def records_digest(records: Sequence[Mapping[str, Any]]) -> str:
    """One hash over all records, wall-clock fields aside."""
    digest = hashlib.sha256()
    for record in records:
        timeless = {key: value for key, value in record.items() if key != "seconds"}
        digest.update(json.dumps(timeless, sort_keys=True).encode())
    return digest.hexdigest()
