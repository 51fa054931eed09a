"""Tables of runs: mean and spread over seeds, tests between methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from budgeted.bench.row_labels import row_labels
from budgeted.bench.text_tables import csv_table, markdown_table
from budgeted.budget import format_compute
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner.files import named
from budgeted.methods import METHODS
from budgeted.runs.folder import CONFIG, RECORDS, SUMMARY, read_summary
from budgeted.runs.multiple import holm
from budgeted.runs.records import read_records, records_digest
from budgeted.runs.statistics import (
    PLUS_MINUS,
    Comparison,
    format_mean_sd,
    paired,
    rank,
    summarise,
    too_few,
    welch,
)

COLUMNS = (
    "method",
    "seeds",
    "A_AUC %",
    "A_last %",
    "F_last %",
    "slots",
    "steps",
    "rule paper",
    "rule real",
    "frozen %",
    "train s",
)


@dataclass(frozen=True)
class RunResult:
    """One finished run."""

    path: Path
    summary: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.summary["config"]
        return found

    @property
    def seed(self) -> str:
        """With a mark if the run went on on another machine."""
        return f"{self.config['seed']}{'†' if self.machines > 1 else ''}"

    @property
    def machines(self) -> int:
        """How many arithmetics its bits come from; one for runs from before that was recorded."""
        return len(self.summary.get("environments", [None]))

    def periodic_records(self) -> list[dict[str, Any]]:
        """What was recorded at the evaluations that come at equal intervals."""
        found = read_records(self.path / RECORDS)
        if records_digest(found) != self.summary.get("records_sha256"):
            raise BudgetedError(f"{self.path / RECORDS} has other records than the run made: restore it")
        return [record for record in found if record["periodic"]]


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: tuple[RunResult, ...]
    copies: int = 0
    """of these runs, found elsewhere: they are the same evidence and count once"""

    def values(self, key: str) -> list[float]:
        return [float(run.summary[key]) for run in self.runs if run.summary[key] is not None]

    def by_seed(self, key: str) -> dict[int, float]:
        """In percent; without seeds that have none."""
        known = [run for run in self.runs if run.summary[key] is not None]
        return {int(run.config["seed"]): 100 * float(run.summary[key]) for run in known}

    def spent(self, rule: str) -> list[float]:
        return [float(run.summary["spent"][rule]) for run in self.runs]


def find_runs(folders: Sequence[Path]) -> list[RunResult]:
    """The finished runs in these folders or below them."""
    found: list[RunResult] = []
    for folder in folders:
        if not folder.exists():
            raise BudgetedError(f"{folder} is not there: give folders of runs")
        places = [folder] if (folder / CONFIG).exists() else sorted(path.parent for path in named(folder, CONFIG))
        finished = [place for place in places if (place / SUMMARY).exists()]
        if not finished:
            if not places:
                raise BudgetedError(f"{folder} holds no run: make one with `budgeted run`, or give another folder")
            raise BudgetedError(
                f"{folder} holds no finished run: finish one with `budgeted run --resume`, or give another folder"
            )
        known = {run.path.resolve() for run in found}
        found += [RunResult(place, read_summary(place / SUMMARY)) for place in finished if place.resolve() not in known]
    return found


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """Runs by configuration, the best A_AUC first; the label names the method and what else differs between them."""
    groups: dict[str, list[RunResult]] = {}
    for run, label in zip(runs, row_labels([run.config for run in runs]), strict=True):
        groups.setdefault(label, []).append(run)
    found = [_once(label, sorted(members, key=lambda r: r.config["seed"])) for label, members in groups.items()]
    return sorted(found, key=lambda group: -float(np.mean(group.values("a_auc"))))


def _once(label: str, runs: Sequence[RunResult]) -> Group:
    """Without copies: the same seed with the same weights and records is one run, wherever its folders lie."""
    apart: dict[tuple[Any, ...], RunResult] = {}
    for number, run in enumerate(runs):
        digests = [run.summary.get(key) for key in ("weights_sha256", "records_sha256")]
        apart.setdefault((run.config["seed"], *(digests if all(digests) else [number])), run)
    return Group(label, tuple(apart.values()), len(runs) - len(apart))


def chosen(groups: Sequence[Group], labels: Sequence[str]) -> list[Group]:
    """The groups with these labels; all if none is named."""
    known = [group.label for group in groups]
    for label in labels:
        if label not in known:
            raise UnknownName("row", label, known)
    return [group for group in groups if not labels or group.label in labels]


def cells(groups: Sequence[Group], ddof: int, style: str) -> list[list[str]]:
    """One row of text per group, under COLUMNS; bold is best, underlined is not significantly worse (Welch, 5 %)."""
    ranked = {
        key: {row.method: row for row in rank({g.label: g.values(key) for g in groups}, ddof=ddof)}
        for key in ("a_auc", "a_last")
    }
    rows = []
    for group in groups:
        forgetting = group.values("f_last")
        rows.append(
            [
                group.label,
                ", ".join(run.seed for run in group.runs),
                ranked["a_auc"][group.label].cell(style, 2, 100),
                ranked["a_last"][group.label].cell(style, 2, 100),
                format_mean_sd(summarise(forgetting, ddof), 2, 100, PLUS_MINUS[style]) if forgetting else "-",
                f"{float(np.mean(group.values('slots'))):.0f}" if group.values("slots") else "all",
                f"{float(np.mean(group.values('iterations'))):.0f}",
                format_compute(round(float(np.mean(group.spent("paper")))), "paper"),
                format_compute(round(float(np.mean(group.spent("real")))), "real"),
                f"{100 * float(np.mean(group.values('frozen_share'))):.1f}{'‡' * bool(rests(group))}",
                f"{float(np.mean(group.values('train_seconds'))):.0f}",
            ]
        )
    return rows


def markdown(groups: Sequence[Group], ddof: int = 1, against: str | None = None) -> str:
    """The table with pipes and dashes, and what there is to say below it."""
    table = markdown_table(COLUMNS, cells(groups, ddof, "markdown"))
    return "\n".join([table, "", *remarks(groups, ddof, against)])


def remarks(groups: Sequence[Group], ddof: int = 1, against: str | None = None) -> list[str]:
    """What stands below a table: what its marks mean, and the tests between its rows."""
    return legend(groups, ddof, against) + notes(groups, against)


def legend(groups: Sequence[Group], ddof: int, against: str | None) -> list[str]:
    """What the marks of a table mean."""
    if against is not None and against not in (labels := [group.label for group in groups]):
        raise UnknownName("row", against, labels)
    head = f"mean ± sd over seeds (ddof {ddof}); bold: best, underlined: not significantly worse (Welch, 5 %)"
    return [head, *resting(groups), *cautions(groups)]


def rests(group: Group) -> str:
    """What the method of these runs lets rest by design, in words; of a user's file nothing is known."""
    name = str(group.runs[0].config["method"])
    return str(getattr(METHODS[name], "rests", "")) if ":" not in name and name in METHODS else ""


def resting(groups: Sequence[Group]) -> list[str]:
    """The frozen share is what freezing policies left out: a method that rests by itself would seem never to."""
    found = {str(group.runs[0].config["method"]): rests(group) for group in groups if rests(group)}
    if not found:
        return []
    told = "; ".join(f"{what} ({name})" for name, what in found.items())
    return [f"‡: rests by design, which frozen % does not count and compute does: {told}"]


def cautions(groups: Sequence[Group]) -> list[str]:
    """What to mind of these rows before they are compared."""
    lines = []
    if any(run.machines > 1 for group in groups for run in group.runs):
        lines.append("†: went on on another machine, so its bits are not those of one arithmetic")
    tasks = {(str(run.config["dataset"]), str(run.config["stream"])) for group in groups for run in group.runs}
    if len(tasks) > 1:
        lines.append(
            f"warning: runs on {len(tasks)} tasks (data sets, streams): rows of different ones do not compare; "
            "`budgeted report` has a table for each"
        )
    if copies := sum(group.copies for group in groups):
        lines.append(f"copies of runs that are here already, left out: {copies}")
    for group in groups:
        if len({run.config["seed"] for run in group.runs}) < len(group.runs):
            lines.append(f"warning: {group.label} has a seed more than once; spread and tests take both as independent")
    return lines


@dataclass(frozen=True)
class Test:
    """A_AUC of one row against another's, in points: Welch's test, and the paired one over the seeds of both."""

    one: str
    other: str
    welch: Comparison
    paired: Comparison | None
    warning: str | None
    holm: tuple[float, float | None] = (1.0, None)
    """p of both, corrected for all tests below the table (Holm)"""


def comparisons(groups: Sequence[Group], against: str | None = None) -> list[Test]:
    """The best group against every other, or every other against the one that is named, where there are two seeds."""
    best = max(groups, key=lambda group: float(np.mean(group.values("a_auc"))))
    fixed = next((group for group in groups if group.label == against), best)
    found = []
    for group in groups:
        if group is fixed or min(len(group.runs), len(fixed.runs)) < 2:
            continue
        one, other = (fixed, group) if against is None else (group, fixed)
        first, second = one.by_seed("a_auc"), other.by_seed("a_auc")
        test = welch(list(first.values()), list(second.values()))
        found.append(Test(one.label, other.label, test, by_common_seeds(first, second), too_few(test)))
    return _corrected(found)


def _corrected(tests: Sequence[Test]) -> list[Test]:
    """With what their number makes of their p values."""
    of_welch = holm([test.welch.p_value for test in tests])
    by_seed = iter(holm([test.paired.p_value for test in tests if test.paired is not None]))
    return [
        replace(test, holm=(p_value, None if test.paired is None else next(by_seed)))
        for test, p_value in zip(tests, of_welch, strict=True)
    ]


def notes(groups: Sequence[Group], against: str | None = None) -> list[str]:
    """The tests in words, and a warning where the seeds are too few to tell."""
    found = []
    for test in comparisons(groups, against):
        what = f"A_AUC, {test.one} against {test.other}: {test.welch.difference:+.2f} points"
        by_seed = "" if test.paired is None else f"; {by_pairs(test.paired)}"
        found.append(f"{what}, p {test.welch.p_value:.3g} (Welch){by_seed}{_of_all(test)}")
        if test.warning:
            found.append(f"  warning: {test.warning}")
    return ["", *found, *one_seed(groups)] if found or one_seed(groups) else []


def _of_all(test: Test) -> str:
    """What is left of both findings among all tests of the table."""
    by_seed = "" if test.holm[1] is None else f" and {test.holm[1]:.3g}"
    return f"; Holm over the table {test.holm[0]:.3g}{by_seed}"


def one_seed(groups: Sequence[Group]) -> list[str]:
    if len(groups) > 1 and any(len(group.runs) < 2 for group in groups):
        return ["warning: with one seed a difference cannot be told from chance"]
    return []


def by_pairs(test: Comparison) -> str:
    """The paired test in words: what the seed alone contributes has fallen out of it."""
    low, high = test.interval()
    return f"by seed [{low:+.2f}, {high:+.2f}], p {test.p_value:.3g} (paired, {test.counts[0]} seeds)"


def by_common_seeds(one: Mapping[int, float], other: Mapping[int, float]) -> Comparison | None:
    """The paired test over the seeds that both have, where there are two."""
    both = sorted(one.keys() & other.keys())
    if len(both) < 2:
        return None
    return paired({seed: one[seed] for seed in both}, {seed: other[seed] for seed in both})


def as_csv(groups: Sequence[Group]) -> str:
    """One line per run: everything needed to aggregate again."""
    keys = ["a_auc", "a_last", "f_last", "klr", "kgr", "frozen_share", "iterations", "samples", "slots", "bytes"]
    heads = ["group", "seed", *keys, "spent_paper", "spent_real", "train_seconds", "eval_seconds", "machines"]
    rows = []
    for group in groups:
        for run in group.runs:
            found = run.summary
            spent = found["spent"]
            times = [f"{found['train_seconds']:.3f}", f"{found['eval_seconds']:.3f}"]
            values = [*(found[key] for key in keys), spent["paper"], spent["real"], *times, run.machines]
            rows.append([group.label, found["seed"], *values])
    return csv_table(heads, rows)
