"""aL-SAR against Vanilla on the embedded digits, at one budget: two short runs per seed, a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.table import Group, find_runs, group_runs
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from budgeted.runs.folder import CONFIG


@dataclass(frozen=True)
class StreamDemo:
    """What the demo runs."""

    methods: tuple[str, ...] = ("vanilla", "al-sar")
    """Methods that are compared."""
    seeds: tuple[int, ...] = (1, 2)
    """Seeds of each."""
    model: str = "resnet20"
    """Model of every run."""
    limit: int = 800
    """Samples of the stream."""
    slots: int = 100
    """Places in the memory."""


def run_demo(settings: StreamDemo, folder: Path, report: Callable[[str, runs.Progress], None]) -> list[Group]:
    """Run what is not there yet, and answer with the groups in the order of the methods."""
    folders = []
    for method in settings.methods:
        for seed in settings.seeds:
            path = folder / f"{method}-{seed}"
            config = RunConfig(
                method=method,
                dataset="digits",
                stream="gaussian",
                model=settings.model,
                iterations=1.0,
                slots=settings.slots,
                limit=settings.limit,
                eval_every=25,
                seed=seed,
            )
            shown = f"{method}, seed {seed}"
            if (path / CONFIG).exists():
                runs.resume(path, lambda progress, shown=shown: report(shown, progress))  # type: ignore[misc]
            else:
                runs.start(config, path, lambda progress, shown=shown: report(shown, progress))  # type: ignore[misc]
            folders.append(path)
    return sorted(group_runs(find_runs(folders)), key=lambda group: settings.methods.index(group.label))


def draw(groups: Sequence[Group], path: Path) -> None:
    """Left: accuracy over the stream. Middle: compute spent. Right: which blocks were frozen, and when."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(13, 4), layout="constrained", gridspec_kw={"width_ratios": [1.2, 1, 1.1]}
    )
    colours = ["#7a8794", "#1f5fa8", "#e8a33d", "#3a9a5b", "#c0392b"]
    for colour, group in zip(colours, groups, strict=False):
        records = [run.periodic_records() for run in group.runs]
        samples = [record["samples"] for record in records[0]]
        accuracy = 100 * np.array([[record["accuracy"] for record in run] for run in records])
        spent = np.array([[record["spent"]["real"] for record in run] for run in records]) / 1e9
        left.plot(samples, accuracy.mean(0), color=colour, label=group.label, linewidth=2)
        left.fill_between(samples, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.18, linewidth=0)
        middle.plot(samples, spent.mean(0), color=colour, label=group.label, linewidth=2)
    left.set_title("Accuracy on the classes seen so far, %")
    left.legend(frameon=False, loc="lower right")
    middle.set_title("Compute spent, GFLOP (rule real)")
    middle.legend(frameon=False, loc="upper left")
    frozen = _frozen_by_block(groups[-1].runs[0].periodic_records())
    image = right.imshow(
        frozen,
        origin="lower",
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=100,
        extent=(0, samples[-1], -0.5, len(frozen) - 0.5),
    )
    right.set_title(f"{groups[-1].label}: steps that froze a block, %")
    right.set_ylabel("block (stem at the bottom, head on top)")
    figure.colorbar(image, ax=right)
    for axes in (left, middle, right):
        axes.set_xlabel("samples of the stream")
    for axes in (left, middle):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _frozen_by_block(records: list[dict[str, Any]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Blocks by evaluations: percentage of the steps in between that froze the block."""
    steps = np.diff([0, *(record["steps"] for record in records)])
    counts = np.diff(np.array([record["frozen_steps"] for record in records]), axis=0, prepend=0)
    shares: np.ndarray[Any, np.dtype[np.float64]] = 100 * counts.T / np.maximum(steps, 1)
    return shares
