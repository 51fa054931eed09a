"""Curves over budgets: what a method makes of more compute or more bytes, by what it was allowed and what it used.

A method that occurs with several budgets is one line. Where a figure's columns are two, the left one goes by what was
executed or kept, the right one by what was allowed: they differ where freezing saves, or where bytes are left over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.figures import COLOURS, LINES, drawn, label_ends, values_over_stream
from budgeted.bench.table import Group
from budgeted.budget import parse_bytes, parse_compute

_BUDGETS = re.compile(r" (?:compute|memory|iterations)=\S+")
_MARKS = "os^DvP*X"
Amount = Callable[[Group], float | None]


@dataclass(frozen=True)
class Curve:
    """One method over its budgets, from the smallest on."""

    label: str
    groups: tuple[Group, ...]


def curves(groups: Sequence[Group], amount: Amount) -> list[Curve]:
    """Methods that occur with at least two amounts; others have no curve."""
    by_name: dict[str, list[tuple[float, Group]]] = {}
    for group in groups:
        found = amount(group)
        if found is not None:
            by_name.setdefault(_BUDGETS.sub("", group.label), []).append((found, group))
    lines = []
    for label, rows in by_name.items():
        rows.sort(key=lambda row: row[0])
        if len({round(each, 6) for each, _ in rows}) > 1:
            lines.append(Curve(label, tuple(group for _, group in rows)))
    return lines


def executed_compute(group: Group) -> float | None:
    return float(np.mean(group.spent("real")))


def allowed_compute(group: Group) -> float | None:
    """As it was given: a budget, under the rule that its unit names, or iterations a sample."""
    config = group.runs[0].config
    if config.get("compute"):
        return float(parse_compute(config["compute"]).amount)
    return None


def kept_bytes(group: Group) -> float | None:
    return float(np.mean(group.values("bytes")))


def allowed_bytes(group: Group) -> float | None:
    memory = group.runs[0].config.get("memory")
    return float(parse_bytes(memory)) if memory else None


ACCURACIES = (("a_auc", "A_AUC, %"), ("a_last", "A_last, %"))
FORGETTING = (("f_last", "F_last, % (less is better)"), ("klr", "KLR, % (less is better)"))
COMPUTE: tuple[tuple[Amount, str], ...] = ((executed_compute, "compute executed, TFLOP"), (allowed_compute, "allowed"))
BYTES: tuple[tuple[Amount, str], ...] = ((kept_bytes, "bytes kept, MB"), (allowed_bytes, "bytes allowed, MB"))


def draw_compute_curves(groups: Sequence[Group], path: Path) -> bool:
    return _draw(groups, path, COMPUTE, ACCURACIES, 1e12)


def draw_bytes_curves(groups: Sequence[Group], path: Path) -> bool:
    return _draw(groups, path, BYTES, ACCURACIES, 1e6)


def draw_forgetting_curves(groups: Sequence[Group], path: Path) -> bool:
    return _draw(groups, path, COMPUTE, FORGETTING, 1e12)


def _draw(
    groups: Sequence[Group],
    path: Path,
    amounts: Sequence[tuple[Amount, str]],
    metrics: Sequence[tuple[str, str]],
    unit: float,
) -> bool:
    """A row of panels for each metric, a column for each amount; False, and nothing drawn, where there is no curve."""
    lines = curves(groups, amounts[1][0])  # by what was allowed: what freezing saves makes no budget of its own
    if not lines:
        return False
    note = (
        "mark: mean over seeds; bar: from the lowest seed to the highest; left: what was used, right: what was allowed"
    )
    with drawn(path, groups, note, len(metrics), len(amounts), height=6.4, share_x=False, share_y=False) as (_, panels):
        for row, (key, metric) in enumerate(metrics):
            for column, (amount, name) in enumerate(amounts):
                axes = panels[row * len(amounts) + column]
                ends = [_line(axes, line, place, key, amount, unit) for place, line in enumerate(lines)]
                axes.set_ylabel(metric if column == 0 else "")
                axes.set_xlabel(_unit(name, lines) if row == len(metrics) - 1 else "")
                axes.set_xscale("log", base=2)
                marked = [found / unit for group in lines[0].groups if (found := amount(group)) is not None]
                axes.set_xticks(marked, [f"{each:.3g}" for each in marked])
                axes.minorticks_off()
                if column == len(amounts) - 1:
                    label_ends(axes, ends, [line.label for line in lines], 0.075)
    return True


def _unit(name: str, lines: Sequence[Curve]) -> str:
    if name != "allowed":
        return name
    given = str(lines[0].groups[0].runs[0].config["compute"])
    return f"compute allowed, T{'MAC (rule paper)' if given.endswith('MAC') else 'FLOP'}"


def _line(axes: Any, line: Curve, place: int, key: str, amount: Amount, unit: float) -> float | None:
    """Draws it; where it ends, for its name."""
    places, means = [], []
    colour = COLOURS[place % len(COLOURS)]
    for group in line.groups:
        at, values = amount(group), [100 * value for value in group.values(key)]
        if at is None or not values:
            continue
        places.append(at / unit)
        means.append(float(np.mean(values)))
        axes.plot([at / unit] * 2, [min(values), max(values)], color=colour, linewidth=1, alpha=0.6)
    axes.plot(places, means, color=colour, marker=_MARKS[place % len(_MARKS)], markersize=5, linewidth=1.6)
    return means[-1] if means else None


# -- compute over the stream -------------------------------------------------------------------------------------------

_TREND = 0.2
"""share of the stream whose trend is drawn on, as in the paper's figure"""


def draw_spent(groups: Sequence[Group], path: Path) -> bool:
    """What each row had spent at each point of the stream; False where nothing was ever frozen, or rows are many."""
    if not 1 < len(groups) <= 6 or not any(np.mean(group.values("frozen_share")) > 0 for group in groups):
        return False
    note = f"dotted: the trend of the first {100 * _TREND:.0f} % of the stream, drawn on; mean over seeds"
    with drawn(path, groups, note) as (_, axes):
        ends = []
        for place, group in enumerate(groups):
            samples, by_seed = values_over_stream(group, lambda record: record["spent"]["real"] / 1e12)
            spent = by_seed.mean(0)
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(samples, spent, color=colour, linewidth=1.8, linestyle=LINES[place])
            first = max(1, int(len(samples) * _TREND))
            slope = spent[first - 1] / samples[first - 1]
            axes.plot([0, samples[-1]], [0, slope * samples[-1]], ":", color=colour, linewidth=0.8, alpha=0.8)
            ends.append(float(spent[-1]))
        labels = [f"{group.label}: {end:.1f}" for group, end in zip(groups, ends, strict=True)]
        label_ends(axes, ends, labels, 0.06, 8.5)
        axes.set_xlabel("samples of the stream")
        axes.set_ylabel("compute executed, TFLOP (rule real)")
    return True
