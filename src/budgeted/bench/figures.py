"""Figures of runs: accuracy over the stream, results with their intervals, and accuracy against compute.

Every figure names what it is of in its title, and its rows where they are, without a legend. Up to five rows share one
panel; more get a panel each, before the others in grey. Colours are those of Okabe and Ito, which people with any kind
of colour vision tell apart; lines of one panel differ in their dashes, too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from budgeted.bench.drawing import pyplot, refuse_without_matplotlib, write_figure
from budgeted.bench.table import Group
from budgeted.bench.table_formats import caption
from budgeted.errors import BudgetedError
from budgeted.runs.statistics import Summary, confidence_interval, format_mean_sd, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS_IN_ONE_PANEL = 5
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)), (0, (3, 3)))
"""told apart in grey, too"""
_GREY, _INK = "#BBBBBB", "#333333"
_PANELS_IN_A_ROW = 4
_LONG = 26  # letters of a name that has no room among the marks
_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1))


def refuse_undrawable(path: Path) -> None:
    """Before anything is computed: a kind of picture that nobody draws, or nobody here."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BudgetedError(f"cannot draw {path}: end its name in .png, .svg or .pdf")
    refuse_without_matplotlib()


def draw_over_stream(groups: Sequence[Group], path: Path) -> None:
    """Accuracy over the stream: the mean over seeds, and a band over the range between them."""
    curves = [values_over_stream(group, lambda record: 100 * record["accuracy"]) for group in groups]
    if len(groups) <= ROWS_IN_ONE_PANEL:
        with drawn(path, groups, _seeds_note(groups)) as (_, axes):
            for place, (samples, values) in enumerate(curves):
                _curve(axes, samples, values, COLOURS[place], LINES[place])
            ends = [float(values.mean(0)[-1]) for _, values in curves]
            labels = [_named(group) for group in groups]
            label_ends(axes, ends, labels, 0.05 * max(label.count("\n") + 1 for label in labels), 8.5)
            _name_axes(axes)
        return
    rows = -(-len(groups) // _PANELS_IN_A_ROW)
    note = f"accuracy on the classes seen so far; {_seeds_note(groups)}; grey: the other rows"
    with drawn(path, groups, note, rows, _PANELS_IN_A_ROW) as (_, panels):
        for place, (axes, group) in enumerate(zip(panels, groups, strict=False)):
            for samples, values in curves:
                axes.plot(samples, values.mean(0), color=_GREY, linewidth=0.6, zorder=1)
            _curve(axes, *curves[place], COLOURS[0])
            result = summarise(group.values("a_auc"))
            axes.set_title(f"{wrapped(group.label, 30)}\nA_AUC {_percent(result)}", fontsize=8, loc="left")
        for axes in panels[len(groups) :]:
            axes.remove()
        for place, axes in enumerate(panels[: len(groups)]):
            axes.set_ylabel("accuracy, %" if place % _PANELS_IN_A_ROW == 0 else "", fontsize=8)
            lowest = place + _PANELS_IN_A_ROW >= len(groups)
            axes.set_xlabel("samples of the stream" if lowest else "", fontsize=8)
            axes.tick_params(labelbottom=lowest)


def draw_dots(groups: Sequence[Group], path: Path) -> None:
    """A_AUC and A_last of every row: a dot at the mean, its 95 % interval, and every seed as a small mark."""
    note = "dot: mean; line: 95 % interval of the mean (Student's t), cut at the edge; small: single seeds"
    names = [wrapped(group.label, 34) for group in groups]
    row = max(0.34, *(0.17 * (1 + name.count("\n")) for name in names))  # inches: the longest name sets the distance
    with drawn(path, groups, note, 1, 2, height=1.2 + row * len(groups), share_x=False) as (_, panels):
        for axes, key, title in zip(panels, ("a_auc", "a_last"), ("A_AUC, %", "A_last, %"), strict=True):
            for place, group in enumerate(groups):
                values = [100 * value for value in group.values(key)]
                colour = COLOURS[0] if place % 2 == 0 else COLOURS[1]  # two, so that the eye keeps to its line
                if len(values) > 1:
                    axes.plot(confidence_interval(values), (place, place), color=colour, linewidth=2, zorder=2)
                    axes.plot(values, [place] * len(values), "|", color=colour, markersize=7, alpha=0.6, zorder=2)
                axes.plot(np.mean(values), place, "o", color=colour, markersize=6, zorder=3)
            axes.set_yticks(range(len(groups)), names)
            axes.set_ylim(len(groups) - 0.5, -0.5)
            axes.set_xlabel(title)
            _limit_to_seeds(axes, [100 * value for group in groups for value in group.values(key)])
        panels[1].tick_params(labelleft=False)


def draw_against_compute(groups: Sequence[Group], path: Path) -> None:
    """A_AUC against the compute that was executed: a mark per row, with the standard deviation over its seeds."""
    _draw_against(groups, path, [group.spent("real") for group in groups], "compute executed, {}FLOP (rule real)")


def draw_where_compute_differs(groups: Sequence[Group], path: Path) -> bool:
    """The same; False, and nothing drawn, where all rows executed as good as the same: one column of marks."""
    spent = [float(np.mean(group.spent("real"))) for group in groups]
    if max(spent) <= 1.01 * min(spent):
        return False
    draw_against_compute(groups, path)
    return True


def draw_against_bytes(groups: Sequence[Group], path: Path) -> bool:
    """A_AUC against the bytes that persist between samples; False, and nothing drawn, where all rows keep the same."""
    kept = [amount for group in groups for amount in group.values("bytes")]
    if max(kept) < 1.01 * min(kept):
        return False
    _draw_against(groups, path, [group.values("bytes") for group in groups], "bytes kept, {}B")
    return True


def _draw_against(groups: Sequence[Group], path: Path, amounts: Sequence[Sequence[float]], name: str) -> None:
    most = max(amount for row in amounts for amount in row)
    prefix, unit = next((prefix, unit) for prefix, unit in _UNITS if most >= unit or unit == 1)
    with drawn(path, groups, "mark: mean; lines: standard deviation over seeds") as (_, axes):
        places = []
        for place, group in enumerate(groups):
            accuracy, spent = summarise(group.values("a_auc")), summarise(amounts[place])
            axes.errorbar(
                spent.mean / unit,
                100 * accuracy.mean,
                xerr=None if spent.sd is None else spent.sd / unit,
                yerr=None if accuracy.sd is None else 100 * accuracy.sd,
                fmt="o",
                markersize=6,
                elinewidth=1,
                color=COLOURS[place % len(COLOURS)],
            )
            places.append((spent.mean / unit, 100 * accuracy.mean))
        axes.margins(0.12)
        spent_by_row = [x for x, _ in places]
        if max(spent_by_row) < 1.1 * min(spent_by_row):  # as good as equal: no axis shall make more of it
            axes.set_xlim(0.9 * min(spent_by_row), 1.1 * max(spent_by_row))
        axes.set_xlabel(name.format(prefix))
        axes.set_ylabel("A_AUC, %")
        _label_places(axes, places, [group.label for group in groups])


def _seeds_note(groups: Sequence[Group]) -> str:
    if all(len(group.runs) == 1 for group in groups):
        return "line: one seed"
    return "line: mean over seeds; band: from the lowest seed to the highest"


def values_over_stream(
    group: Group, value: Callable[[Mapping[str, Any]], float]
) -> tuple[list[int], NDArray[np.float64]]:
    """Samples at which every seed was evaluated, and what its records there have, seed by seed."""
    found = [{record["samples"]: value(record) for record in run.periodic_records()} for run in group.runs]
    common = sorted(set.intersection(*(set(curve) for curve in found)))
    return common, np.array([[curve[samples] for samples in common] for curve in found])


def _curve(axes: Axes, samples: list[int], values: NDArray[np.float64], colour: str, line: Any = "-") -> None:
    axes.plot(samples, values.mean(0), color=colour, linewidth=1.6, linestyle=line, zorder=3)
    if len(values) > 1:
        axes.fill_between(samples, values.min(0), values.max(0), color=colour, alpha=0.25, linewidth=0, zorder=2)


def _name_axes(axes: Axes) -> None:
    axes.set_xlabel("samples of the stream")
    axes.set_ylabel("accuracy on the classes seen so far, %")


def label_ends(
    axes: Axes, ends: Sequence[float | None], labels: Sequence[str], gap: float, fontsize: float = 8
) -> None:
    """Names beside the ends of their curves, apart by this share of the axis where they would cover each other."""
    low, high = axes.get_ylim()
    known = {place: end for place, end in enumerate(ends) if end is not None}
    for place, at in zip(known, apart(list(known.values()), (high - low) * gap), strict=True):
        colour = COLOURS[place % len(COLOURS)]
        axes.annotate(
            labels[place], (1, known[place]), xycoords=("axes fraction", "data"), xytext=(1.03, at),
            textcoords=("axes fraction", "data"), va="center", fontsize=fontsize, color=dark(colour),
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 2, "shrinkB": 0,
            },
        )  # fmt: skip


def _label_places(axes: Axes, places: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Names beside their marks, moved up or down where others are near; then a thin line leads back."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    tall = (high - low) * 0.045
    if max(map(len, labels)) > _LONG:  # beside the axes, where they have room
        for place, at in enumerate(apart([y for _, y in places], tall)):
            axes.annotate(
                textwrap.shorten(labels[place], 40, placeholder=" …"), places[place],
                xytext=(1.03, at), textcoords=("axes fraction", "data"), va="center",
                fontsize=8, color=dark(COLOURS[place % len(COLOURS)]), annotation_clip=False,
                arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.7, "shrinkA": 0},
            )  # fmt: skip
        return
    near = [[b for b, (x, _) in enumerate(places) if abs(x - at) < (right - left) * 0.15] for at, _ in places]
    for place, (x, y) in enumerate(places):
        column = near[place]  # those whose names could cover this one
        at = apart([places[other][1] for other in column], tall)[column.index(place)]
        moved = abs(at - y) > tall / 3
        axes.annotate(
            wrapped(labels[place], 40), (x, y), xytext=(x + (right - left) * (0.05 if moved else 0.015), at),
            va="center", fontsize=8, color=dark(COLOURS[place % len(COLOURS)]), annotation_clip=False, zorder=5,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
            arrowprops={"arrowstyle": "-", "color": _GREY, "linewidth": 0.7, "shrinkA": 0} if moved else None,
        )  # fmt: skip


def apart(wanted: Sequence[float], least: float) -> list[float]:
    """The places as near to the wanted ones as they can be with so much between any two, in the same order."""
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    found = [wanted[place] for place in order]
    for _ in range(200):
        moved = False
        for below in range(len(found) - 1):
            lack = least - (found[below + 1] - found[below])
            if lack > 1e-9 * max(1.0, least):
                found[below] -= lack / 2
                found[below + 1] += lack / 2
                moved = True
        if not moved:
            break
    placed = dict(zip(order, found, strict=True))
    return [placed[place] for place in range(len(wanted))]


def dark(colour: str) -> str:
    """As letters have it, at least 4.5 to 1 on white (WCAG AA): what does for a line may be too light to read."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    while 1.05 / (_luminance(parts) + 0.05) < 4.5:
        parts = [0.95 * part for part in parts]
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _luminance(parts: Sequence[float]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def _limit_to_seeds(axes: Axes, values: Sequence[float]) -> None:
    """An interval over two seeds may be wider than all that one wants to see: the axis follows the seeds."""
    span = max(max(values) - min(values), 1.0)
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, min(values) - 0.6 * span), min(high, max(values) + 0.6 * span))


@contextmanager
def drawn(
    path: Path,
    groups: Sequence[Group],
    note: str,
    rows: int = 1,
    columns: int = 1,
    height: float | None = None,
    share_x: bool = True,
    share_y: bool = True,
) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes (one, or a list of panels), titled by what the runs have in common, written to the file."""
    refuse_undrawable(path)
    plt = pyplot()
    size = (8.5, height or 4.6) if columns == 1 else (10, height or 1.0 + 2.0 * rows)
    figure, found = plt.subplots(rows, columns, figsize=size, layout="constrained", sharey=share_y, sharex=share_x)
    panels = [found] if columns == 1 else list(np.ravel(found))
    try:
        yield figure, found if columns == 1 else panels
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.tick_params(labelsize=8)
        figure.suptitle(textwrap.fill(caption(groups), 110), fontsize=10, x=0.01, ha="left")
        foot = 0.24 / size[1]
        figure.get_layout_engine().set(rect=(0, foot, 1, 1 - foot))
        figure.text(0.01, foot / 2, note, fontsize=7.5, color=_INK, ha="left", va="center")
        write_figure(figure, path, dpi=140)
    finally:
        plt.close(figure)


def _named(group: Group) -> str:
    return f"{wrapped(group.label, 30)}\nA_AUC {_percent(summarise(group.values('a_auc')))}"


def wrapped(name: str, width: int) -> str:
    return textwrap.fill(name, width, break_long_words=False, break_on_hyphens=False)


def _percent(summary: Summary) -> str:
    if summary.sd is None:
        return f"{100 * summary.mean:.1f} %, 1 run"
    return format_mean_sd(summary, 1, 100) + " %"
