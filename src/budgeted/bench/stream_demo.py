"""One budget of compute and bytes, three learners: what each makes of it on the embedded digits.

The learners and the budget were chosen on other seeds than the demo shows. Freezing is the plain linear kind, of about
a third of the blocks: adaptive freezing (freezing.ema=0.05, averages that warm up in time) rested most of the network
from the first samples on, and had 46.9 % where no freezing had 66.7 (seeds 1 to 3). On the first seed some steps are
watched by the independent counter, on the others the seconds are taken, so that neither disturbs the other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from budgeted.audit import ExecutedOnData
from budgeted.bench.drawing import pyplot, write_figure
from budgeted.bench.figures import COLOURS
from budgeted.bench.table import Group, RunResult
from budgeted.bench.table_formats import caption
from budgeted.bench.where_it_went import frozen_in
from budgeted.learner.files import replace_file
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG, SUMMARY, read_summary
from budgeted.runs.statistics import paired

Name = Literal["plain", "balanced", "ours", "frozen", "paper"]
LEARNERS: Mapping[Name, RunConfig] = {
    "plain": RunConfig(method="er"),
    "balanced": RunConfig(method="vanilla", retrieval="class-balanced"),
    "ours": RunConfig(method="cram"),
    "frozen": RunConfig(method="cram", freezing="linear", settings={"freezing.n_max": "4"}, spend_savings=True),
    "paper": RunConfig(method="al-sar"),
}
"""by name: how it is configured beside the budget"""
SAYS: Mapping[str, str] = {
    "plain": "experience replay, drawn at random (er)",
    "balanced": "replay of all classes alike (vanilla, class-balanced)",
    "ours": "replay of all classes alike by Muon, averaged weights (cram)",
    "frozen": "as ours, but up to 4 of 11 blocks rest, and what that saves buys steps",
    "paper": "aL-SAR, the paper's: freezing, and replay of what was used least",
}
TWIN, FREEZING = "ours", "frozen"
_BETWEEN = 25
"""evaluations are twice as far apart, and a step is counted in the middle between two"""


@dataclass(frozen=True)
class StreamDemo:
    """What the demo runs."""

    learners: tuple[Name, ...] = ("plain", "ours", "frozen")
    """Who learns: plain (experience replay), balanced (classes are replayed alike), ours (cram), frozen (ours, with the
    first blocks at rest in the course of the stream), paper (aL-SAR)."""
    compute: str = "60GFLOP"
    """Compute that each may spend."""
    memory: str = "1650kB"
    """Bytes that each may keep, its network included."""
    seeds: tuple[int, ...] = (4, 5, 6)
    """Seeds of each."""
    model: str = "resnet20"
    """Model of every run."""
    limit: int = 300
    """Samples of the stream."""


class Witness:
    """Looks on at single steps of a run: what the ledger was charged for them, and what the counter saw executed."""

    def __init__(self) -> None:
        self.charged = self.executed = self.steps = 0
        self._counter: ExecutedOnData | None = None
        self._before = (0, 0)

    def look(self, progress: runs.Progress) -> None:
        """Called after every sample; counted is what follows an odd multiple of 25, until a step is among it."""
        now = (progress.learner.ledger.spent.real, progress.learner.steps)
        if self._counter is not None:
            if now[1] == self._before[1] and progress.samples % _BETWEEN:
                return
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.executed += self._counter.total
            self.charged += now[0] - self._before[0]
            self.steps += now[1] - self._before[1]
            self._counter = None
        elif progress.samples % (2 * _BETWEEN) == _BETWEEN and progress.samples < progress.of_samples:
            self._before, self._counter = now, ExecutedOnData()
            self._counter.__enter__()  # type: ignore[no-untyped-call]

    def saw(self) -> dict[str, int]:
        return {"steps": self.steps, "charged": self.charged, "executed": self.executed}


def run_demo(settings: StreamDemo, folder: Path, report: Callable[[str, runs.Progress], None]) -> list[Group]:
    """Run what is not there yet, seed by seed so that all learners meet the same machine."""
    for seed in settings.seeds:
        for name in settings.learners:
            path = folder / f"{name}-{seed}"
            witness = Witness() if seed == settings.seeds[0] and not (path / CONFIG).exists() else None
            config = replace(
                LEARNERS[name], dataset="digits", stream="gaussian", model=settings.model, compute=settings.compute,
                memory=settings.memory, limit=settings.limit, eval_every=2 * _BETWEEN, seed=seed,
            )  # fmt: skip

            def shown(
                progress: runs.Progress, said: str = f"{name}, seed {seed}", by: Witness | None = witness
            ) -> None:
                if by is not None:
                    by.look(progress)
                report(said, progress)

            if (path / CONFIG).exists():
                runs.resume(path, shown)
            else:
                runs.start(config, path, shown)
            if witness is not None:
                replace_file(folder / f"{name}-counted.json", (json.dumps(witness.saw()) + "\n").encode())
    return [
        Group(name, tuple(RunResult(path, read_summary(path / SUMMARY)) for path in places))
        for name in settings.learners
        for places in [[folder / f"{name}-{seed}" for seed in settings.seeds]]
    ]


def findings(groups: Sequence[Group], folder: Path) -> list[str]:
    """What the runs came to, in words; every number is theirs."""
    known = {group.label: group for group in groups}
    lines = []
    if TWIN in known and FREEZING in known:
        lines.append(_saved(known[TWIN], known[FREEZING]))
    first = groups[0]
    if len(first.runs) > 1:
        lines += [_apart(group, first) for group in groups[1:]]
        seeds = len(first.runs)
        lines.append(f"          [95 % by seed, {seeds} of them: an interval that holds 0 tells nothing apart]")
    counted = {group.label: folder / f"{group.label}-counted.json" for group in groups}
    saw = {name: json.loads(path.read_text()) for name, path in counted.items() if path.exists()}
    ratios = ", ".join(
        f"{name} {each['executed'] / each['charged']:.4f}" for name, each in saw.items() if each["steps"]
    )
    if ratios:
        steps = sum(each["steps"] for each in saw.values())
        lines.append(f"ledger    executed / charged, by an independent counter over {steps} steps: {ratios}")
    return lines


def _saved(twin: Group, frozen: Group) -> str:
    """What freezing saved in a step, against the same learner without it; seconds of the runs that nobody watched."""
    less = 1 - _per_step(frozen.spent("real"), frozen) / _per_step(twin.spent("real"), twin)
    said = f"freezing  a step of {frozen.label} takes {_less(less)} compute than one of {twin.label}"
    slow, quick = unwatched(twin), unwatched(frozen)
    if slow.runs:
        seconds = [_per_step(group.values("train_cpu_seconds"), group) for group in (slow, quick)]
        said += f", {_less(1 - seconds[1] / seconds[0])} CPU time"
    steps = [sum(group.values("iterations")) / len(group.runs) for group in (frozen, twin)]
    return f"{said}; that bought {steps[0] - steps[1]:+.0f} steps"


def unwatched(group: Group) -> Group:
    """The runs whose seconds are their own: the first one was watched."""
    return Group(group.label, group.runs[1:])


def _per_step(values: Sequence[float], group: Group) -> float:
    return sum(values) / sum(group.values("iterations"))


def _less(share: float) -> str:
    return f"{100 * abs(share):.0f} % {'less' if share >= 0 else 'more'}"


def _apart(group: Group, first: Group) -> str:
    """How far two learners are apart over the stream and at its end, seed by seed."""
    return f"accuracy  {group.label} less {first.label}: {_points(group, first, 'a_auc')}, " + (
        f"at the end {_points(group, first, 'a_last')}"
    )


def _points(group: Group, first: Group, metric: str) -> str:
    test = paired(group.by_seed(metric), first.by_seed(metric))
    low, high = test.interval()
    return f"{test.difference:+.1f} points [{low:+.1f}, {high:+.1f}]"


def draw(groups: Sequence[Group], path: Path) -> None:
    """Left: accuracy over the stream. Middle: what a step costs. Right: which blocks were frozen, and when."""
    plt = pyplot()
    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 4.2), layout="constrained", gridspec_kw={"width_ratios": [1.2, 1, 1.1]}
    )
    said = []
    for colour, group in zip(COLOURS, groups, strict=False):
        records = [run.periodic_records() for run in group.runs]
        samples = [record["samples"] for record in records[0]]
        accuracy = 100 * np.array([[record["accuracy"] for record in run] for run in records])
        mean = 100 * float(np.mean(group.values("a_auc")))
        left.plot(samples, accuracy.mean(0), color=colour, linewidth=2, label=f"{group.label} (mean {mean:.1f} %)")
        left.fill_between(samples, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.15, linewidth=0)
        middle.plot(samples, np.mean([_cost_of_steps(run) for run in records], axis=0), color=colour, linewidth=2)
        steps = float(np.mean(group.values("iterations")))
        spent = float(np.mean(group.spent("real"))) / 1e9
        said.append((f"{group.label}: {steps:.0f} steps, {spent:.1f} GFLOP", colour))
    left.set_title("Accuracy on the classes seen so far, % (band: all seeds)", loc="left", fontsize=10)
    figure.legend(frameon=False, loc="outside lower left", ncols=len(groups), fontsize=10)
    middle.set_title("Compute of a step, GFLOP (rule real)", loc="left", fontsize=10)
    middle.set_ylim(0, 1.08 * middle.get_ylim()[1])
    for place, (text, colour) in enumerate(reversed(said)):
        middle.text(0.04, 0.05 + 0.07 * place, text, color=colour, transform=middle.transAxes)
    resting = max(groups, key=lambda group: float(np.mean(group.values("frozen_share"))))
    share = 100 * np.mean([frozen_in(run)[1] for run in resting.runs], axis=0)
    extent = (0, samples[-1], -0.5, len(share) - 0.5)
    image = right.imshow(
        share, origin="lower", aspect="auto", cmap="Blues", vmin=0, vmax=max(10, share.max()), extent=extent
    )
    right.set_title(f"{resting.label}: steps in which a block rested, %", loc="left", fontsize=10)
    right.set_ylabel("block, the first at the bottom")
    right.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=right)
    for axes in (left, middle, right):
        axes.set_xlabel("samples of the stream")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in (left, middle):
        axes.grid(alpha=0.25)
        axes.set_xlim(0, samples[-1])
    figure.suptitle(f"One budget, {len(groups)} learners · {caption(groups)}", x=0.01, ha="left", fontsize=11)
    write_figure(figure, path, dpi=130)
    plt.close(figure)


def _cost_of_steps(records: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """GFLOP of a step between one evaluation and the next."""
    steps = np.diff([0, *(record["steps"] for record in records)])
    spent: NDArray[np.float64] = np.diff([0, *(record["spent"]["real"] for record in records)]) / 1e9
    return spent / np.maximum(steps, 1)
