"""Command lines and settings that nobody should type: is each carried out, or refused in one line?

A case is a number; from it and a seed follow the words. It runs in this process, with an alarm on its processor time
and a limit of memory. A run that passes every check is stopped where training begins, since one that was asked for a
million iterations would rightly make them.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

from budgeted import models, streams
from budgeted.bench.recipes import RECIPES
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.freezing.policies import POLICIES
from budgeted.learner.settings import from_pairs, setting_names
from budgeted.methods import METHODS
from budgeted.replay import RETRIEVALS, SELECTIONS
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig

SECONDS = 10.0
MORE = {"costs": 60.0}
"""of a command that measures every method"""
LONGEST_LINE = 1200
GOOD = ("done", "refused", "begun")

NUMBERS = (
    "0", "1", "2", "3", "7", "16", "-1", "-0", "00", "1e3", "1e-3", "0.5", "-0.5", "1e308", "-1e308", "1e309", "1e-320",
    "nan", "NaN", "inf", "-inf", "Infinity", "1_000", "1__0", "0x10", "1,5", "+3", "9" * 18, "9" * 19, "9" * 30,
    "9" * 400, "9" * 5000, "-" + "9" * 19, "2147483648", "4294967296", "18446744073709551616", "1" + "0" * 12, "٣", "½",
)  # fmt: skip
QUANTITIES = (
    "0B", "1B", "80kB", "7998016B", "7.6MB", "7.6MiB", "1e300MB", "-1MB", "nanB", "9999999TB", "1 B", "B", "1PiB",
    "10GFLOP", "1TMAC", "0FLOP", "1FLOP", "1e999FLOP", "-3TMAC", "5 apples", "1" * 500 + "MAC", "1.7.7MB", "1/0MB",
)  # fmt: skip
ODD = (
    "", " ", "-", "--", "---", "=", "\x00", "\n", "a\nb", "\x1b[31m", "\udcff", "é", "日本", "None", "true", "{}",
    "[1]", "null", "../..", "/", ".", "~", "/dev/null", "/dev/zero", "/dev/full", "%s%n", "$(id)", "x" * 300,
    "x" * 70000, "a=b", "learner.learning_rate", "FILE.py:NAME", ":", "a:b:c", "nowhere.py:Thing", "os:system",
)  # fmt: skip
DEVICES = ("cpu", "cuda", "cuda:7", "cpu:3", "mps", "meta", "xpu", "banana")


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    case: str
    done: str
    outcome: str
    detail: str = ""


class Begun(BaseException):
    """Every check was passed: training would begin."""


class Hang(BaseException):
    """The alarm; nothing catches it."""


def run_case(case: str, seed: int) -> Outcome:
    """ "command:17" or "settings:17"."""
    kind, _, number = case.partition(":")
    rng = random.Random(f"{seed}:{kind}:{number}")
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        (root / "here").mkdir()
        before, here = _outside(root), os.getcwd()
        os.chdir(root / "here")
        try:
            words, work = _command(rng, root) if kind == "command" else _settings(rng)
            outcome, detail = _judged(work, MORE.get(str(words[0])) if words else None)
        finally:
            os.chdir(here)
        if _outside(root) != before:
            outcome = "WROTE OUTSIDE"
    return Outcome(case, " ".join(map(repr, words))[:3000], outcome, detail)


def _judged(work: Callable[[], int], seconds: float | None = None) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    try:
        with _alarm(seconds or SECONDS), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = work()
    except Begun:
        return "begun", ""
    except Hang:
        return "HANG", ""
    except SystemExit as end:
        return ("done", "") if not end.code else ("OTHER EXIT", str(end.code))
    except BudgetedError as problem:
        return one_line(str(problem))
    except BaseException as problem:
        return "TRACEBACK", f"{type(problem).__name__}: {problem}"[:500]
    if code == 0:
        return "done", ""
    lines = err.getvalue().splitlines()
    last = lines[-1] if lines else ""
    return one_line(last.removeprefix("budgeted: error: ")) if last.startswith("budgeted: error: ") else (
        "NO MESSAGE", err.getvalue()[-300:],
    )  # fmt: skip


def one_line(text: str) -> tuple[str, str]:
    if not text.isprintable() or len(text) > LONGEST_LINE or not text:
        return "NOT ONE LINE", text[:500]
    return "refused", text


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """On processor time: a loaded machine rings no bell."""

    def ring(_: int, __: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _outside(root: Path) -> list[str]:
    return sorted(str(path) for path in root.iterdir())


def stop_at_training() -> None:
    """In this process, from here on."""

    def begun(*_: Any, **__: Any) -> Any:
        raise Begun

    runs.Run.execute = begun  # type: ignore[method-assign]


# -- words ----------------------------------------------------------------------------------------------------------


def _number(rng: random.Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.7 else str(rng.choice((rng.randint(-5, 50), rng.uniform(-2, 2))))


def _quick(name: str) -> bool:
    """LLaVA of seven billion weights takes half a minute to be traced; that of the drawn Bongard is pretrained."""
    return not name.startswith(("llava", "bongard"))


def _value(rng: random.Random, name: str) -> str:
    """Mostly of the right kind, sometimes of any."""
    if rng.random() < 0.12:
        return rng.choice((*ODD, *NUMBERS, *QUANTITIES))
    known: dict[str, tuple[str, ...]] = {
        "method": tuple(METHODS), "model": ("mlp", "cnn8", "mlp", *filter(_quick, models.names())),
        "stream": streams.order_names(),
        "freezing": tuple(POLICIES), "retrieval": tuple(RETRIEVALS),
        "dataset": ("digits", "digits", *filter(_quick, streams.names())),
        "device": DEVICES, "byte-rule": ("real", "paper"), "rule": ("real", "paper"), "recipe": tuple(RECIPES),
        "memory": QUANTITIES, "compute": QUANTITIES, "granularity": ("block", "layer"),
        "input": ("1x8x8", "3x32x32", "0x0x0", "1x1x1", "9x9", "3x" + "9" * 30 + "x1", "-1x8x8", "3x100000x100000"),
        "out": ("run", "run/deep/er", "", "/proc/nowhere", "/dev/null/x"), "data": ("here", "/", "/proc", ""),
        "config": ("none.toml", "/dev/null", ".", "/proc/self/mem", "/dev/zero"),
        "csv": (".", "/dev/full", "t.csv", "x/y"),
        "resume": (".", "run", "/", "/dev/null", "/proc"), "set": tuple(_pairs(rng)), "format": ("csv", "x"),
        "what": ("methods", "datasets", "models", "freezing", "retrieval", "selection", "streams", "recipes"),
        "methods": tuple(METHODS), "export": ("e", "/dev/null"), "figure": ("f.png", "f.xyz", "."),
    }  # fmt: skip
    return rng.choice(known[name]) if name in known else _number(rng)


def _pairs(rng: random.Random) -> list[str]:
    names = setting_names(METHODS[rng.choice(list(METHODS))]())
    keys = [*rng.sample(names, 3), "learner.nothing", "nothing", "", "learner.selection", "freezing.n"]
    return [f"{key}={_setting(rng)}" for key in keys]


def _setting(rng: random.Random) -> str:
    words = (*ODD[:12], "true", "false", "none", "sgd", "adamw", "cosine", "float16", "stop", *SELECTIONS)
    return _number(rng) if rng.random() < 0.6 else rng.choice(words)


_RUN = [item.name.replace("_", "-") for item in fields(RunConfig) if item.name not in ("settings", "sources")]
_FLAGS = {
    "run": [*_RUN, "out", "resume", "config", "set", "json", "accept-other-arithmetic"],
    "plan": [
        "method", "dataset", "stream", "model", "memory", "slots", "iterations", "compute", "rule", "batch-size",
        "freezing", "retrieval", "eval-every", "limit", "set", "json",
    ],
    "costs": ["dataset", "model", "memory", "batch-size", "iterations", "eval-every", "arriving", "methods", "csv"],
    "blocks": ["input", "classes", "granularity", "frozen", "batch", "json"],
    "table": ["ddof", "against", "rows", "csv", "figure", "tradeoff", "format"],
    "sweep": ["out", "data", "workers", "seeds", "export"],
    "list": ["json"],
    "check": [],
    "demo": ["stream.limit", "stream.seeds", "stream.methods", "freezing.steps", "out", "part"],
}  # fmt: skip
_SWITCHES = ("unlimited", "spend-savings", "download", "json", "accept-other-arithmetic", "measure", "show")


def _command(rng: random.Random, root: Path) -> tuple[list[str], Callable[[], int]]:
    name = rng.choice(("run", "run", "run", "run", "plan", "plan", "plan", "blocks", "table", "sweep", "list", "costs"))
    if rng.random() < 0.03:
        name = rng.choice((*ODD, "check", "demo", "ruin"))
    words = [name]
    if name == "blocks":
        words.append(_value(rng, "model"))
    elif name == "table":
        words += [rng.choice((".", "/proc", "nowhere", "/dev/null", str(root)))]
    elif name == "sweep":
        words += [_value(rng, "recipe"), "--show"]  # it starts processes otherwise
    elif name == "list":
        words.append(_value(rng, "what"))
    elif name == "costs":
        words += ["slots", "--dataset", "digits", "--model", "mlp", "--memory", "100kB"]
    elif name == "check":
        words.append(rng.choice(ODD))
    elif name == "demo":
        words += ["--stream.limit", "x"]  # it takes a minute otherwise
    elif name == "plan":
        words += ["--no-measure"] if rng.random() < 0.9 else ["--model", "mlp", "--dataset", "digits", "--limit", "30"]
    elif name == "run":
        words += ["--dataset", "digits", "--model", "mlp"] if rng.random() < 0.8 else []
    for flag in rng.choices(_FLAGS.get(name, _RUN), k=rng.choice((1, 1, 2, 2, 3, 5))) if _FLAGS.get(name, _RUN) else []:
        if flag == "download":
            continue  # no attack of ours goes over the net
        given = f"--{flag}" if rng.random() < 0.97 else f"--{flag[:-1]}"
        if flag in _SWITCHES:
            words.append(given)
        elif rng.random() < 0.03:
            words.append(given)  # without a value
        elif rng.random() < 0.2:
            words.append(f"{given}={_value(rng, flag)}")
        else:
            words += [given, _value(rng, flag)]
    if rng.random() < 0.05:
        rng.shuffle(words)
    if rng.random() < 0.03:
        words += [rng.choice(ODD)]
    words = [word for word in words if word != "--download"]
    return words, lambda: main(words)


def _settings(rng: random.Random) -> tuple[list[str], Callable[[], int]]:
    """What a config file or a Python caller may hand over."""
    names = [item.name for item in fields(RunConfig)]
    odd: tuple[Any, ...] = (
        None,
        True,
        0,
        -1,
        3,
        2.5,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "x",
        [],
        [1],
        {},
        {"a": 1},
    )
    given: dict[str, Any] = {"dataset": "digits", "model": "mlp"}
    for name in rng.choices(names, k=rng.choice((0, 1, 1, 2))):
        text = _value(rng, name.replace("_", "-"))
        given[name] = rng.choice(odd) if rng.random() < 0.5 else text
        with contextlib.suppress(ValueError):
            if rng.random() < 0.5:
                given[name] = float(text) if rng.random() < 0.3 else int(text)
    method = rng.choice(list(METHODS))
    chosen = [*rng.choices(setting_names(METHODS[method]()), k=rng.choice((1, 2, 3))), "learner.nothing"]
    pairs = {key: _setting(rng) for key in chosen[: None if rng.random() < 0.05 else -1]}

    def work() -> int:
        config = RunConfig.from_mapping(given, "the file")
        config.budget()
        config.build_settings(flips=True)
        from_pairs(pairs, METHODS[method](), flips=False)
        return 0

    return [repr(given), repr(pairs)], work
