"""Figures of runs: accuracy over the stream, and against the compute that was executed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from budgeted.bench.table import Group
from budgeted.errors import BudgetedError
from budgeted.runs.statistics import Summary, format_mean_sd, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS_IN_ONE_LOOK = 5
_STYLES = ("-", "--", ":")
_MARKS = "osD^v<>PX*ph"
_UNITS = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1))


def draw_over_stream(groups: Sequence[Group], path: Path) -> None:
    """Accuracy over the stream: the mean over seeds, and the range between them if the lines are few."""
    with _drawn(path, len(groups)) as axes:
        for place, group in enumerate(groups):
            curves = [
                {record["samples"]: 100 * record["accuracy"] for record in run.periodic_records()} for run in group.runs
            ]
            common = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = np.array([[curve[samples] for samples in common] for curve in curves])
            mean = summarise(group.values("a_auc"))
            style = _STYLES[place // 10 % len(_STYLES)]  # colours repeat after ten
            label = _legend(group.label, f"(A_AUC {_percent(mean)})")
            width = 1.4 if _crowded(len(groups)) else 1.8
            (line,) = axes.plot(common, values.mean(0), style, label=label, linewidth=width)
            if len(curves) > 1 and not _crowded(len(groups)):
                axes.fill_between(common, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set_xlabel("samples of the stream")
        axes.set_ylabel("accuracy on the classes seen so far, %")


def draw_against_compute(groups: Sequence[Group], path: Path) -> None:
    """A_AUC against the compute that was executed: a mark per row, with the standard deviation over its seeds."""
    most = max(spent for group in groups for spent in group.spent("real"))
    prefix, unit = next((prefix, unit) for prefix, unit in _UNITS if most >= unit or unit == 1)
    with _drawn(path, len(groups)) as axes:
        for place, group in enumerate(groups):
            accuracy, spent = summarise(group.values("a_auc")), summarise(group.spent("real"))
            axes.errorbar(
                spent.mean / unit,
                100 * accuracy.mean,
                xerr=None if spent.sd is None else spent.sd / unit,
                yerr=None if accuracy.sd is None else 100 * accuracy.sd,
                fmt=_MARKS[place % len(_MARKS)],
                markersize=7,
                elinewidth=1,
                label=_legend(group.label, f"({_percent(accuracy)})"),
            )
        axes.set_xlabel(f"compute executed, {prefix}FLOP")
        axes.set_ylabel("A_AUC, %")


@contextmanager
def _drawn(path: Path, rows: int) -> Iterator[Axes]:
    """Axes to draw on, written to the file with a legend that has room for so many rows."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BudgetedError(f"cannot draw {path}: end its name in .png, .svg or .pdf")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 5.5) if _crowded(rows) else (8, 4.5), layout="constrained")
    try:
        yield axes
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if _crowded(rows):
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
        else:
            axes.legend(frameon=False, loc="best")
        figure.savefig(path, dpi=140)
    finally:
        plt.close(figure)


def _crowded(rows: int) -> bool:
    return rows > _ROWS_IN_ONE_LOOK


def _legend(name: str, result: str) -> str:
    """In lines short enough to leave room for the curves beside the legend; the result is not torn apart."""
    whole = result.replace(" ", "\N{NO-BREAK SPACE}")
    return "\n".join(textwrap.wrap(f"{name} {whole}", 42, break_long_words=False, break_on_hyphens=False))


def _percent(summary: Summary) -> str:
    if summary.sd is None:
        return f"{100 * summary.mean:.1f} %, 1 run"
    return format_mean_sd(summary, 1, 100) + " %"
