"""`budgeted run`: learn from a stream within a budget, into a folder, or go on with a run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tyro.conf import OmitArgPrefixes, UseAppendAction, arg

from budgeted import streams
from budgeted.budget import format_bytes, format_compute
from budgeted.cli.console import logged_above, say
from budgeted.cli.output import Forgiving
from budgeted.cli.set_argument import with_pairs
from budgeted.errors import BudgetedError
from budgeted.learner.events import Listener, csv_file, tensorboard, tracker_of
from budgeted.methods import METHODS
from budgeted.registry import short
from budgeted.runs import run as runs
from budgeted.runs.allocation import keep_freed_memory
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG, RunFolder
from budgeted.runs.precision import imitated

_ALTERNATIVES = {
    "--slots": ("memory", "unlimited"),
    "--memory": ("slots", "unlimited"),
    "--unlimited": ("slots", "memory"),
    "--iterations": ("compute",),
    "--compute": ("iterations",),
}
_LINE_EVERY = 20.0  # seconds between plain lines where there is no terminal
_WIDE = 120  # columns from which there is room for everything


@dataclass(frozen=True)
class RunCommand:
    """Learn from a stream within a budget of compute and bytes; everything goes into a folder.

    Example: budgeted run --method cram --dataset digits --stream gaussian --model resnet20 --iterations 1 --slots 200
    --seed 1 --out runs/first. A killed run goes on with `budgeted run --resume FOLDER` and ends as if never killed.
    """

    run: OmitArgPrefixes[RunConfig] = field(default_factory=RunConfig)
    out: Path | None = None
    """Folder of the run; runs/METHOD-DATASET-STREAM-SEED if not given."""
    resume: Path | None = None
    """Go on with the run in this folder; every other flag comes from there."""
    accept_other_arithmetic: bool = False
    """With --resume: go on on a machine whose sums come out otherwise; the run then says so wherever it is shown."""
    config: Path | None = None
    """A TOML or JSON file with the same keys as the flags; flags win."""
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE")] = ()
    """Any other setting, as in --set learner.learning_rate=1e-3 --set retrieval.temperature=1."""
    json: bool = False
    """Print the summary as JSON for a script, and no progress."""
    events: Path | None = None
    """Where to write what happens (new class, evaluation, budget half spent, checkpoint): FILE.csv, a folder of
    TensorBoard files (pip install 'budgeted[tensorboard]'), or trackio:PROJECT or wandb:PROJECT."""

    def run_(self) -> None:
        keep_freed_memory()
        shown = _Shown(quiet=self.json)
        try:
            summary, path = self._run(shown)
        finally:  # a bar that is left standing hides the cursor
            shown.close()
        print(json.dumps(summary, indent=1) if self.json else _closing(summary, path))

    def _run(self, shown: _Shown) -> tuple[dict[str, Any], Path]:
        if self.resume is not None:
            if self.run != RunConfig() or self.set or self.out or self.config:
                raise BudgetedError("--resume takes everything from the run's folder: leave the other flags out")
            accept, known = self.accept_other_arithmetic, self.resume / CONFIG
            begun = RunFolder(self.resume).config() if known.is_file() else {}
            with self._listeners({**begun, "resumed": str(self.resume)}) as told:
                return runs.resume(self.resume, shown.report, told, accept_other_arithmetic=accept), self.resume
        if self.accept_other_arithmetic:
            raise BudgetedError("--accept-other-arithmetic is for a run that goes on: give --resume FOLDER with it")
        config = dataclasses.replace(self.run, settings=with_pairs(self.run.settings, self.set))
        family, method = METHODS.apart(config.method)
        name = f"{family}{short(method)}-{streams.short_name(config.dataset)}-{config.stream}-{config.seed}"
        path = self.out or Path("runs") / name
        if imitated(config):
            shown.warn(
                "bfloat16 is asked for, which this processor has to imitate: a step may take ten times as long as in "
                "float32 (learner.autocast=none, --eval-precision float32)"
            )
        with self._listeners(config.to_json()) as told:
            return runs.start(config, path, shown.report, told), path

    @contextlib.contextmanager
    def _listeners(self, config: dict[str, Any]) -> Iterator[list[Listener]]:
        if self.events is None:
            yield []
        elif (tracked := tracker_of(str(self.events), config)) is not None:
            with tracked as listener:
                yield [listener]
        else:
            yield [csv_file(self.events) if self.events.suffix == ".csv" else tensorboard(self.events)]


class _Shown:
    """Live progress on a terminal, a line now and then elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.stream = Forgiving()
        self.console = Console(file=self.stream)
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_line = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._room = 0
        self._above = contextlib.ExitStack()
        logging.basicConfig(level=logging.WARNING, format="budgeted: %(message)s", stream=self.stream)

    def warn(self, text: str) -> None:
        if not self.quiet:
            say(f"budgeted: {text}", self.stream)

    def report(self, progress: runs.Progress) -> None:
        if self.quiet:
            return
        self._first = self._first or (progress.samples, time.monotonic())
        if self.console.is_terminal:
            self._draw(progress)
        elif time.monotonic() - self._last_line >= _LINE_EVERY or progress.samples == progress.of_samples:
            self._last_line = time.monotonic()
            where = f"{progress.samples}/{progress.of_samples} samples"
            print(f"{where}, {_status(progress)}{self._time_left(progress)}", file=self.stream)

    def _time_left(self, progress: runs.Progress) -> str:
        """By the pace of this sitting."""
        if self._first is None or progress.samples == self._first[0]:
            return ""
        samples, moment = self._first
        pace = (time.monotonic() - moment) / (progress.samples - samples)
        return f", {timedelta(seconds=round(pace * (progress.of_samples - progress.samples)))} left"

    def _draw(self, progress: runs.Progress) -> None:
        if self._bar is None:
            narrow = self.console.width < _WIDE
            columns = (
                BarColumn(bar_width=10 if narrow else 20),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            )
            counted = 2 * len(str(progress.of_samples)) + 1
            self._room = self.console.width - (10 if narrow else 20) - counted - len(" 0:00:00") - len(columns)
            self._bar = Progress(*columns, console=self.console, transient=True)
            words = _status(progress, self._room)
            self._task = self._bar.add_task(words, total=progress.of_samples, completed=progress.samples - 1)
            self._bar.start()
            self._above.enter_context(logged_above(self.console, self.stream))
        self._bar.update(self._task, completed=progress.samples, description=_status(progress, self._room))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._above.close()


def _status(progress: runs.Progress, room: int | None = None) -> str:
    """Where a run stands, in words that fit: shorter ones, then fewer, where there is little room."""
    learner = progress.learner
    accuracy, a_auc = 100 * progress.accuracy, 100 * progress.a_auc
    budget, left = learner.budget.compute, learner.ledger.left
    spent = f"spent {format_compute(learner.ledger.spent.real, 'real', 3)}"
    frozen = f"frozen {100 * learner.mean_frozen_share:.0f} %"
    if budget is None or left is None:
        compute = (spent, spent)
    else:
        amount = format_compute(left, budget.rule, 3)
        compute = (f"compute left {amount}", f"{amount} left")
    held = format_bytes(learner.nbytes(), 3)
    if learner.budget.bytes is not None:
        held = f"bytes left {format_bytes(learner.budget.bytes - learner.nbytes(), 3)}"
    long = [f"accuracy {accuracy:.1f} %", f"A_AUC {a_auc:.1f} %", compute[0], held, frozen]
    short = [f"accuracy {accuracy:.0f} %", f"A_AUC {a_auc:.0f} %", compute[1], frozen, held]
    if not progress.evaluated:  # no accuracy is not an accuracy of 0
        long[:2] = short[:2] = ["not evaluated yet"]
    for parts in (long, *(short[:count] for count in range(len(short), 1, -1))):
        if room is None or len(text := ", ".join(parts)) <= room:
            return ", ".join(parts)
    return text


def _places(summary: dict[str, Any]) -> str:
    return f"all {summary['stored']} samples stored" if summary["slots"] is None else f"{summary['slots']} slots"


def _closing(summary: dict[str, Any], path: Path) -> str:
    spent = summary["spent"]
    forgetting = "" if summary["f_last"] is None else f", F_last {100 * summary['f_last']:.2f} %"
    return "\n".join(
        [
            f"A_AUC {100 * summary['a_auc']:.2f} %, A_last {100 * summary['a_last']:.2f} %{forgetting}",
            f"spent {format_compute(spent['paper'], 'paper')} / {format_compute(spent['real'], 'real')} in "
            f"{summary['iterations']} iterations over {summary['samples']} samples, "
            f"{100 * summary['frozen_share']:.1f} % of the backward frozen",
            f"{summary['bytes']} bytes ({format_bytes(summary['bytes'])}), {_places(summary)}; training "
            f"{summary['train_seconds']:.1f} s, evaluation {summary['eval_seconds']:.1f} s, waiting for data "
            f"{summary.get('wait_seconds', 0.0):.1f} s",
            *_passed_over(summary),
            *_several_machines(summary),
            f"{_ending(summary)}; folder {path}",
        ]
    )


def _ending(summary: dict[str, Any]) -> str:
    """How the run ended."""
    if not summary.get("budget_spent"):
        return "ended with the stream"
    return f"the compute of {summary['budget']} was spent before the stream ended: no training after that"


def _passed_over(summary: dict[str, Any]) -> list[str]:
    return [
        f"{summary[key]} bad {what}; the first: {summary[f'{key}_first'][0]}"
        for key, what in (("skipped", "samples were passed over"), ("skipped_test", "test images were left out"))
        if summary.get(key)
    ]


def _several_machines(summary: dict[str, Any]) -> list[str]:
    there = [f"{each['processor']}, arithmetic {each['arithmetic']}" for each in summary.get("environments", [])]
    return [f"its bits are not those of one machine: {'; then '.join(there)}"] if len(there) > 1 else []


def default(arguments: list[str]) -> RunCommand:
    """What the flags change: the plain defaults, or what a config file says."""
    return RunCommand(run=config_default(arguments))


def config_default(arguments: list[str]) -> RunConfig:
    """The defaults of the flags: those of a config file, if one is named."""
    from budgeted.runs.config import read_config

    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config":
            if not equals and i + 1 >= len(arguments):
                raise BudgetedError("--config needs a file")
            path = Path(value if equals else arguments[i + 1])
            found = read_config(path)
            for flag, alternatives in _ALTERNATIVES.items():  # a flag wins over what it stands instead of, too
                if any(given.partition("=")[0] == flag for given in arguments):
                    found = {key: value for key, value in found.items() if key.replace("-", "_") not in alternatives}
            return RunConfig.from_mapping(found, str(path))
    return RunConfig()
