"""Draw the picture of the idea: one training step, from the forward pass to the ledger.

Prices and criterion are computed by the package, for the network `cnn8` and a batch of 16. Only the Fisher traces and
the size of the batch's gradient are made up, so that the decision falls in the middle of the network, where it is easy
to see.

    .venv/bin/python docs/figures/idea.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch, Rectangle
from torch.nn.functional import cross_entropy

from budgeted import models
from budgeted.budget import Cost, Rule, total
from budgeted.freezing import Criterion, LayerFreezing, NeverFreeze, StepView, criterion

matplotlib.use("Agg")
from matplotlib import pyplot as plt

BATCH, CLASSES = 16, 10
FISHER = (1.6, 0.6, 0.5, 0.7, 2.6, 1.9, 2.0, 1.0)  # made up, per block
GRADIENT_RATIO = 0.85  # made up: this batch's feature gradient against its average

INK, FAINT, PANEL = "#22303c", "#83909c", "#f5f7f9"
ICE, ICE_EDGE = "#dcebf7", "#4f86b3"
WARM, WARM_EDGE = "#fdebd6", "#cf7d26"
FORWARD, BACKWARD, OPTIMIZER = "#4b6b88", "#dd7a2b", "#7c5aa6"
GAIN, LOSS = "#2f8f5b", "#c0413b"
ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}

LEFT, PITCH, WIDTH, HEIGHT = 7.0, 8.1, 6.6, 6.0  # of the blocks


@dataclass(frozen=True)
class Step:
    """The numbers of the step that is drawn."""

    names: tuple[str, ...]
    decision: Criterion
    gain: tuple[float, ...]
    loss: tuple[float, ...]
    charged: tuple[tuple[str, Cost, str], ...]  # purpose, cost, colour
    full: Cost


class MadeUp(NeverFreeze):
    """The adaptive policy, but for Fisher traces and gradient ratio that are given."""

    decision: Criterion
    gain: tuple[float, ...]

    def decide(self, view: StepView) -> frozenset[int]:
        view.feature_gradient()  # looked at, and so charged
        saved = view.saved()
        decision = criterion(FISHER, saved, view.full_cost(), GRADIENT_RATIO, head_fisher=True)
        best = max(decision.information_per_compute)
        type(self).decision, type(self).gain = decision, tuple(best * amount for amount in saved)
        return frozenset(range(decision.n))


def numbers() -> Step:
    """Take one real step with the decision of the picture and one with nothing frozen."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    model = models.build("cnn8", classes=CLASSES)
    optimizer = torch.optim.Adam(model.parameters())
    charged = []
    for policy in (NeverFreeze(), MadeUp()):
        freezing = LayerFreezing(model, policy, images, optimizer=optimizer)
        logits = model(images)
        charged.append(freezing.backward(cross_entropy(logits, labels), logits, labels).costs)
        freezing.remove()
    full, step = charged
    blocks = len(MadeUp.gain)
    return Step(
        names=("stem", *(f"block {i}" for i in range(1, blocks - 1)), "head"),
        decision=MadeUp.decision,
        gain=MadeUp.gain,
        loss=tuple(GRADIENT_RATIO * sum(FISHER[:n]) for n in range(blocks)),
        charged=(
            ("forward", step["forward"], FORWARD),
            ("backward", step["backward"], BACKWARD),
            ("optimizer", step["optimizer"], OPTIMIZER),
            ("criterion", step["fisher"], OPTIMIZER),
        ),
        full=total(full.values()) + step["fisher"],
    )


# -- pieces ------------------------------------------------------------------------------------------------


def boundary(n: int) -> float:
    """Where the first n blocks end."""
    return LEFT + n * PITCH - (PITCH - WIDTH) / 2


def write(axes: Axes, x: float, y: float, words: str, colour: str = INK, size: float = 9.8, **how: Any) -> Any:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "color": colour}
    return axes.text(x, y, words, **style | how)


def arrow(axes: Axes, start: float, end: float, y: float, colour: str) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (start, y), (end, y), arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=1.8, shrinkA=0, shrinkB=0
        )
    )


def heading(axes: Axes, x: float, y: float, number: int, title: str, explanation: str = "") -> None:
    axes.add_patch(Circle((x + 1.1, y), 1.3, facecolor=INK, edgecolor="none", zorder=4))
    write(axes, x + 1.1, y - 0.06, str(number), "white", 10.5, weight="bold", zorder=5)
    shown = write(axes, x + 3.3, y, title, size=12.5, weight="bold", ha="left")
    end = shown.get_window_extent().transformed(axes.transData.inverted()).x1
    write(axes, end + 1.0, y - 0.06, explanation, FAINT, 10.2, ha="left", bbox=ON_WHITE)


def block(
    axes: Axes, index: int, y: float, name: str, face: str, edge: str, note: str = "", rests: bool = False
) -> None:
    x = LEFT + index * PITCH
    axes.add_patch(
        FancyBboxPatch(
            (x, y), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.9", facecolor=face, edgecolor=edge,
            linewidth=1.3, linestyle=(0, (3, 2)) if rests else "-",
        )
    )  # fmt: skip
    write(axes, x + WIDTH / 2, y + HEIGHT / 2 + (1.1 if note else 0), name, FAINT if rests else INK, 10)
    write(axes, x + WIDTH / 2, y + HEIGHT / 2 - 1.3, note, edge, 7.4)


def loss_circle(axes: Axes, y: float) -> None:
    centre = LEFT + len(FISHER) * PITCH + 2.0
    axes.add_patch(Circle((centre, y + HEIGHT / 2), 2.1, facecolor="white", edgecolor=INK, linewidth=1.3))
    write(axes, centre, y + HEIGHT / 2 - 0.05, "loss")


def bracket(axes: Axes, start: float, end: float, y: float, words: str, colour: str) -> None:
    axes.plot([start, start, end, end], [y, y - 0.7, y - 0.7, y], color=colour, linewidth=1.2)
    write(axes, (start + end) / 2, y - 2.1, words, colour)


# -- the four parts ----------------------------------------------------------------------------------------


def draw_forward(axes: Axes, step: Step, y: float) -> None:
    heading(axes, 0.6, y + 8.6, 1, "forward", "through every block, to the loss")
    write(axes, 2.8, y + HEIGHT / 2, "batch", size=10)
    arrow(axes, 4.9, LEFT, y + HEIGHT / 2, FORWARD)
    for index, name in enumerate(step.names):
        block(axes, index, y, name, "#e6ecf2", FORWARD)
        arrow(axes, LEFT + index * PITCH + WIDTH, LEFT + (index + 1) * PITCH, y + HEIGHT / 2, FORWARD)
    loss_circle(axes, y)


def draw_decision(axes: Axes, step: Step, bottom: float, top: float) -> None:
    """The criterion over n, every n drawn where the first n blocks end."""
    n = step.decision.n
    heading(
        axes, 0.6, top + 3.6, 2, "decide",
        "after the forward, before the backward: freeze the first n blocks, n where the net benefit is largest",
    )  # fmt: skip
    scale = (top - bottom) / max(*step.gain, *step.loss)
    places = [boundary(i) for i in range(len(step.gain))]
    gain = [bottom + scale * value for value in step.gain]
    loss = [bottom + scale * value for value in step.loss]
    axes.plot([places[0], places[-1] + 3], [bottom, bottom], color=FAINT, linewidth=1)
    for i, x in enumerate(places):
        axes.plot([x, x], [bottom, bottom - 0.5], color=FAINT, linewidth=1)
        chosen = i == n
        write(
            axes, x, bottom - 1.7, f"n = {i}", INK if chosen else FAINT, 10 if chosen else 8.8,
            weight="bold" if chosen else "normal", bbox=ON_WHITE,
        )  # fmt: skip
    for colour, better in ((GAIN, True), (LOSS, False)):
        where = [(g >= lost) == better or g == lost for g, lost in zip(gain, loss, strict=True)]
        axes.fill_between(places, loss, gain, where=where, interpolate=True, color=colour, alpha=0.13, linewidth=0)
    axes.plot(places, gain, color=GAIN, linewidth=2.2, marker="o", markersize=4)
    axes.plot(places, loss, color=LOSS, linewidth=2.2, marker="o", markersize=4)
    axes.annotate(
        "", (places[n], gain[n]), (places[n], loss[n]),
        arrowprops={"arrowstyle": "<->", "color": INK, "linewidth": 1.7, "shrinkA": 3, "shrinkB": 3},
    )  # fmt: skip
    write(axes, places[n] + 1.0, bottom + 2.6, "batch freezing criterion:", size=9.6, ha="left")
    write(axes, places[n] + 1.0, bottom + 1.1, f"BFC is largest at n = {n}", size=9.6, ha="left", weight="bold")
    x, y = places[1] + 4.6, gain[3] + 2.4
    write(axes, x, y + 2.3, "information that the saved\ncompute buys later", GAIN, linespacing=1.25)
    write(axes, x, y - 1.1, r"$\max_m\,(I/C)_m \cdot S_n$", GAIN, 11)
    x, y = places[-1] + 1.6, loss[-1] - 5.0
    write(axes, x, y + 1.6, "information that\nthis batch loses", LOSS, ha="left", linespacing=1.25)
    write(axes, x, y - 2.2, r"$\frac{|g|^2}{E|g|^2}\,\sum_{i\leq n}\mathrm{tr}\,F_i$", LOSS, 12, ha="left")


def draw_backward(axes: Axes, step: Step, y: float) -> None:
    n, blocks = step.decision.n, len(step.names)
    heading(axes, 0.6, y + 8.6, 3, "backward", "runs down to the first trained block and really stops there")
    for index, name in enumerate(step.names):
        if index < n:
            block(axes, index, y, name, ICE, ICE_EDGE, "not computed", rests=True)
        else:
            block(axes, index, y, name, WARM, WARM_EDGE, "gradient")
            arrow(axes, LEFT + (index + 1) * PITCH, LEFT + index * PITCH + WIDTH, y + HEIGHT / 2, BACKWARD)
    loss_circle(axes, y)
    axes.plot([boundary(n)] * 2, [y - 1.7, y + HEIGHT + 0.8], color=INK, linewidth=3.6, solid_capstyle="butt", zorder=5)
    words = "frozen: no gradient, the optimizer leaves it alone"
    bracket(axes, boundary(0) + 0.7, boundary(n) - 0.8, y - 0.9, words, ICE_EDGE)
    words = "trained: the same gradients as in a full backward"
    bracket(axes, boundary(n) + 0.8, boundary(blocks) - 0.7, y - 0.9, words, WARM_EDGE)


def draw_ledger(axes: Axes, step: Step, left: float, bottom: float, right: float, top: float) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), right - left, top - bottom, boxstyle="round,pad=0,rounding_size=1.2", facecolor=PANEL,
            edgecolor="#d5dce2",
        )
    )  # fmt: skip
    heading(axes, left + 1.4, top - 2.7, 4, "charge the ledger")
    write(axes, left + 1.5, top - 5.9, "what this step cost, under both rules", FAINT, 10.2, ha="left")
    base = bottom + 17.5
    meanings = {"paper": "multiply-accumulates,\nas the paper counts", "real": "operations,\nas executed"}
    draw_bar(axes, step, "paper", "MMAC", meanings["paper"], left + 2.8, base, top - 8.6 - base)
    draw_bar(axes, step, "real", "MFLOP", meanings["real"], left + 14.6, base, top - 8.6 - base)
    draw_budget(axes, left + 2.0, right - 2.0, bottom + 5.0)


def draw_bar(axes: Axes, step: Step, rule: Rule, unit: str, meaning: str, x: float, base: float, height: float) -> None:
    wide, at = 7.4, base
    full = step.full.under(rule)
    for purpose, cost, colour in step.charged:
        amount = cost.under(rule)
        size = height * amount / full
        axes.add_patch(Rectangle((x, at), wide, size, facecolor=colour, edgecolor="white", linewidth=0.4))
        if size > 2:
            write(axes, x + wide / 2, at + size / 2, f"{purpose}\n{amount / 1e6:,.0f}", "white", 9.2, linespacing=1.2)
        elif amount:  # too thin for a label inside
            offset = 0.9 if purpose == "criterion" else -0.9
            write(axes, x + wide + 0.6, at + offset, f"{purpose} {amount / 1e6:,.2f}", colour, 8.4, ha="left")
        at += size
    rest = base + height - at
    axes.add_patch(
        Rectangle((x, at), wide, rest, facecolor="white", edgecolor=FAINT, linewidth=1.1, linestyle=(0, (3, 2)))
    )
    missing = full - sum(cost.under(rule) for _, cost, _ in step.charged)
    write(axes, x + wide / 2, at + rest / 2, f"not computed\n{missing / 1e6:,.0f}", FAINT, 8.6, linespacing=1.2)
    write(axes, x + wide / 2, base - 1.5, f"rule {rule}, {unit}", size=9.8, weight="bold")
    write(axes, x + wide / 2, base - 4.1, meaning, FAINT, 8.2, linespacing=1.15)


def draw_budget(axes: Axes, left: float, right: float, y: float) -> None:
    """A gauge; how full it is means nothing."""
    wide, high = right - left, 2.7
    spent, this = 0.60, 0.07
    axes.add_patch(Rectangle((left, y), wide, high, facecolor="white", edgecolor="none"))
    axes.add_patch(Rectangle((left, y), wide * spent, high, facecolor="#9fb2c3", edgecolor="none"))
    axes.add_patch(Rectangle((left + wide * spent, y), wide * this, high, facecolor=BACKWARD, edgecolor="none"))
    axes.add_patch(Rectangle((left, y), wide, high, facecolor="none", edgecolor=INK, linewidth=1.3))
    write(axes, left, y + 4.4, "budget", size=10.5, weight="bold", ha="left")
    write(axes, left + wide * spent / 2, y + high / 2 - 0.05, "spent", "white", 9.4)
    write(axes, left + wide * (1 + spent + this) / 2, y + high / 2 - 0.05, "left", FAINT, 9.4)
    write(axes, left + wide * (spent + this / 2), y + 4.2, "this step", BACKWARD, 9.4)
    write(axes, left, y - 1.9, "a step that does not fit is refused", size=9.4, ha="left")


def main() -> None:
    step = numbers()
    figure = plt.figure(figsize=(14.2, 7.35), facecolor="white")
    axes = figure.add_axes((0.005, 0.005, 0.99, 0.99))
    axes.set_xlim(0, 112)
    axes.set_ylim(0, 58)
    axes.set_axis_off()
    figure.canvas.draw()
    n = step.decision.n
    axes.plot([boundary(n)] * 2, [12, 46], color=INK, linewidth=1.2, linestyle=(0, (1, 2)), zorder=0)
    draw_forward(axes, step, 46.4)
    draw_decision(axes, step, 23.4, 38.4)
    draw_backward(axes, step, 6.4)
    draw_ledger(axes, step, 80.5, 1.0, 111.2, 57.2)
    target = Path(__file__).with_suffix(".png")
    figure.savefig(target, dpi=120)
    plt.close(figure)
    print(f"{target.name}: n = {n}, BFC {[round(value, 2) for value in step.decision.bfc]}")


if __name__ == "__main__":
    main()
