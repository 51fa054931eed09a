"""Tables of what a comparison with another library has run: accuracies and times of pairs, tests of the differences."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEGEND = """\
Accuracies are in percent, over the classes met so far: after the last task (final), and the mean of those after every
task (over tasks), each with its mean ± standard deviation over seeds. A difference is first less second: the mean over
seeds ± half of the paired 95 % interval, and p of Welch's test, which knows of no pairs. ms: CPU milliseconds per
iteration on one thread, median over seeds, without the first task, in which a side sets itself up."""
Runs = dict[str, list[dict[str, Any]]]


class Comparison(NamedTuple):
    """Two variants, each by its side and name."""

    first: str
    second: str


def per_iteration(run: Mapping[str, Any], after: int = 1) -> float:
    """CPU milliseconds; without the first task, in which both sides set themselves up."""
    return float(1e3 * sum(run["seconds"][after:]) / sum(run["iterations"][after:]))


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over seeds, and the median CPU time of an iteration."""
    values = {
        "final": [each["accuracies"][-1] for each in runs],
        "over_tasks": [statistics.fmean(each["accuracies"]) for each in runs],
    }
    found: dict[str, Any] = {
        name: {"mean": statistics.fmean(each), "sd": statistics.stdev(each)} for name, each in values.items()
    }
    found["iterations"] = sorted({sum(each["iterations"]) for each in runs})
    found["ms"] = statistics.median(map(per_iteration, runs))
    found["ms_with_first_task"] = statistics.median(per_iteration(each, after=0) for each in runs)
    penalties = [each["largest_penalty"] for each in runs if "largest_penalty" in each]
    return found | ({"largest_penalty": max(penalties)} if penalties else {})


def compare(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """First less second: of seeds in pairs with a 95 % interval, and Welch's test, which knows of no pairs."""
    from scipy import stats

    found: dict[str, Any] = {}
    for name, reduce in (("final", lambda each: each[-1]), ("over_tasks", statistics.fmean)):
        ours, theirs = ([reduce(each["accuracies"]) for each in side] for side in (first, second))
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        half = float(stats.t.ppf(0.975, len(differences) - 1)) * statistics.stdev(differences)
        found[name] = {
            "difference": statistics.fmean(differences),
            "half_interval": half / math.sqrt(len(differences)),
            "welch_p": float(stats.ttest_ind(ours, theirs, equal_var=False).pvalue),
        }
    evaluations = [
        (a, b)
        for x, y in zip(first, second, strict=True)
        for a, b in zip(x["accuracies"], y["accuracies"], strict=True)
    ]
    found["equal_evaluations"] = f"{sum(a == b for a, b in evaluations)} of {len(evaluations)}"
    found["same_iterations"] = all(a["iterations"] == b["iterations"] for a, b in zip(first, second, strict=True))
    found["times_as_fast"] = statistics.median(
        per_iteration(b) / per_iteration(a) for a, b in zip(first, second, strict=True)
    )
    return found


def accuracy(of: Mapping[str, float]) -> str:
    return f"{100 * of['mean']:.1f} ± {100 * of['sd']:.1f}"


def tested(of: Mapping[str, float]) -> str:
    p = of["welch_p"]
    return (
        f"{100 * of['difference']:+.1f} ± {100 * of['half_interval']:.1f} (p {'< 0.001' if p < 0.001 else f'{p:.3f}'})"
    )


def table(record: Mapping[str, Any], comparisons: Sequence[Comparison]) -> list[str]:
    lines = [
        "| first | second | final, first | final, second | difference | over tasks, first | over tasks, second "
        "| difference | ms, first | ms, second |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for pair in comparisons:
        first, second = (record["variants"][name] for name in pair)
        found = record["comparisons"][" / ".join(pair)]
        cells = [pair.first, pair.second]
        for kind in ("final", "over_tasks"):
            cells += [accuracy(first[kind]), accuracy(second[kind]), tested(found[kind])]
        lines.append(f"| {' | '.join(cells)} | {first['ms']:.2f} | {second['ms']:.2f} |")
    return lines


def runs_beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}_runs.jsonl")


def tables(record: dict[str, Any], path: Path, kinds: Mapping[str, Sequence[Comparison]]) -> None:
    """What the runs beside a record say, into the record and into tables: one for each kind of comparison, by title."""
    runs: Runs = {}
    for line in runs_beside(path).read_text().splitlines():
        each = json.loads(line)
        runs.setdefault(each["variant"], []).append(each)
    held = {title: [pair for pair in pairs if runs.keys() >= set(pair)] for title, pairs in kinds.items()}
    record["variants"] = {name: summary(each) for name, each in runs.items()}
    record["comparisons"] = {
        " / ".join(pair): compare(runs[pair.first], runs[pair.second]) for pairs in held.values() for pair in pairs
    }
    parts = [f"# {record['dataset']}, {record['seeds']} seeds", "", LEGEND]
    for title, pairs in held.items():
        parts += ["", f"## {title}", "", *table(record, pairs)]
    text = "\n".join(parts) + "\n"
    print(text)
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(text)
