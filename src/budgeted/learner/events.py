"""What happens to a learner or a run, told to whoever listens: a new class, compute that runs out, an evaluation.

    learner = Learner("resnet20", "al-sar", on_event=print, budget="200GFLOP")
    learner.events.listen(csv_file("events.csv"))

A listener that fails is heard of in the log and asked no more: telling never ends what is told of.
"""

from __future__ import annotations

import csv
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from budgeted.errors import BudgetedError, needed

if TYPE_CHECKING:
    from budgeted.learner.learner import Learner

log = logging.getLogger("budgeted")
Kind = Literal["new class", "half spent", "nearly spent", "spent", "topped up", "refused", "evaluation", "checkpoint"]
MARKS: tuple[tuple[float, Kind], ...] = ((0.5, "half spent"), (0.9, "nearly spent"))
"""shares of the compute, and what is told when they are passed"""


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    kind: Kind
    arrived: int
    """samples so far"""
    steps: int
    """training steps so far"""
    spent: float | None
    """share of the compute budget, if there is one"""
    values: Mapping[str, Any] = field(default_factory=dict)
    """what there is to say beside it: the class, the accuracy, the reason"""

    def __str__(self) -> str:
        told = ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                         for name, value in self.values.items())  # fmt: skip
        share = "" if self.spent is None else f", {100 * self.spent:.0f} % of the compute spent"
        return f"{self.kind}{': ' if told else ''}{told} ({self.arrived} samples, {self.steps} steps{share})"


Listener: TypeAlias = Callable[[Event], object]


class Events:
    """Who listens to one learner."""

    def __init__(self, learner: Learner, listeners: Listener | Iterable[Listener] = ()) -> None:
        self._learner = learner
        self._listeners = [listeners] if callable(listeners) else list(listeners)
        self._told = 0.0  # share of the compute up to which marks were told
        self._over = False

    def listen(self, listener: Listener) -> None:
        """Tell this one, too, from now on."""
        self._listeners.append(listener)

    def tell(self, kind: Kind, **values: Any) -> None:
        if not self._listeners:
            return
        learner = self._learner
        event = Event(kind, learner.arrived, learner.steps, self._share(), values)
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception as error:
                self._listeners.remove(listener)
                log.warning("a listener to events failed and is asked no more: %s: %s", type(error).__name__, error)

    def look(self) -> None:
        """Has a part of the compute been passed, or its end come?"""
        if not self._listeners:
            return
        share = self._share()
        if share is not None:
            for mark, kind in MARKS:
                if self._told < mark <= share:
                    self.tell(kind)
            self._told = share
        if self._learner.spent_up and not self._over:
            self._over = True
            self.tell("spent")

    def caught_up(self) -> None:
        """The learner was loaded, or its budget raised: what was passed before is not told again."""
        self._told, self._over = self._share() or 0.0, self._learner.spent_up

    def _share(self) -> float | None:
        ledger = self._learner.ledger
        if ledger.compute is None or not ledger.allowed:
            return None
        return ledger.spent.under(ledger.compute.rule) / ledger.allowed


# -- ready listeners ------------------------------------------------------------------------------------------------


def log_lines(logger: logging.Logger = log, level: int = logging.INFO) -> Listener:
    """A line of the log for every event."""
    return lambda event: logger.log(level, "%s", event)


def csv_file(path: Path | str) -> Listener:
    """A line of a CSV file for every event, behind those that are there: it may be read while it grows."""
    path = Path(path)
    columns = ["seconds", "kind", "arrived", "steps", "spent", "what", "value"]

    def write(event: Event) -> None:
        fresh = not path.exists() or path.stat().st_size == 0
        with path.open("a", newline="") as file:
            rows = csv.writer(file)
            if fresh:
                rows.writerow(columns)
            share = "" if event.spent is None else round(event.spent, 6)
            for what, value in event.values.items() or [("", "")]:
                rows.writerow([f"{time.time():.3f}", event.kind, event.arrived, event.steps, share, what, value])

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise BudgetedError(f"cannot write events to {path}: {error.strerror}: choose another file") from error
    return write


def tensorboard(folder: Path | str) -> Listener:
    """Numbers as curves over the samples, all else as text, for `tensorboard --logdir FOLDER`."""
    said = "TensorBoard files need tensorboard: pip install 'budgeted[tensorboard]'"
    writer = needed("torch.utils.tensorboard", said).SummaryWriter(str(folder))

    def write(event: Event) -> None:
        if event.spent is not None:
            writer.add_scalar("spent", event.spent, event.arrived)
        for name, value in event.values.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                writer.add_scalar(f"{event.kind}/{name}", value, event.arrived)
        if not any(isinstance(value, float) for value in event.values.values()):
            writer.add_text(event.kind, str(event), event.arrived)
        writer.flush()

    return write


class Tracked(Protocol):
    """A run of trackio or of Weights & Biases: both have this."""

    def log(self, metrics: dict[str, Any], step: int | None = None) -> Any: ...


def tracker(run: Tracked) -> Listener:
    """Events to a run of trackio or Weights & Biases, over the samples: `tracker(trackio.init(project="mine"))`.

    Numbers become curves, words stay words; what has neither, as a budget half spent, tells after how many steps.
    """

    def write(event: Event) -> None:
        values = {name: value for name, value in event.values.items() if value is not None} or {"steps": event.steps}
        told = {f"{event.kind}/{name}": _number_or_words(value) for name, value in values.items()}
        if event.spent is not None:
            told["spent"] = event.spent
        run.log(told, step=event.arrived)

    return write


def _number_or_words(value: Any) -> float | int | str:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


TRACKERS = ("trackio", "wandb")


def tracker_of(text: str, config: Mapping[str, Any]) -> AbstractContextManager[Listener] | None:
    """`trackio:PROJECT` or `wandb:PROJECT`: a new run of it, which knows the configuration, and whether what is done
    inside fails; None for anything else."""
    name, colon, project = text.partition(":")
    if name not in TRACKERS or not colon:
        return None
    if not project:
        raise BudgetedError(f"name a project of {name}, as in --events {name}:mine")
    return _tracked(needed(name, f"events to {name} need it: pip install {name}"), project, config)


@contextmanager
def _tracked(module: Any, project: str, config: Mapping[str, Any]) -> Iterator[Listener]:
    name = module.__name__
    try:
        with redirect_stdout(sys.stderr):  # what they say there would stand amid our own output
            run: Tracked = module.init(project=project, config=dict(config))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise BudgetedError(f"{name} begins no run ({why}): mend that, or leave --events out") from error
    failed = {"exit_code": 1} if name == "wandb" else {}  # trackio has no word for it
    try:
        yield tracker(run)
        failed = {}
    finally:
        try:
            with redirect_stdout(sys.stderr):
                module.finish(**failed)
        except Exception as error:
            log.warning("%s did not end its run: %s: %s", name, type(error).__name__, error)
