"""A table of runs for a terminal, and for a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape, render
from rich.table import Table

from budgeted.bench.table import COLUMNS, Group, Test, cells, comparisons, legend, one_seed, remarks
from budgeted.runs.statistics import LEVEL, seeds_needed

_FIRST_TO_GO = ("train s", "slots", "rule paper", "steps", "seeds", "F_last %", "rule real", "frozen %", "A_last %")
"""columns that a narrow terminal goes without, in this order"""
_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "†": r"$\dagger$",
          "‡": r"$\ddagger$"}  # fmt: skip
_BACKSLASH, _TILDE = r"\textbackslash{}", r"\textasciitilde{}"


def terminal(groups: Sequence[Group], console: Console, ddof: int = 1, against: str | None = None) -> None:
    """Print the table as wide as the terminal allows; columns that do not fit are named below it."""
    below = legend(groups, ddof, against)
    rows = [[escape(row[0]), *row[1:]] for row in cells(groups, ddof, "rich")]
    widths = {
        name: max(len(name), *(len(render(row[place]).plain) for row in rows)) + 3 for place, name in enumerate(COLUMNS)
    }
    widths["method"] = min(widths["method"], 26)  # a long label is folded
    shown = list(COLUMNS)
    for name in _FIRST_TO_GO:
        if sum(widths[each] for each in shown) + 2 > console.width:
            shown.remove(name)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title=escape(caption(groups)), title_justify="left")
    for name in shown:
        left = name in ("method", "seeds")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "method", overflow="fold")
    for row in rows:
        table.add_row(*(row[COLUMNS.index(name)] for name in shown))
    console.print(table)
    hidden = [name for name in COLUMNS if name not in shown]
    if hidden:
        other = "widen the terminal, or `budgeted table --format csv`"
        console.print(f"too narrow here for {', '.join(hidden)}: {other}", highlight=False)
    console.print("\n".join([*below, *one_seed(groups)]), highlight=False, markup=False)
    found = comparisons(groups, against)
    if found:
        console.print(_tests(found, against))
        corrected = "; ".join(
            f"{test.other if against is None else test.one} {test.holm[0]:.3g}"
            + ("" if test.holm[1] is None else f" and {test.holm[1]:.3g}")
            for test in found
        )
        console.print(f"p Welch and paired over all tests here (Holm): {corrected}", highlight=False, markup=False)


def _tests(found: Sequence[Test], against: str | None) -> Table:
    """Differences of A_AUC in points, with what either test says, and how many seeds it would take to tell."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    table.title = f"A_AUC, {found[0].one if against is None else 'each'} against {against or 'each'}"
    table.add_column("", overflow="fold")
    for name in ("points", "p Welch", "p paired", "95 % by seed", "seeds to tell"):
        table.add_column(name, justify="right", no_wrap=True)
    for test in found:
        told = test.welch.p_value < LEVEL or (test.paired is not None and test.paired.p_value < LEVEL)
        low, high = (0.0, 0.0) if test.paired is None else test.paired.interval()
        table.add_row(
            escape(test.other if against is None else test.one),
            f"{test.welch.difference:+.2f}",
            f"{test.welch.p_value:.3g}",
            "-" if test.paired is None else f"{test.paired.p_value:.3g}",
            "-" if test.paired is None else f"{low:+.2f} … {high:+.2f}",
            "" if told else _seeds(test),
            style=None if told else "dim",
        )
    return table


def _seeds(test: Test) -> str:
    """By the test that needs fewer; a row that nothing tells apart says so."""
    needed = [seeds_needed(each) for each in (test.welch, test.paired) if each is not None and each.standard_error > 0]
    known = [seeds for seeds in needed if seeds is not None]
    return f"about {min(known):,}" if known else "beyond reach"


def latex(groups: Sequence[Group], ddof: int = 1, against: str | None = None) -> str:
    """A table for a paper (booktabs): bold is best, underlined is not significantly worse; the tests as comments."""
    heads = " & ".join(_escaped(name) for name in COLUMNS)
    lines = [f"% {line}" for line in [caption(groups), *remarks(groups, ddof, against)] if line]
    lines += [rf"\begin{{tabular}}{{ll{'r' * (len(COLUMNS) - 2)}}}", r"  \toprule", rf"  {heads} \\", r"  \midrule"]
    for row in cells(groups, ddof, "latex"):
        # what ranks is marked up already; the others are text
        texts = [text if text.startswith("\\") or r"$\pm$" in text else _escaped(text) for text in row]
        lines.append(rf"  {' & '.join(texts)} \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"])


def caption(groups: Sequence[Group]) -> str:
    """Data set, stream, model, budget and seeds: what all rows have in common, and how many ways it differs."""
    configs = [run.config for group in groups for run in group.runs]

    def common(key: str, show: str = "{}") -> list[str]:
        found = {str(config.get(key)) for config in configs if config.get(key) is not None}
        return [show.format(found.pop())] if len(found) == 1 else [f"{len(found)} values of {key}"] if found else []

    seeds = sorted({int(config["seed"]) for config in configs})
    apart = len({tuple(run.config["seed"] for run in group.runs) for group in groups}) > 1
    budget = common("compute", "{}") or common("iterations", "{} iterations a sample") or ["1 iteration a sample"]
    memory = common("memory") or common("slots", "{} slots") or ["200 slots"]
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}{' (not all for every row)' if apart else ''}"
    parts = [*common("dataset"), *common("stream", "{} stream"), *common("model"), *budget, *memory, named]
    return " · ".join(re.sub(r"^1(\.0)? iterations", "1 iteration", part) for part in parts)


def _escaped(text: str) -> str:
    plain = text.replace("\\", "\0").replace("~", "\1")
    plain = "".join(_LATEX.get(letter, letter) for letter in plain)
    return plain.replace("\0", _BACKSLASH).replace("\1", _TILDE).replace("±", r"$\pm$")
