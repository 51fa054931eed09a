"""The attack: a case is a number; from it and a seed follow a reader, a file of it, and what is done to that file.

    python -W error -m tests.hostile.attack --seed 0 --cases 0:300      a line of JSON for every case

The cases run here, one after the other, under a limit of memory and an alarm; whoever starts this as a process
learns from a missing line which case killed it. What is right is decided here too: a refusal in one line, or the
content of the valid files; where no checksum covers the damage, values may differ, but must be a sound data set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np

from budgeted.errors import BudgetedError
from budgeted.streams.dataset import Dataset
from tests.hostile import bombs
from tests.hostile.containers import CONTAINERS
from tests.hostile.mutations import DAMAGES, inside, odd_archive, replace_by
from tests.hostile.valid import TARGETS as SETS
from tests.hostile.valid import Target

TARGETS = {**SETS, **CONTAINERS}
#: Beyond what the process has when it starts.
MEMORY = 384 * 2**20
SECONDS = 5.0
LONGEST_LINE = 1200
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")
GOOD = ("refused", "same", "other values")


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    case: str
    reader: str
    done: str
    outcome: str
    detail: str = ""


class Hang(BaseException):
    """The alarm; no reader catches it."""


def run_case(case: str, seed: int) -> Outcome:
    """Case "17", or the bomb "bomb:NAME"."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "data").mkdir()
        here = os.getcwd()
        os.chdir(root / "data")  # what a reader writes by a relative name is seen too
        try:
            if case.startswith("bomb:"):
                bomb = bombs.BOMBS[case.removeprefix("bomb:")]
                bomb.write(root / "data")
                right = _content(bomb.same_as) if bomb.same_as else None
                return _judge(case, "bomb", case.removeprefix("bomb:"), root, bomb.load, right, checksum=True)
            return _run_number(case, random.Random(f"{seed}:{case}"), root)
        finally:
            os.chdir(here)


def _run_number(case: str, rng: random.Random, root: Path) -> Outcome:
    reader = rng.choice(sorted(TARGETS))
    target = TARGETS[reader]
    files = target.files()
    for name, content in files.items():
        path = root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    victim = rng.choice(sorted(files))
    done, checksum = _mutate(root / "data" / victim, rng, target)
    return _judge(case, reader, f"{victim}: {done}", root, target.load, _content(reader), checksum)


def _mutate(path: Path, rng: random.Random, target: Target) -> tuple[str, bool]:
    """What was done, and whether a checksum still tells damage from data."""
    how, raw = rng.random(), path.read_bytes()
    if how < 0.06:
        kind = replace_by(path, rng)
        return kind, kind != "missing"  # a folder with an image less is a folder of images
    names = rng.choices(sorted(DAMAGES), k=rng.choice((1, 1, 1, 2, 3)))

    def damage(content: bytes, _: random.Random) -> bytes:
        for name in names:
            content = DAMAGES[name](content, rng)
        return content

    if how < 0.16 and (odd := odd_archive(raw, rng)) is not None:
        path.write_bytes(odd)
        return "odd archive", True
    if how < 0.5 and (odd := inside(raw, rng, damage)) is not None:
        path.write_bytes(odd)
        return f"inside: {'+'.join(names)}", False
    path.write_bytes(damage(raw, rng))
    return "+".join(names), target.checksum


def _judge(
    case: str,
    reader: str,
    done: str,
    root: Path,
    load: Callable[[Path], Dataset],
    right: str | None,
    checksum: bool,
) -> Outcome:
    before = _listing(root)
    try:
        with alarm(SECONDS):
            found = load(root / "data")
            sound, content = _is_sound(found), digest(found)
    except Hang:
        return Outcome(case, reader, done, "HANG")
    except BudgetedError as problem:
        outcome, detail = _judge_refusal(problem)
    except BaseException as problem:
        outcome, detail = "OTHER EXCEPTION", f"{type(problem).__name__}: {problem}"
    else:
        detail = ""
        if not sound:
            outcome = "UNSOUND"
        elif content == right:
            outcome = "same"
        else:
            outcome = "OTHER CONTENT" if checksum else "other values"
    if _listing(root) != before:
        outcome = "WROTE FILES"
    return Outcome(case, reader, done, outcome, detail)


def _judge_refusal(problem: BudgetedError) -> tuple[str, str]:
    text = str(problem)
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, MemoryError):
            return "OUT OF MEMORY", text
        cause = cause.__cause__ or cause.__context__
    if not text.isprintable() or len(text) > LONGEST_LINE:
        return "NOT ONE LINE", text
    return "refused", text


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def digest(data: Dataset) -> str:
    """All that was read, in one number."""
    sums = hashlib.sha256(repr((data.class_names, data.domain_names, data.input_shape)).encode())
    for array in (data.train_images[:], data.train_labels, data.test_images[:], data.test_labels):
        sums.update(repr((array.shape, str(array.dtype))).encode() + np.ascontiguousarray(array).tobytes())
    return sums.hexdigest()


def _is_sound(data: Dataset) -> bool:
    parts = ((data.train_images, data.train_labels), (data.test_images, data.test_labels))
    return all(
        images[:].dtype == np.uint8
        and images.shape == (len(labels), *data.input_shape)
        and labels.dtype == np.int64
        and len(labels) > 0
        and 0 <= labels.min() <= labels.max() < len(data.class_names)
        for images, labels in parts
    ) and all(_CONTROL.search(name) is None for name in data.class_names)


@cache
def _content(reader: str) -> str:
    """What the valid files of a reader hold."""
    with tempfile.TemporaryDirectory() as place:
        for name, content in TARGETS[reader].files().items():
            path = Path(place, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return digest(TARGETS[reader].load(Path(place)))


def _listing(root: Path) -> list[tuple[str, int, int]]:
    found = []
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            state = os.lstat(os.path.join(folder, name))
            found.append((os.path.join(folder, name), state.st_size, state.st_mtime_ns))
    return sorted(found)


def confine(memory: int) -> None:
    """From here on this process can have so many bytes more than it has."""
    if not Path("/proc/self/statm").exists():
        return  # only Linux says how much that is, and keeps to the limit
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default="0:0", help="first:last, the last not included")
    parser.add_argument("--only", nargs="*", default=[], help="these cases")
    parser.add_argument("--memory", type=int, default=MEMORY, help="bytes beyond what the process starts with")
    chosen = parser.parse_args()
    start, stop = map(int, chosen.cases.split(":"))
    for reader in TARGETS:  # before memory is confined, so that libraries are loaded
        _content(reader)
    confine(chosen.memory)
    scratch = tempfile.mkdtemp()
    tempfile.tempdir = scratch
    try:
        for case in (*chosen.only, *map(str, range(start, stop))):
            print(json.dumps(asdict(run_case(case, chosen.seed))), flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
