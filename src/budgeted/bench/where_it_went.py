"""Figures of what a budget was spent on: compute by purpose, bytes by item, and what rested when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budgeted.bench.figures import COLOURS, drawn, wrapped
from budgeted.bench.table import Group, RunResult

_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++", "ooo")  # told apart in grey, too
_WIDE = 34  # letters of a row's name in a line


def draw_compute(groups: Sequence[Group], path: Path) -> None:
    """Compute by purpose, the mean over seeds, as a share of the row that spent most."""
    rows = [_mean([{name: cost[1] for name, cost in run.summary["spent_on"].items()} for run in group.runs])
            for group in groups]  # fmt: skip
    _bars(groups, path, rows, "compute executed, % of the row that spent most (rule real)")


def draw_bytes(groups: Sequence[Group], path: Path) -> None:
    """Bytes that persist, by item."""
    rows = [_mean([run.summary.get("bytes_by_item", {}) for run in group.runs]) for group in groups]
    _bars(groups, path, rows, "bytes kept, % of the row that keeps most")


def draw_frozen(groups: Sequence[Group], path: Path) -> bool:
    """How often each block rested over the stream, a panel a row; False, and nothing drawn, where nothing rested."""
    found = [(group, maps) for group in groups if (maps := _frozen(group)) is not None]
    if not found:
        return False
    shown = [group for group, _ in found]
    note = "shade: share of the steps in which the block rested, mean over seeds; the first block is at the bottom"
    columns = min(4, max(2, len(found)))
    with drawn(path, shown, note, -(-len(found) // columns), columns) as (figure, panels):
        for axes, (group, (samples, shares)) in zip(panels, found, strict=False):
            image = axes.pcolormesh(
                [0, *samples], np.arange(len(shares) + 1), shares, cmap="viridis", vmin=0, vmax=1, rasterized=True
            )
            axes.set_title(wrapped(group.label, 30), fontsize=8, loc="left")
            axes.set_xlabel("samples of the stream", fontsize=8)
        for axes in panels[len(found) :]:
            axes.remove()
        panels[0].set_ylabel("block", fontsize=8)
        figure.colorbar(image, ax=panels[: len(found)], label="frozen", fraction=0.03)
    return True


def _frozen(group: Group) -> tuple[list[int], NDArray[np.float64]] | None:
    """Block by evaluation: the share of steps since the one before in which it rested."""
    maps = [frozen_in(run) for run in group.runs if run.summary.get("frozen_share")]
    if not maps:
        return None
    samples = maps[0][0]
    alike = [shares for at, shares in maps if at == samples and shares.shape == maps[0][1].shape]
    return samples, np.mean(alike, axis=0)


def frozen_in(run: RunResult) -> tuple[list[int], NDArray[np.float64]]:
    """Samples at evaluations; block by evaluation, the share of steps in between in which it rested."""
    records = run.periodic_records()
    counts = np.array([[0] * len(records[0]["frozen_steps"]), *(record["frozen_steps"] for record in records)])
    steps = np.maximum(np.diff(np.array([0, *(record["steps"] for record in records)])), 1)
    shares = np.diff(counts, axis=0) / steps[:, None]
    return [int(record["samples"]) for record in records], np.asarray(shares.T, dtype=np.float64)


def _mean(costs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = {name: None for each in costs for name in each}  # in order
    return {name: float(np.mean([float(each.get(name, 0)) for each in costs])) for name in names}


def _bars(groups: Sequence[Group], path: Path, rows: Sequence[Mapping[str, float]], title: str) -> None:
    whole = max(sum(row.values()) for row in rows) or 1.0
    names = {name: None for row in rows for name, amount in row.items() if amount > 0.002 * whole}
    with drawn(path, groups, "named: parts above 0.2 %", height=1.6 + 0.34 * len(groups)) as (_, axes):
        left = np.zeros(len(groups))
        for place, name in enumerate(names):
            widths = np.array([100 * row.get(name, 0.0) / whole for row in rows])
            colour, hatch = COLOURS[place % len(COLOURS)], _HATCHES[place % len(_HATCHES)]
            axes.barh(range(len(groups)), widths, left=left, color=colour, hatch=hatch, edgecolor="white", label=name)
            left += widths
        axes.set_yticks(range(len(groups)), [wrapped(group.label, _WIDE) for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlim(0, 105)
        axes.set_xlabel(title)
        axes.legend(fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
