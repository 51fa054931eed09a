"""The paper's figures that are no runs but measurements: each makes one record, from which its figures are drawn.

A record lies in `measured.json` of a folder of its own, with everything it was made with; a record that is there is not
made again. `budgeted report` draws the records that it finds beside the runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.inside import InsideSettings, look_inside
from budgeted.bench.paper_recipes import key
from budgeted.bench.protocols import Recipe
from budgeted.bench.use_frequency import ToySettings, toy_experiments
from budgeted.errors import BudgetedError
from budgeted.learner.files import read_json, write_json
from budgeted.runs.environment import environment

RECORD = "measured.json"
Settings = InsideSettings | ToySettings


@dataclass(frozen=True)
class Measurement:
    """One record, and what it is made with at both sizes."""

    question: str
    cpu: Settings
    paper: Settings

    def at(self, size: str) -> Settings:
        return self.paper if size == "paper" else self.cpu


_TOYS = ToySettings()
_ESTIMATE = InsideSettings(method="al", stream="gaussian", samples=2_000, larger_sample=True)
_INSIDE = InsideSettings()


def _as_published(settings: InsideSettings) -> InsideSettings:
    return replace(settings, model="resnet32", samples=50_000, slots=2_000)


MEASUREMENTS: dict[str, Measurement] = {
    "Figure 5": Measurement(
        "Is the Fisher estimate near that from 16 times as many samples?", _ESTIMATE, _as_published(_ESTIMATE)
    ),
    "Figure 8": Measurement(
        "How does the freezing criterion of each block move, and what when a task ends?", _INSIDE,
        _as_published(_INSIDE),
    ),
    "Figures 19 to 21": Measurement(
        "Does use lower what a sample teaches, is it forgotten exponentially, do similar samples count?", _TOYS,
        replace(_TOYS, per_class=20, epochs=20, references=50),
    ),
}  # fmt: skip


def measured_recipes() -> dict[str, Callable[[], Recipe]]:
    """`figure-8` and `figure-8-paper`, for all."""
    found: dict[str, Callable[[], Recipe]] = {}
    for title, each in MEASUREMENTS.items():
        for size, suffix, remark in (("cpu", "", ""), ("paper", "-paper", ", as published")):
            recipe = Recipe(f"{title}{remark}. {each.question}", (), measures=partial(measure, title, size))
            found[f"{key(title)}{suffix}"] = lambda made=recipe: made  # type: ignore[misc]
    return found


def measure(title: str, size: str, out: Path, data: Path | None) -> Path:
    """The record, made now or found; one that was made with other settings is refused, not overwritten."""
    settings = MEASUREMENTS[title].at(size)
    folder = out / f"{key(title)}{'-paper' if size == 'paper' else ''}"
    path = folder / RECORD
    if path.exists():
        if read_json(path).get("settings") != json.loads(json.dumps(asdict(settings))):
            raise BudgetedError(f"{path} was made with other settings: choose another folder with --out")
        return path
    record = look_inside(settings, data) if isinstance(settings, InsideSettings) else toy_experiments(settings, data)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"measured": title, "environment": environment(1, "cpu"), **record})
    return path


def findings(record: Mapping[str, Any]) -> list[str]:
    """What a record says, in plain words and its own numbers."""
    if "decreases" in record:
        return list(_toy_findings(record))
    return list(_inside_findings(record))


def _toy_findings(record: Mapping[str, Any]) -> list[str]:
    first, last = (record["decreases"]["decrease_by_use"][place][0] for place in (0, -1))
    use, lost, moved = record["decreases"], record["forgotten"], record["transferred"]
    found = [
        f"A step lowers its sample's loss by {first:.3f} at the first use and by {last:.3f} at the "
        f"{len(use['decrease_by_use'])}th (Spearman {use['spearman']:.2f}, p {use['p']:.2g})."
    ]
    if lost["r_squared"] is not None:
        found.append(
            f"Effective use falls by {100 * (1 - 2.718281828 ** lost['rate']):.1f} % a step with another sample; an "
            f"exponential explains {100 * lost['r_squared']:.0f} % of the variance of its logarithm "
            f"({lost['references']} references)."
        )
    unlike = [pair for pair in zip(moved["cosine"], moved["change"], strict=True) if pair[0] < 0]
    among = ""
    if len(unlike) > 2:  # the two kinds of pairs may lie so far apart that a line through both says little of either
        inside = np.corrcoef(np.array(unlike).T)[0, 1]
        among = f"; r {inside:.2f} among the {len(unlike)} whose gradients oppose"
    found.append(
        f"Cosine of the gradients against the change of effective use: r {moved['r']:.2f}, p {moved['p']:.2g}, over "
        f"{len(moved['cosine'])} pairs{among}."
    )
    return found


def _inside_findings(record: Mapping[str, Any]) -> list[str]:
    found = []
    if record["bfc"]:
        rows = record["positive"]
        share = sum(max(row) for row in rows) / len(rows)
        found.append(
            f"Freezing up to some block would have gained in {100 * share:.0f} % of the steps that were not refreshes."
        )
    own = record["fisher"].get("own")
    for kind, larger in record["fisher"].items():
        if kind == "own" or not own:
            continue
        half = len(larger) // 2  # after the averages have filled
        ratios = [a / b for mine, other in zip(own[half:], larger[half:], strict=True)
                  for a, b in zip(mine, other, strict=True) if b > 0]  # fmt: skip
        if ratios:
            ordered = sorted(ratios)
            middle = ordered[len(ordered) // 2]
            low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
            found.append(
                f"Own Fisher estimate over that from {kind}, second half of the stream: median {middle:.2f}, 90 % "
                f"between {low:.2f} and {high:.2f}."
            )
    return found
