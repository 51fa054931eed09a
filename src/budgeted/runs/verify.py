"""Was this run made as it says? Stretches of it are replayed, and must come to the same weights, ledger and records.

A run is a chain: from nothing, by its seed, to its first checkpoint, from each to the next, and from the last to the
summary. Each link can be replayed by itself. The first is always replayed, since it shows that the run began with
nothing but its seed, and the last, since the summary and the weights stand on it; of those between, as many as are
asked for, drawn by lot after the folder was handed over. Whoever forged one of n others is missed with chance 1 - k/n.
"""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from budgeted.errors import BudgetedError
from budgeted.learner import state
from budgeted.runs.agreeing import (
    UNREPEATABLE,
    exact_records,
    exact_states,
    exact_summaries,
    near_records,
    near_states,
    near_summaries,
)
from budgeted.runs.claims import Claims, Point, claims_of, contradictions
from budgeted.runs.environment import alike, environment
from budgeted.runs.keeping import ALL
from budgeted.runs.replaying import Replayed, built, replay
from budgeted.runs.run import sittings_of

STRETCHES = 3
TOLERANCE = 0.02
"""on another arithmetic: of the way that the weights came, of the compute, of all test images"""


@dataclass(frozen=True)
class Stretch:
    """One link of the chain."""

    number: int
    start: Point | None
    stop: Point | None
    last: bool

    def samples(self, length: int) -> tuple[int, int]:
        begin = 0 if self.start is None else self.start.position
        return begin, length if self.last or self.stop is None else self.stop.position


@dataclass(frozen=True)
class Looked:
    """A stretch that was replayed."""

    number: int
    begin: int
    end: int
    exact: bool
    """False: on another arithmetic, so within the tolerance"""
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """What a third party can say of a run."""

    run: str
    method: str
    dataset: str
    stream: str
    seed: int
    samples: int
    finished: bool
    stretches: int
    draw: int
    tolerance: float
    contradictions: tuple[str, ...]
    looked: tuple[Looked, ...]
    weights_sha256: str | None
    summary_sha256: str | None
    environment: dict[str, Any] = field(repr=False)

    @property
    def confirmed(self) -> bool:
        return not self.contradictions and bool(self.looked) and not any(each.findings for each in self.looked)

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.looked)

    @property
    def replayed(self) -> int:
        """Samples."""
        return sum(each.end - each.begin for each in self.looked)

    @property
    def missed(self) -> float:
        """The chance that a forgery in a single one of the stretches that were not always replayed was not found."""
        between = max(0, self.stretches - 2)
        return 1 - (len(self.looked) - (self.stretches - between)) / between if between else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "confirmed": self.confirmed,
            "exact": self.exact,
            "replayed_samples": self.replayed,
            "chance_missed": self.missed,
            "not_confirmed_by_any_replay": list(UNREPEATABLE),
        }


Report = Callable[[Looked], None]


def verify(
    path: Path,
    *,
    stretches: int | str = STRETCHES,
    draw: int | None = None,
    tolerance: float = TOLERANCE,
    data: str | None = None,
    report: Report | None = None,
) -> Verification:
    """Replay the first stretch, the last, and so many between them ("all": every one); the folder is only read."""
    if isinstance(stretches, str) and stretches != ALL:
        raise BudgetedError(f"--stretches is a number or {ALL!r}, got {stretches!r}")
    if isinstance(stretches, int) and stretches < 0:
        raise BudgetedError(f"--stretches must be 0 or more, got {stretches}")
    if not 0 < tolerance < 1:
        raise BudgetedError(f"--tolerance must be between 0 and 1, got {tolerance}")
    claims = claims_of(path)
    claims.config.refuse_other_sources()
    here = environment(claims.config.threads, claims.config.device)
    run = built(claims, here, data)
    with_itself = tuple(_caught(contradictions(claims, run)))
    chain, draw = _chain(claims, path), secrets.randbits(32) if draw is None else draw
    looked = []
    for stretch in [] if with_itself else _drawn(chain, stretches, draw):
        looked.append(_look(claims, stretch, here, data, tolerance, len(run.stream)))
        if report is not None:
            report(looked[-1])
    config, summary = claims.config, claims.summary or {}
    return Verification(
        path.resolve().name, config.method, config.dataset, config.stream, config.seed, len(run.stream),
        claims.summary is not None, len(chain), draw, tolerance, with_itself, tuple(looked),
        summary.get("weights_sha256"), summary.get("summary_sha256"), here,
    )  # fmt: skip


def _chain(claims: Claims, path: Path) -> list[Stretch]:
    """All stretches, in order. A checkpoint at the very end lies inside the last one."""
    points = [None, *claims.points]
    finished = claims.summary is not None
    links = [(one, two, False) for one, two in itertools.pairwise(points)]
    if finished:
        at_the_end = claims.points and claims.points[-1].position >= int(claims.summary["samples"])  # type: ignore[index]
        start, stop = links.pop()[:2] if at_the_end else (points[-1], None)
        links.append((start, stop, True))
    if not links:
        raise BudgetedError(
            f"{path} has no checkpoint and no summary yet: let the run go on, there is nothing to replay"
        )
    return [Stretch(number, *link) for number, link in enumerate(links, 1)]


def _drawn(chain: list[Stretch], stretches: int | str, draw: int) -> list[Stretch]:
    between = chain[1:-1]
    if isinstance(stretches, int):
        between = random.Random(draw).sample(between, min(stretches, len(between)))
    chosen = {stretch.number: stretch for stretch in (chain[0], *between, chain[-1])}
    return [chosen[number] for number in sorted(chosen)]


def _look(
    claims: Claims, stretch: Stretch, here: dict[str, Any], data: str | None, tolerance: float, length: int
) -> Looked:
    exact = False

    def findings() -> Iterator[str]:
        nonlocal exact
        exact = all(alike(each, here) for each in _machines(claims, stretch))
        found = replay(claims, here, data, stretch.start, stretch.stop, stretch.last)
        yield from _compared(claims, stretch, found, tolerance, exact)

    found = tuple(_caught(findings()))
    return Looked(stretch.number, *stretch.samples(length), exact, found)


def _compared(claims: Claims, stretch: Stretch, found: Replayed, tolerance: float, exact: bool) -> Iterator[str]:
    if stretch.stop is not None:
        recorded = state.read(stretch.stop.path)
        if found.ended is None:
            yield f"a replay makes no checkpoint after {stretch.stop.position} samples"
        elif exact:
            yield from exact_states(recorded, found.ended)
        else:
            yield from near_states(recorded, found.ended, found.began, tolerance)
    first = 0 if stretch.start is None else claims.records_until(stretch.start)
    upto = claims.records_until(None if stretch.last else stretch.stop)
    told = claims.records[first:upto]
    yield from exact_records(told, found.records) if exact else near_records(told, found.records, tolerance)
    if stretch.last and claims.summary is not None and found.summary is not None:
        summaries = claims.summary, found.summary
        yield from exact_summaries(*summaries) if exact else near_summaries(*summaries, tolerance)


def _machines(claims: Claims, stretch: Stretch) -> list[Mapping[str, Any]]:
    """Where the stretch says that it was made: what was at work when it began, and all that came until its end."""
    if stretch.last and claims.summary is not None:
        ended = claims.summary.get("environments") or [claims.folder.environment()]
    else:
        assert stretch.stop is not None
        ended = sittings_of(dict(stretch.stop.numbers), claims.folder)
    begun = 1 if stretch.start is None else len(sittings_of(dict(stretch.start.numbers), claims.folder))
    return list(ended[begun - 1 :])


def _caught(findings: Iterator[str]) -> Iterator[str]:
    """A forged state may break anything: that it does is a finding too."""
    try:
        yield from findings
    except BudgetedError as error:
        yield str(error)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        yield f"it cannot be taken up: {type(error).__name__}: {error}"
