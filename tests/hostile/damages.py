"""Damage to every file of a run, of its checkpoints and of a saved learner: refused in one line, or without effect.

A case is a number; from it and a seed follow what is damaged (a run that was cut off, one without a checkpoint, one
that is finished, a saved learner), which file of it, and how. Then the folder is used as a person would: the run is
resumed, the table printed, the learner loaded. What comes out must be what would have come out, or one line.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from budgeted import models
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.learner import load
from budgeted.learner.state import weights_digest
from budgeted.runs.config import RunConfig
from budgeted.runs.run import Progress, start
from tests.hostile import forked, kills
from tests.hostile.commands import one_line

GOOD = ("refused", "identical", "count unknown")
_SMALL: dict[str, Any] = {
    "model": "mlp", "limit": 12, "slots": 8, "batch_size": 4, "eval_every": 3, "eval_samples": 10,
    "checkpoint_every": 3,
}  # fmt: skip
CONFIG = RunConfig(method="er", **_SMALL)
FOREIGN = RunConfig(method="er", **{**_SMALL, "settings": {"learner.learning_rate": "0.01"}})
BASES = ("cut off", "cut off", "without a checkpoint", "finished", "finished", "saved", "saved")


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    case: str
    done: str
    outcome: str
    detail: str = ""


class _Stopped(BaseException):
    pass


def _begun(config: RunConfig, folder: Path, samples: int) -> None:
    def report(progress: Progress) -> None:
        if progress.samples == samples:
            raise _Stopped

    with contextlib.suppress(_Stopped):
        start(config, folder, report)


@cache
def _prepared() -> tuple[Path, dict[str, Any]]:
    """Folders to be copied, and what comes of them undamaged."""
    place = Path(tempfile.mkdtemp())
    forked.run(lambda: _begun(CONFIG, place / "cut off", 11))
    forked.run(lambda: _begun(CONFIG, place / "earlier", 8))
    forked.run(lambda: _begun(CONFIG, place / "without a checkpoint", 2))
    forked.run(lambda: start(CONFIG, place / "finished"))
    forked.run(lambda: _begun(FOREIGN, place / "foreign", 11))
    forked.run(lambda: start(FOREIGN, place / "foreign finished"))
    forked.run(lambda: kills.teach(place / "saved", "er", (8,)))
    forked.run(lambda: kills.teach(place / "foreign saved", "er", (12,)))
    shutil.copytree(place / "finished", place / "aside")
    right = {base: _use(base, place / base) for base in ("finished", "saved")}
    whole = forked.run(lambda: _resumed(place / "aside")).answer
    return place, {**right, "cut off": whole, "without a checkpoint": whole}


def run_case(case: str, seed: int) -> Outcome:
    rng = random.Random(f"{seed}:{case}")
    prepared, right = _prepared()
    base = rng.choice(BASES)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "it"
        shutil.copytree(prepared / base, folder)
        (Path(scratch) / "outside").write_bytes(b"precious")
        done = f"{base}: {_damage(folder, rng, prepared, base)}"
        before = _contents(folder)
        ended = forked.run(lambda: _use(base, folder), memory=forked.MEMORY)
        outcome, detail = _judged(ended, right[base])
        if outcome == "refused" and _contents(folder) != before:
            outcome, detail = "REFUSED, BUT CHANGED", f"{detail}: {sorted(set(before) ^ set(_contents(folder)))}"
        if (Path(scratch) / "outside").read_bytes() != b"precious" or len(list(Path(scratch).iterdir())) != 2:
            outcome = "WROTE OUTSIDE"
    return Outcome(case, done, outcome, detail)


def _judged(ended: forked.Ended, right: Any) -> tuple[str, str]:
    if ended.hung or ended.killed:
        return ("HANG" if ended.hung else "DIED"), ""
    if isinstance(ended.answer, forked.Crash):
        return "TRACEBACK", ended.answer.trace[-1500:]
    if isinstance(ended.answer, str):
        return one_line(ended.answer)
    if ended.answer == right:
        return "identical", ""
    if isinstance(right, dict) and {**ended.answer, "executed": 0} == {**right, "executed": 0}:
        executed, steps = ended.answer["executed"], right["steps"]
        if executed is None:
            return "count unknown", ""
        return ("identical", "") if steps <= executed <= 2 * steps else ("SILENT", f"{executed} steps executed")
    return "SILENT", f"{str(ended.answer)[:600]} for {str(right)[:600]}"


def _contents(folder: Path) -> dict[str, Any]:
    """Of every entry what it is and holds; the lock says nothing."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.name != "lock":
            state = path.lstat()
            small = path.is_file() and not path.is_symlink() and state.st_size < 2**22
            found[str(path.relative_to(folder))] = (state.st_mode, path.read_bytes() if small else state.st_size)
    return found


# -- what a person does with the folder ---------------------------------------------------------------------------


def _use(base: str, folder: Path) -> Any:
    """What comes out, or the one line of the refusal."""
    if base == "saved":
        try:
            again = load(folder, models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))
        except BudgetedError as problem:
            return str(problem)
        return {"weights": weights_digest(again), "steps": again.steps, "arrived": again.arrived}
    return _resumed(folder) if base != "finished" else _shown(folder)


def _command(*words: str) -> str | tuple[str]:
    """What it prints, in a tuple; or its one line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return err.getvalue().removesuffix("\n").removeprefix("budgeted: error: ") if code else (out.getvalue(),)


def _resumed(folder: Path) -> Any:
    said = _command("run", "--resume", str(folder), "--json")
    if isinstance(said, str):
        return said
    summary = json.loads(said[0])
    found = {key: summary[key] for key in kills.TIMELESS}
    return {**found, "steps": summary["iterations"], "executed": summary["executed_steps"]}


def _shown(folder: Path) -> Any:
    """A finished run: its summary, the table, and the curve's numbers."""
    from budgeted.bench.table import find_runs

    summary, table = _resumed(folder), _command("table", str(folder))
    if isinstance(summary, str) or isinstance(table, str):
        return summary if isinstance(summary, str) else table
    timeless = [row.split(" | ")[:-1] for row in table[0].splitlines()]  # the last column is the time
    try:
        records = find_runs([folder])[0].periodic_records()
        return [summary, timeless, [{**record, "seconds": None} for record in records]]
    except BudgetedError as problem:
        return str(problem)


# -- damage -------------------------------------------------------------------------------------------------------


def _damage(folder: Path, rng: random.Random, prepared: Path, base: str) -> str:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() or "checkpoints" in path.parts)
    victim = rng.choice([path for path in paths if path.name != "lock" or rng.random() < 0.3])
    name = str(victim.relative_to(folder))
    how: Callable[[Path, random.Random], Any]
    if victim.is_dir():
        how = rng.choice((_missing, _fifo, _link, _loop, _empty_file))
    elif rng.random() < 0.25:
        return f"{name}: {_foreign(folder, victim, rng, prepared, base)}"
    elif victim.suffix in (".json", ".jsonl") and rng.random() < 0.35:
        how = rng.choice((_edited, _edited, _other_lines))
    else:
        how = rng.choice((_cut, _flipped, _flipped, _flipped, _longer, _blanked, *_REPLACED))
    return f"{name}: {how.__name__[1:]} {how(victim, rng) or ''}".strip()


def _cut(path: Path, rng: random.Random) -> str:
    os.truncate(path, size := rng.randrange(path.stat().st_size or 1))
    return f"to {size}"


def _flipped(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes() or b"x")
    places = [rng.randrange(len(content)) for _ in range(rng.choice((1, 1, 1, 2, 8)))]
    for place in places:
        content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"at {places}"


def _longer(path: Path, rng: random.Random) -> None:
    with open(path, "ab") as file:
        file.write(rng.choice((b"\0" * 10, b"{}\n", b"\xff\xfe", b"}" * 3, b'{"samples": 1', b"[" * 5000)))


def _blanked(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


def _edited(path: Path, rng: random.Random) -> str:
    """Still good JSON, with another number or word in it."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    row = rng.randrange(len(lines)) if lines else 0
    if not lines or not (table := json.loads(lines[row])):
        return "nothing"
    key = rng.choice(sorted(table))
    was = table[key]
    if isinstance(was, bool):
        table[key] = not was
    elif isinstance(was, int | float):
        table[key] = rng.choice((was + 1, -was, was * 1.5, 10**30, None, "x"))
    elif isinstance(was, str):
        table[key] = rng.choice((was + "x", "", was[::-1], None, 5))
    else:
        table[key] = rng.choice((None, 1, {}, [], {"learner.learning_rate": "0.5"}))
    if rng.random() < 0.15:
        del table[key]
    lines[row] = json.dumps(table)
    path.write_text("\n".join(lines) + "\n")
    return f"{key} of line {row}"


def _other_lines(path: Path, rng: random.Random) -> str:
    lines = path.read_bytes().splitlines(keepends=True)
    kind = rng.choice(("swapped", "twice", "dropped"))
    if len(lines) > 1:
        one, other = rng.sample(range(len(lines)), 2)
        if kind == "swapped":
            lines[one], lines[other] = lines[other], lines[one]
        elif kind == "twice":
            lines[one] = lines[other]
        else:
            del lines[one]
    path.write_bytes(b"".join(lines))
    return kind


def _missing(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _fifo(path: Path, rng: random.Random) -> None:
    _missing(path, rng)
    os.mkfifo(path)


def _directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "something").write_text("precious")


def _empty_file(path: Path, rng: random.Random) -> None:
    _missing(path, rng)
    path.write_bytes(b"")


def _link(path: Path, rng: random.Random) -> str:
    """To what it was, to something else, to nothing, to a device."""
    outside = next(parent for parent in path.parents if (parent / "outside").exists()) / "outside"
    target = rng.choice((outside, Path("/dev/zero"), Path("nowhere"), Path("/dev/null"), path.parent))
    _missing(path, rng)
    path.symlink_to(target)
    return target.name


def _loop(path: Path, rng: random.Random) -> None:
    _missing(path, rng)
    path.symlink_to(path.name)


def _huge(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        path.write_bytes(b"")
    os.truncate(path, 2 ** rng.choice((33, 40)))


_REPLACED: tuple[Callable[[Path, random.Random], Any], ...] = (
    _missing, _fifo, _directory, _empty_file, _link, _loop, _huge,
)  # fmt: skip


def _foreign(folder: Path, victim: Path, rng: random.Random, prepared: Path, base: str) -> str:
    """Another file of the same folder, the same file of another run, or an earlier state of it."""
    others = {"saved": ("foreign saved",), "finished": ("foreign finished",)}.get(base, ("foreign", "earlier"))
    if "checkpoints" in victim.parts and rng.random() < 0.5:  # a whole checkpoint of another run, as the newest
        source = sorted((prepared / others[0] / "checkpoints").iterdir())[-1]
        shutil.copytree(source, folder / "checkpoints" / "000000099")
        return "a foreign checkpoint"
    if rng.random() < 0.3:
        candidates = [path for path in folder.rglob("*") if path.is_file() and path != victim]
    else:
        other = prepared / rng.choice(others)
        candidates = [path for path in other.rglob(victim.name) if path.is_file()]
        if victim.suffix == ".safetensors" and not candidates:
            candidates = list(other.rglob("*.safetensors"))
    if not candidates:
        return "nothing"
    chosen = rng.choice(sorted(candidates))
    victim.write_bytes(chosen.read_bytes())
    return f"{chosen.parent.name}/{chosen.name} in its place"
