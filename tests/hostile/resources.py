"""What a machine may run out of, and who may come at the same time: threads, full disks, little memory.

Each case is a promise of its own and has a name; it is held, or the outcome says what came instead.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from budgeted import models
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from budgeted.runs.run import resume, start
from tests.hostile import forked, kills
from tests.hostile.attack import confine

_SMALL: dict[str, Any] = {"model": "mlp", "limit": 12, "slots": 8, "batch_size": 4, "eval_samples": 10}
PLAIN = RunConfig(method="er", eval_every=5, checkpoint_every=3, **_SMALL)


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    case: str
    done: str
    outcome: str
    detail: str = ""


def run_case(case: str, seed: int) -> Outcome:
    promise = CASES[case]
    with tempfile.TemporaryDirectory() as place:
        ended = forked.run(lambda: promise(Path(place)), patience=300)
    if ended.hung or ended.killed:
        return Outcome(case, case, "HANG" if ended.hung else "DIED")
    if isinstance(ended.answer, forked.Crash):
        return Outcome(case, case, "BROKEN", ended.answer.trace[-1500:])
    return Outcome(case, case, "held")


def _learner() -> Learner:
    model = models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=3)
    return Learner(model, METHODS["er"], kills.FACTS, slots=8, seed=3)


def _images() -> torch.Tensor:
    return torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def _together(*works: Callable[[], object]) -> list[BaseException]:
    problems: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems


# -- threads and processes ------------------------------------------------------------------------------------------


def predictions_while_it_learns(place: Path) -> None:
    """Other threads predict at any moment; what is learnt is what is learnt without them."""
    images, digests = _images(), []
    for others in (0, 3):
        taught, done = _learner(), threading.Event()

        def learn(taught: Learner = taught, done: threading.Event = done) -> None:
            for sample in range(40):
                taught.learn(images[sample], (sample // 5) % 4)
            done.set()

        def predict(taught: Learner = taught, done: threading.Event = done) -> None:
            while not done.is_set():
                if taught.class_labels:
                    taught.predict(images[:3])

        assert _together(learn, *[predict] * others) == []
        digests.append(weights_digest(taught))
    assert digests[0] == digests[1]


def saves_at_the_same_time(place: Path) -> None:
    """Several threads save into one folder: each is whole or refused, and what is there can be loaded."""
    taught, images = _learner(), _images()
    for sample in range(12):
        taught.learn(images[sample], sample % 4)

    def several() -> None:
        for _ in range(5):
            with contextlib.suppress(BudgetedError):
                save(taught, place / "saved")

    def read() -> None:
        for _ in range(10):
            with contextlib.suppress(BudgetedError):
                load(place / "saved", models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))

    assert _together(several, several, several, read) == []
    save(taught, place / "saved")
    again = load(place / "saved", models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))
    assert weights_digest(again) == weights_digest(taught)
    assert len(list((place / "saved").iterdir())) == 2


def two_processes_on_one_run(place: Path) -> None:
    """One goes on, the other is refused in one line; the run ends as if alone."""
    whole = forked.run(lambda: start(PLAIN, place / "whole")).answer
    ended = []
    works = [lambda: ended.append(forked.run(lambda: start(PLAIN, place / "run")))] * 2
    assert _together(*works) == []
    answers = [each.answer for each in ended]
    good = [answer for answer in answers if isinstance(answer, dict)]
    assert len(good) == 1, answers
    assert good[0]["weights_sha256"] == whole["weights_sha256"]
    assert [answer.kind for answer in answers if isinstance(answer, forked.Crash)] == ["Taken"]


# -- a full disk ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(place: Path, room: int) -> Iterator[Path]:
    """A file system of so many bytes; without the right to mount one, a limit on the length of files."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room // 8, room // 8))
    try:
        yield place
    finally:
        if not mounted.returncode:
            subprocess.run(["umount", "-l", str(place)], check=False)


def _full_while_running(room: int) -> Callable[[Path], None]:
    def promise(place: Path) -> None:
        whole = forked.run(lambda: start(PLAIN, place / "whole")).answer
        with small_disk(place / "disk", room) as disk:
            said = forked.run(lambda: start(PLAIN, disk / "run")).answer
            if isinstance(said, forked.Crash):
                assert said.kind == "BudgetedError", said.trace
                assert "full" in said.text
            if (disk / "run").exists():
                shutil.copytree(disk / "run", place / "run")
        ended = forked.run(lambda: kills.go_on(PLAIN, place / "run")).answer
        assert isinstance(ended, dict), ended
        assert all(ended[key] == whole[key] for key in kills.TIMELESS)

    return promise


def _full_while_saving(room: int) -> Callable[[Path], None]:
    def promise(place: Path) -> None:
        taught, images = _learner(), _images()
        with small_disk(place / "disk", room) as disk:
            digests: list[str] = []
            refused = 0
            for sample in range(12):
                taught.learn(images[sample], sample % 4)
                (disk / f"filler{sample}").write_bytes(b"")
                with contextlib.suppress(OSError), open(disk / f"filler{sample}", "wb") as filler:
                    filler.write(b"x" * (room // 16))
                try:
                    save(taught, disk / "saved")
                    digests.append(weights_digest(taught))
                except BudgetedError as problem:
                    refused += "full" in str(problem)
            if digests:  # the last that was saved is there, whole
                again = load(disk / "saved", models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))
                assert weights_digest(again) == digests[-1]
            assert refused

    return promise


def a_write_that_fails(place: Path) -> None:
    """Whichever write is the one that finds the disk full: one line, and nothing is lost."""
    whole = forked.run(lambda: start(PLAIN, place / "whole")).answer

    def failing(at: int) -> None:
        count, real = 0, os.write

        def write(handle: int, content: Any) -> int:
            nonlocal count
            if os.readlink(f"/proc/self/fd/{handle}").startswith(str(place)):
                count += 1
                if count == at:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return real(handle, content)

        os.write = write
        start(PLAIN, place / f"run{at}")

    for at in range(1, 12):
        said = forked.run(lambda at=at: failing(at)).answer  # type: ignore[misc]
        assert isinstance(said, forked.Crash)
        assert "is full" in said.text, said.trace
        ended = forked.run(lambda at=at: kills.go_on(PLAIN, place / f"run{at}")).answer  # type: ignore[misc]
        assert all(ended[key] == whole[key] for key in kills.TIMELESS)


# -- little memory --------------------------------------------------------------------------------------------------


def _line_of(*words: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    assert code == 2, out.getvalue()
    assert err.getvalue().count("\n") == 1, err.getvalue()
    return err.getvalue()


def a_memory_that_the_machine_does_not_have(place: Path) -> None:
    confine(2**30)
    words = ("run", "--dataset", "digits", "--model", "mlp", "--slots", str(10**13), "--out", str(place / "run"))
    assert "memory" in _line_of(*words)
    assert not (place / "run" / "config.json").exists()


def a_checkpoint_with_little_memory(place: Path) -> None:
    """Resumed where memory is short: one line, and later it goes on."""
    key = kills.RunConfigKey(0)
    whole = forked.run(lambda: start(key.value, place / "whole")).answer
    folder = place / "run"
    forked.run(lambda: kills.go_on(key.value, folder), kill_after=0.3)

    def short() -> Any:
        confine(2**22)
        return _line_of("run", "--resume", str(folder)) if (folder / "config.json").exists() else "not begun"

    said = forked.run(short).answer
    assert isinstance(said, str | forked.Crash)
    if isinstance(said, forked.Crash):  # it had enough, and ended
        assert said.kind == "AssertionError", said.trace
    ended = forked.run(lambda: kills.go_on(key.value, folder)).answer
    assert all(ended[name] == whole[name] for name in kills.TIMELESS)


def a_plan_for_another_machine(place: Path) -> None:
    """A plan takes no memory for what it plans."""
    confine(2**30)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["plan", "--dataset", "digits", "--model", "mlp", "--memory", "4TB", "--no-measure", "--json"]) == 0
    assert '"slots"' in out.getvalue()


def a_finished_run_that_may_not_be_written(place: Path) -> None:
    """It shows its summary; nothing is written, not even a lock."""
    folder = place / "run"
    summary = forked.run(lambda: start(PLAIN, folder)).answer
    (folder / "lock").unlink()
    before = kills.names_below(folder)
    assert resume(folder) == summary
    assert kills.names_below(folder) == before


CASES: dict[str, Callable[[Path], None]] = {
    promise.__name__.replace("_", " "): promise
    for promise in (
        predictions_while_it_learns, saves_at_the_same_time, two_processes_on_one_run, a_write_that_fails,
        a_memory_that_the_machine_does_not_have, a_checkpoint_with_little_memory, a_plan_for_another_machine,
        a_finished_run_that_may_not_be_written,
    )
}  # fmt: skip
_RUNNING, _SAVING = (16, 64, 128, 256, 400), (64, 200, 400)
CASES |= {f"a disk of {room} kB, full while running": _full_while_running(room * 1024) for room in _RUNNING}
CASES |= {f"a disk of {room} kB, full while saving": _full_while_saving(room * 1024) for room in _SAVING}
