"""Where compression pays: the same runs with memories of other codecs, over bytes and lengths of the stream.

A panel for each length. Above, A_AUC over the byte budget, a line for each codec; below, how much that is over what
codec raw has with the same bytes and seeds: above zero, compression pays. The table has what a slot takes, how many
there were, and what encoding and decoding took.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.drawing import pyplot, write_figure
from budgeted.bench.figures import COLOURS, refuse_undrawable
from budgeted.bench.table import Group, RunResult
from budgeted.budget import parse_bytes
from budgeted.errors import BudgetedError
from budgeted.replay import CODECS
from budgeted.runs.statistics import format_mean_sd, summarise

_MARKS = "osv^D<>P"


def draw_codecs(groups: Sequence[Group], path: Path) -> None:
    """Needs runs with a byte budget, and codec raw among them."""
    refuse_undrawable(path)
    found = _by_place(groups)
    lengths = sorted({length for length, _, _ in found})
    names = sorted({name for _, _, name in found}, key=lambda name: (name != "raw", name))
    plt = pyplot()
    size = (3.4 * len(lengths) + 2.2, 6.4)
    figure, panels = plt.subplots(
        2, len(lengths), figsize=size, layout="constrained", sharex="col", sharey="row", squeeze=False
    )
    try:
        for column, length in enumerate(lengths):
            above, below = panels[0][column], panels[1][column]
            for place, name in enumerate(names):
                sizes = sorted(nbytes for at, nbytes, codec in found if (at, codec) == (length, name))
                style: dict[str, Any] = {
                    "color": COLOURS[place % len(COLOURS)],
                    "marker": _MARKS[place % len(_MARKS)],
                    "markersize": 4.5,
                    "linewidth": 1.4,
                    "label": name,
                }
                means = [100 * float(np.mean(_auc(found[length, nbytes, name]))) for nbytes in sizes]
                above.plot(_megabytes(sizes), means, **style)
                over = {nbytes: _over_raw(found, length, nbytes, name) for nbytes in sizes}
                known = [nbytes for nbytes in sizes if over[nbytes]]
                below.plot(_megabytes(known), [float(np.mean(over[nbytes])) for nbytes in known], **style)
                for nbytes in known:
                    below.plot([nbytes / 1e6] * len(over[nbytes]), over[nbytes], "_", color=style["color"], alpha=0.6)
            above.set_title(f"{length:,} samples", fontsize=10, loc="left")
            below.axhline(0, color="black", linewidth=0.8)
            below.set_xscale("log", base=2)
            ticks = sorted({nbytes / 1e6 for at, nbytes, _ in found if at == length})
            below.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            below.minorticks_off()
            below.set_xlabel("bytes of model and memory, MB", fontsize=8)
            for axes in (above, below):
                axes.grid(alpha=0.25)
                axes.spines[["top", "right"]].set_visible(False)
                axes.tick_params(labelsize=8)
        panels[0][0].set_ylabel("A_AUC, %", fontsize=8)
        panels[1][0].set_ylabel("A_AUC over raw with the same bytes, points", fontsize=8)
        panels[0][-1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.suptitle("Codecs of the memory: lines are means over seeds, dashes single seeds paired with raw's",
                        fontsize=9, x=0.01, ha="left")  # fmt: skip
        write_figure(figure, path, dpi=140)
    finally:
        plt.close(figure)


def codec_table(groups: Sequence[Group]) -> str:
    """As Markdown: slots, bytes of one as stored, both accuracies, and seconds of the codec."""
    lines = [
        "| samples | bytes | codec | slots | bytes a slot | A_AUC, % | A_last, % | encoding, s | decoding, s |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (length, nbytes, name), runs in sorted(_by_place(groups).items()):
        auc, last = (summarise([100 * run.summary[key] for run in runs]) for key in ("a_auc", "a_last"))
        slots, each = _mean(runs, "slots"), float(np.mean([_slot_bytes(run) for run in runs]))
        seconds = [run.summary.get("codec_seconds", {"encode": 0.0, "decode": 0.0}) for run in runs]
        encoding, decoding = (float(np.mean([each[key] for each in seconds])) for key in ("encode", "decode"))
        lines.append(
            f"| {length:,} | {nbytes:,} | {name} | {slots:,.0f} | {each:,.0f} | {format_mean_sd(auc, 1)} | "
            f"{format_mean_sd(last, 1)} | {encoding:.1f} | {decoding:.1f} |"
        )
    return "\n".join(lines)


def _by_place(groups: Sequence[Group]) -> dict[tuple[int, int, str], list[RunResult]]:
    """Runs by length of stream, bytes and codec with its settings."""
    found: dict[tuple[int, int, str], list[RunResult]] = {}
    for run in (run for group in groups for run in group.runs):
        if run.config.get("memory") is None:
            raise BudgetedError(f"{run.path} has no byte budget: codecs are compared at equal --memory")
        place = run.summary["samples"], parse_bytes(run.config["memory"]), _codec_of(run)
        found.setdefault(place, []).append(run)
    if not any(name == "raw" for _, _, name in found):
        raise BudgetedError("no run has codec raw: codecs are compared with it")
    return found


def _codec_of(run: RunResult) -> str:
    settings = {
        key.removeprefix("codec."): value for key, value in run.config["settings"].items() if key.startswith("codec.")
    }
    return " ".join([run.config.get("codec") or "raw", *(f"{key}={value}" for key, value in sorted(settings.items()))])


def _over_raw(found: dict[tuple[int, int, str], list[RunResult]], length: int, nbytes: int, name: str) -> list[float]:
    """Points of A_AUC over raw's, seed by seed."""
    raw = {run.config["seed"]: run.summary["a_auc"] for run in found.get((length, nbytes, "raw"), ())}
    runs = found[length, nbytes, name]
    return [100 * (run.summary["a_auc"] - raw[run.config["seed"]]) for run in runs if run.config["seed"] in raw]


def _auc(runs: Sequence[RunResult]) -> list[float]:
    return [float(run.summary["a_auc"]) for run in runs]


def _mean(runs: Sequence[RunResult], key: str) -> float:
    return float(np.mean([run.summary[key] for run in runs]))


def _slot_bytes(run: RunResult) -> float:
    """Of a slot, everything in it; those that differ in bytes are counted as far as they are in use."""
    differ = CODECS[run.config.get("codec") or "raw"].varying
    return float(run.summary["bytes_by_item"]["memory"] / run.summary["stored" if differ else "slots"])


def _megabytes(sizes: Sequence[int]) -> list[float]:
    return [nbytes / 1e6 for nbytes in sizes]
