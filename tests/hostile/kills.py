"""Kills: a run, a sweep or a learner that is saved is killed again and again, goes on, and must end as if never killed.

A case is "run:17", "sweep:17" or "save:17"; from it and a seed follow what is run and when it is killed: at its nth
operation on a file, in the middle of a write, or after a while. "every:run:5" kills at the 5th operation of a fixed
run, "every:save:5" of fixed saves.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from budgeted import models
from budgeted.bench import sweep as sweeps
from budgeted.freezing.policies import POLICIES
from budgeted.learner import DataFacts, Learner, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from budgeted.runs.run import resume, start
from tests.hostile import forked
from tests.hostile.forked_worker import ForkedWorker
from tests.hostile.moments import Moments

TIMELESS = (
    "weights_sha256", "records_sha256", "spent", "spent_on", "samples", "iterations", "a_auc", "a_last", "f_last",
    "bytes", "frozen_steps", "data", "config",
)  # fmt: skip
GOOD = ("identical", "ended before")
MOST_KILLS = 8
_SMALL: dict[str, Any] = {
    "model": "mlp", "limit": 12, "slots": 8, "batch_size": 4, "eval_every": 5, "eval_samples": 10,
    "checkpoint_every": 3,
}  # fmt: skip
FACTS = DataFacts((1, 8, 8), (0.3,), (0.4,), classes=4, samples=40)


@dataclass(frozen=True)
class Outcome:
    """What came of one case, over all its kills."""

    case: str
    what: str
    kills: int
    outcome: str
    detail: str = ""


@cache
def configurations() -> tuple[RunConfig, ...]:
    """Every method on a stream with and without tasks, every freezing policy, and budgets."""
    found = [RunConfig(method=name, stream=order, **_SMALL) for name in METHODS for order in ("gaussian", "disjoint")]
    found += [RunConfig(method="vanilla", freezing=name, **_SMALL) for name in POLICIES]
    plain = RunConfig(method="al-sar", **_SMALL)
    found += [replace(plain, slots=None, unlimited=True), replace(plain, slots=None, memory="82kB")]
    found += [replace(plain, settings={"learner.optimizer": "sgd", "learner.momentum": "0.9"}), replace(plain, seed=2)]
    coded = RunConfig(method="vanilla", **{**_SMALL, "slots": None, "memory": "82kB"})
    found += [replace(coded, codec=name, keep_checkpoints="all") for name in ("jpeg", "progressive")]
    return tuple(found)


def run_case(case: str, seed: int) -> Outcome:
    rng = random.Random(f"{seed}:{case}")
    place = Path(tempfile.mkdtemp())
    try:
        kind, _, rest = case.partition(":")
        if kind == "every":
            kind, _, number = rest.partition(":")
            fatal: list[int] = [int(number)]
        else:
            fatal = []
        return {"run": _run, "sweep": _sweep, "save": _save}[kind](case, rng, place, fatal)
    finally:
        shutil.rmtree(place, ignore_errors=True)


# -- runs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Whole:
    """The same, never killed."""

    answer: Any
    names: tuple[str, ...]
    operations: int
    seconds: float


@cache
def whole_run(config: RunConfigKey) -> Whole:
    return _whole(lambda folder: start(config.value, folder))


@dataclass(frozen=True)
class RunConfigKey:
    """A configuration as a key: its settings are a dictionary."""

    number: int

    @property
    def value(self) -> RunConfig:
        return configurations()[self.number]


def _whole(work: Callable[[Path], Any]) -> Whole:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "it"

        def counted() -> Any:
            moments = Moments(folder)
            moments.install()
            return work(folder), moments.count

        begun = time.monotonic()
        ended = forked.run(counted)
        if isinstance(ended.answer, forked.Crash):
            raise RuntimeError(f"it does not even run unkilled: {ended.answer.trace}")
        answer, count = ended.answer
        return Whole(answer, names_below(folder), count, time.monotonic() - begun)


def names_below(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(str(path.relative_to(folder)) for path in folder.rglob("*")))


def go_on(config: RunConfig, folder: Path) -> dict[str, Any]:
    """As a person would: resume it, or begin it where it had not begun."""
    return resume(folder) if (folder / "config.json").exists() else start(config, folder)


def _run(case: str, rng: random.Random, place: Path, fatal: list[int]) -> Outcome:
    key = RunConfigKey(0 if fatal else rng.randrange(len(configurations())))
    whole, folder = whole_run(key), place / "run"
    what = " ".join(f"{name} {getattr(key.value, name)}" for name in ("method", "stream", "freezing"))
    kills = _kill(rng, folder, lambda: go_on(key.value, folder), whole, fatal)
    if isinstance(kills, str):
        return Outcome(case, what, 0, "LOST", kills)
    ended = forked.run(lambda: go_on(key.value, folder))
    return _judged(case, what, kills, ended, whole, names_below(folder))


def _kill(rng: random.Random, folder: Path, work: Callable[[], Any], whole: Whole, fatal: list[int]) -> int | str:
    """How many times it was killed; or what it said instead of going on."""
    kills = 0
    for number in range(1 if fatal else rng.randint(1, MOST_KILLS)):
        if fatal or rng.random() < 0.75:
            moment = fatal[0] if fatal else rng.randint(1, max(1, whole.operations // (1 + number)))

            def armed(moment: int = moment) -> Any:
                Moments(folder, moment).install()
                return work()

            ended = forked.run(armed)
        else:
            ended = forked.run(work, kill_after=rng.uniform(0.0, whole.seconds))
        if ended.hung:
            return "it hangs"
        if not ended.killed:
            if isinstance(ended.answer, forked.Crash):
                return f"{ended.answer.kind}: {ended.answer.text}"
            break
        kills += 1
    return kills


def _judged(case: str, what: str, kills: int, ended: forked.Ended, whole: Whole, left: tuple[str, ...]) -> Outcome:
    if ended.hung or ended.killed:
        return Outcome(case, what, kills, "HANG" if ended.hung else "DIED")
    if isinstance(ended.answer, forked.Crash):
        return Outcome(case, what, kills, "LOST", f"{ended.answer.kind}: {ended.answer.text}")
    for key in TIMELESS:
        if ended.answer[key] != whole.answer[key]:
            return Outcome(case, what, kills, "DIFFERS", f"{key}: {ended.answer[key]} for {whole.answer[key]}")
    executed, steps = ended.answer["executed_steps"], whole.answer["iterations"]
    if executed is None or executed < steps:
        return Outcome(case, what, kills, "MISCOUNTED", f"{executed} executed of {steps}")
    if left != whole.names:
        return Outcome(case, what, kills, "LEFT BEHIND", str(sorted(set(left) ^ set(whole.names))))
    return Outcome(case, what, kills, "identical" if kills else "ended before")


# -- sweeps ---------------------------------------------------------------------------------------------------------


def _sweep(case: str, rng: random.Random, place: Path, fatal: list[int]) -> Outcome:
    """The sweep is killed, not its runs: they must end with it, or the next sweep would find them at work."""
    keys = [RunConfigKey(number) for number in rng.sample(range(len(configurations())), 2)]
    wholes, out = [whole_run(key) for key in keys], place / "runs"
    configs = [key.value for key in keys]

    def work() -> list[str | None]:
        vars(subprocess)["Popen"] = ForkedWorker  # by which the sweep starts its runs
        sweeps._LOOK_EVERY = 0.02
        return [error for _, error in sweeps.sweep(configs, out, None, 2)]

    kills = 0
    for _ in range(rng.randint(1, 2)):
        kills += forked.run(work, kill_after=rng.uniform(0.0, sum(whole.seconds for whole in wholes))).killed
    ended = forked.run(work)
    what = f"sweep of {' and '.join(config.method for config in configs)}"
    if ended.hung or ended.killed or isinstance(ended.answer, forked.Crash) or any(ended.answer):
        return Outcome(case, what, kills, "LOST", str(ended.answer))
    for config, whole in zip(configs, wholes, strict=True):
        found = sweeps.places([config], out)[0]
        answer = forked.Ended(resume(found.folder), False, False, 0)
        judged = _judged(case, what, kills, answer, whole, names_below(found.folder))
        if judged.outcome not in GOOD:
            return judged
    left = {path.name for path in out.iterdir()} - {place.folder.name for place in sweeps.places(configs, out)}
    return Outcome(case, what, kills, "LEFT BEHIND", str(left)) if left else Outcome(case, what, kills, "identical")


# -- saves ----------------------------------------------------------------------------------------------------------


def _learner(method: str) -> Learner:
    model = models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=3)
    return Learner(model, METHODS[method], FACTS, slots=8, seed=3)


def teach(folder: Path, method: str, ends: tuple[int, ...]) -> dict[str, Any]:
    """Go on from the newest save, or from nothing, and save at these samples."""
    if (folder / "state.json").exists():
        taught = load(folder, models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))
    else:
        taught = _learner(method)
    images = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for end in ends:
        for sample in range(taught.arrived, end):
            taught.learn(images[sample], (sample // 5) % 4)
        if taught.arrived == end:
            save(taught, folder)
    spent = taught.ledger.spent
    return {"weights": weights_digest(taught), "spent": (spent.paper, spent.real), "steps": taught.steps}


@cache
def whole_save(method: str, ends: tuple[int, ...]) -> Whole:
    return _whole(lambda folder: teach(folder, method, ends))


def _save(case: str, rng: random.Random, place: Path, fatal: list[int]) -> Outcome:
    method = "al-sar" if fatal else rng.choice(list(METHODS))
    ends = (4, 8, 12)
    whole, folder = whole_save(method, ends), place / "saved"
    kills = _kill(rng, folder, lambda: teach(folder, method, ends), whole, fatal)
    what = f"saves of {method}"
    if isinstance(kills, str):
        return Outcome(case, what, 0, "LOST", kills)
    ended = forked.run(lambda: teach(folder, method, ends))
    if ended.answer != whole.answer:
        return Outcome(case, what, kills, "DIFFERS", str(ended.answer))
    forked.run(lambda: teach(folder, method, (*ends, 16)))  # the next save clears away what a killed one left
    if len(left := names_below(folder)) != 2:
        return Outcome(case, what, kills, "LEFT BEHIND", str(left))
    return Outcome(case, what, kills, "identical" if kills else "ended before")
