"""Figures of measurements: the criterion by block, the Fisher estimate, class similarity, use frequency, the toys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.drawing import pyplot, write_figure
from budgeted.bench.figures import COLOURS, LINES, label_ends, refuse_undrawable

Record = Mapping[str, Any]
_RED = "#B22222"


def draw_measured(record: Record, folder: Path, kind: str) -> list[tuple[str, Path]]:
    """Every figure that the record has something for: its title and its file."""
    found = []
    for name, (title, has, draw) in FIGURES.items():
        if has(record):
            path = folder / f"{name}.{kind}"
            draw(record, path)
            found.append((title, path))
    return found


@contextmanager
def _figure(
    path: Path, title: str, note: str, columns: int = 1, size: tuple[float, float] | None = None
) -> Iterator[Any]:
    refuse_undrawable(path)
    plt = pyplot()
    figure, axes = plt.subplots(1, columns, figsize=size or (8.5, 4.2), layout="constrained", squeeze=False)
    try:
        yield list(axes[0]) if columns > 1 else axes[0][0]
        for each in axes[0]:
            each.spines[["top", "right"]].set_visible(False)
            each.tick_params(labelsize=8)
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
        figure.supxlabel(note, fontsize=7.5, x=0.01, ha="left", color="#333333")
        write_figure(figure, path, dpi=140)
    finally:
        plt.close(figure)


def _of(record: Record) -> str:
    settings = record["settings"]
    stream = f", {settings['stream']} stream" if "stream" in settings else ""
    return f"{settings['dataset']}{stream}, {settings['model']}, seed {settings['seed']}"


def _spread(count: int, most: int = 4) -> list[int]:
    """A few places from the first to the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(most, count))})


def draw_criterion(record: Record, path: Path) -> None:
    """Figure 8. Values of blocks differ by orders of magnitude: each is shown in units of its own largest one."""
    bfc, blocks = np.asarray(record["bfc"]), record["blocks"]
    note = (
        "in units of the block's largest value after a tenth of the stream; above 0: freezing up to it would gain; "
        "dotted: new classes"
    )
    with _figure(path, f"Batch freezing criterion by block: {_of(record)}", note) as axes:
        chosen = _spread(bfc.shape[1])
        ends = []
        settled = bfc[len(bfc) // 10 :]  # the averages begin at nothing, and what is divided by them is huge
        for place, block in enumerate(chosen):
            values = bfc[:, block] / max(np.abs(settled[:, block]).max(), 1e-300)
            axes.plot(record["samples"], values, color=COLOURS[place], linestyle=LINES[place], linewidth=1.5)
            ends.append(float(values[-1]))
        _boundaries(axes, record)
        axes.axhline(0, color="#666666", linewidth=0.8)
        axes.set_ylim(max(axes.get_ylim()[0], -1.2), min(axes.get_ylim()[1], 1.2))
        label_ends(axes, ends, [f"up to {blocks[block]}" for block in chosen], 0.06)
        axes.set_xlabel("samples of the stream")
        axes.set_ylabel("BFC, mean over steps")


def draw_positive(record: Record, path: Path) -> None:
    """How often each block might have rested."""
    shares = np.asarray(record["positive"])
    with _figure(path, f"Steps in which the criterion is above 0: {_of(record)}", "dotted: new classes") as axes:
        edges = [0, *record["samples"]]
        image = axes.pcolormesh(
            edges, np.arange(shares.shape[1] + 1), shares.T, cmap="viridis", vmin=0, vmax=1, rasterized=True
        )
        _boundaries(axes, record, "white")
        axes.set_yticks(np.arange(shares.shape[1]) + 0.5, record["blocks"][: shares.shape[1]])
        axes.set_xlabel("samples of the stream")
        axes.figure.colorbar(image, ax=axes, label="share of steps")


def draw_fisher(record: Record, path: Path) -> None:
    """Figure 5: own estimate solid, larger ones dashed."""
    kinds = {kind: np.asarray(values) for kind, values in record["fisher"].items()}
    chosen = _spread(len(record["blocks"]))
    title = f"Fisher trace by block: own estimate and from 16 times as many samples: {_of(record)}"
    note = (
        "solid: one batch of 16 in every fourth step; dashed: batches of 16; dotted: batches of 64, four times in each"
    )
    with _figure(path, title, note, len(chosen), (11, 3.4)) as panels:
        for axes, block in zip(panels, chosen, strict=True):
            for (_, values), style, colour in zip(kinds.items(), ("-", "--", ":"), COLOURS, strict=False):
                axes.plot(record["fisher_at"], values[:, block], style, color=colour, linewidth=1.5)
            axes.set_title(record["blocks"][block], fontsize=9, loc="left")
            axes.set_xlabel("samples", fontsize=8)
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("average squared gradient")


def draw_similarity(record: Record, path: Path) -> None:
    matrix, classes = np.asarray(record["similarity"]), record["classes"]
    with _figure(path, f"Class similarity at the end: {_of(record)}", "in the order in which classes came",
                 size=(6.4, 5.4)) as axes:  # fmt: skip
        most = float(np.abs(matrix).max()) or 1.0
        image = axes.imshow(matrix, cmap="PuOr", vmin=-most, vmax=most)
        axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right")
        axes.set_yticks(range(len(classes)), classes)
        if len(classes) <= 12:
            for (row, column), value in np.ndenumerate(matrix):
                dark = abs(value) > 0.6 * most
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5,
                          color="white" if dark else "black")  # fmt: skip
        axes.figure.colorbar(image, ax=axes, label="S, mean cosine of gradients")


def draw_use(record: Record, path: Path) -> None:
    """Every stored sample's use frequency, by class."""
    used, labels = np.asarray(record["use_frequency"]), np.asarray(record["labels"])
    names = record["classes"]
    title = f"Use frequency of what is stored, at the end: {_of(record)}"
    note = "line: median; box: middle half; whiskers: 5 to 95 %; classes in the order in which they came"
    with _figure(path, title, note) as axes:
        rows = [used[labels == label] for label in range(len(names))]
        axes.boxplot(rows, whis=(5, 95), showfliers=False, medianprops={"color": COLOURS[1]})
        ticks = [f"{name}\n{len(row)}" for name, row in zip(names, rows, strict=True)]
        axes.set_xticks(range(1, len(names) + 1), ticks)
        axes.set_xlabel("class, and how many of it are stored")
        axes.set_ylabel("effective uses (forgotten ones aside)")


def draw_decreases(record: Record, path: Path) -> None:
    """Figure 19."""
    rows = record["decreases"]["decrease_by_use"]
    title = f"What a step does to its own sample's loss: {_of(record)}"
    with _figure(path, title, "mark: mean; line: its standard error") as axes:
        axes.errorbar(range(len(rows)), [row[0] for row in rows], [row[1] or 0 for row in rows], fmt="o-",
                      color=COLOURS[0], markersize=4)  # fmt: skip
        axes.set_xlabel("times the sample was used before")
        axes.set_ylabel("decrease of its loss")


def draw_forgotten(record: Record, path: Path) -> None:
    """Figure 20."""
    found = record["forgotten"]
    values = np.asarray(found["effective"], dtype=float)
    steps = np.arange(len(values))
    from matplotlib.ticker import LogLocator

    fit = "" if found["r_squared"] is None else f"; line: exponential fit, R² {found['r_squared']:.2f}"
    note = f"mean over {found['references']} references{fit}"
    with _figure(path, f"Effective use of a sample while others are learned: {_of(record)}", note) as axes:
        axes.semilogy(steps, np.where(values > 0, values, np.nan), "o", color=COLOURS[0], markersize=4)
        if found["rate"] is not None:
            axes.semilogy(steps, found["start"] * np.exp(found["rate"] * steps), color=COLOURS[1])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.set_xlabel("steps with other samples since it was used last")
        axes.set_ylabel("effective use frequency, log scale")


def draw_transferred(record: Record, path: Path) -> None:
    """Figure 21."""
    found = record["transferred"]
    note = f"a point: one step with one other sample; line: linear fit, r {found['r']:.2f}, p {found['p']:.2g}"
    with _figure(path, f"Do similar samples count as uses? {_of(record)}", note) as axes:
        axes.plot(found["cosine"], found["change"], ".", color=COLOURS[0], alpha=0.5)
        ends = np.array([min(found["cosine"]), max(found["cosine"])])
        axes.plot(ends, found["intercept"] + found["slope"] * ends, color=COLOURS[1])
        axes.axhline(0, color="#888888", linewidth=0.7)
        axes.set_xlabel("cosine of the two gradients")
        axes.set_ylabel("change of effective use")


def _boundaries(axes: Any, record: Record, colour: str = _RED) -> None:
    for boundary in record["boundaries"]:
        axes.axvline(boundary, color=colour, linestyle=":", linewidth=1.2)


FIGURES: dict[str, tuple[str, Callable[[Record], bool], Callable[[Record, Path], None]]] = {
    "criterion": ("Freezing criterion by block", lambda record: bool(record.get("bfc")), draw_criterion),
    "criterion-above-0": ("When freezing would gain", lambda record: bool(record.get("positive")), draw_positive),
    "fisher": ("Fisher estimate", lambda record: len(record.get("fisher", ())) > 1, draw_fisher),
    "similarity": ("Class similarity", lambda record: bool(record.get("similarity")), draw_similarity),
    "use-frequency": ("Use frequency", lambda record: bool(record.get("use_frequency")), draw_use),
    "toy-use": ("Use and loss (Figure 19)", lambda record: "decreases" in record, draw_decreases),
    "toy-forgotten": ("Forgetting of uses (Figure 20)", lambda record: "forgotten" in record, draw_forgotten),
    "toy-similar": ("Uses of similar samples (Figure 21)", lambda record: "transferred" in record, draw_transferred),
}
"""file's name: title, whether a record has it, and what draws it"""
