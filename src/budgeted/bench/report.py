"""Everything that a set of runs came to, in one folder: tables for people, papers and programs, tests, and figures.

One part for each experiment, data set and stream; `report.md` holds all of them. Whatever is written can be derived
again from the run folders alone, by the command that stands at its top.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budgeted.bench import seed_tests
from budgeted.bench.budget_curves import draw_bytes_curves, draw_compute_curves, draw_forgetting_curves, draw_spent
from budgeted.bench.figures import draw_against_bytes, draw_dots, draw_over_stream, draw_where_compute_differs
from budgeted.bench.measured import RECORD, findings
from budgeted.bench.measured_figures import draw_measured
from budgeted.bench.published_accuracy import printed_for, printed_row
from budgeted.bench.query import Found, Section, sections
from budgeted.bench.table import COLUMNS, Group, RunResult, as_csv, cells, legend, one_seed
from budgeted.bench.table_formats import caption, latex
from budgeted.bench.text_tables import counted, markdown_table
from budgeted.bench.where_it_went import draw_bytes, draw_compute, draw_frozen
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner.files import named, read_json, replace_file
from budgeted.runs.config import RunConfig
from budgeted.runs.statistics import format_mean_sd, summarise

FIGURES: dict[str, tuple[str, Callable[[Sequence[Group], Path], bool | None]]] = {
    "accuracy": ("Accuracy over the stream", draw_over_stream),
    "dots": ("A_AUC and A_last with their intervals", draw_dots),
    "compute": ("A_AUC against compute", draw_where_compute_differs),
    "bytes": ("A_AUC against bytes", draw_against_bytes),
    "compute-curves": ("A_AUC and A_last over compute, executed and allowed", draw_compute_curves),
    "bytes-curves": ("A_AUC and A_last over bytes, kept and allowed", draw_bytes_curves),
    "forgetting-curves": ("Forgetting over compute, executed and allowed", draw_forgetting_curves),
    "spent": ("Compute over the stream", draw_spent),
    "frozen": ("Which blocks rested when", draw_frozen),
    "compute-by-purpose": ("Where the compute went", draw_compute),
    "bytes-by-item": ("Where the bytes went", draw_bytes),
}
"""file's name: its title, and what draws it; one that answers False had nothing to draw"""


@dataclass(frozen=True)
class Report:
    """What was written."""

    folder: Path
    sections: tuple[Section, ...]
    files: tuple[Path, ...]
    left_out: tuple[str, ...]


def write_report(
    found: Found,
    runs: Sequence[RunResult],
    folders: Sequence[Path],
    out: Path,
    *,
    ddof: int = 1,
    against: str | None = None,
    figures: str = "svg",
    command: str = "",
    said: Callable[[str], None] = lambda _: None,
) -> Report:
    """Write everything; `figures` is svg, pdf, png or none."""
    records = sorted({path.resolve(): path for folder in folders for path in named(folder, RECORD)}.values())
    if not runs and not records:
        raise BudgetedError("there is no finished run to report: finish one, or ask for other conditions")
    parts = sections(runs, folders)
    labels = {group.label for part in parts for group in part.groups}
    if against is not None and parts and against not in labels:
        raise UnknownName("row", against, labels)
    left_out = [*found.unreadable, *(f"{path}: not finished" for path in found.unfinished)]
    out.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []

    def write(name: str, text: str) -> None:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        replace_file(out / name, text.encode())
        files.append(out / name)

    pages = [f"# Report\n\n{_opening(parts, left_out, command)}"]
    for part in parts:
        said(part.title)
        fixed = against if against in [group.label for group in part.groups] else None
        instead = f"There is no row {against} here: tests are against the best row." if fixed != against else ""
        tests = seed_tests.seed_tests(part.groups, fixed)
        write(f"{part.name}/runs.csv", as_csv(part.groups))
        write(f"{part.name}/table.tex", latex(part.groups, ddof, fixed) + "\n")
        write(f"{part.name}/tests.csv", seed_tests.as_csv(tests))
        drawn = []
        for name, (title, draw) in FIGURES.items() if figures != "none" else ():
            path = out / part.name / f"{name}.{figures}"
            try:
                if draw(part.groups, path) is False:
                    continue
            except BudgetedError as error:
                left_out.append(f"{part.title}, {title}: {error}")
                continue
            files.append(path)
            drawn.append(f"![{title}: {part.title}]({part.name}/{path.name})")
        body = "\n".join(_section(part, ddof, fixed, tests, instead))
        write(f"{part.name}/table.md", body + "\n")
        pages.append("\n\n".join([body, *drawn]))
    for path in records:
        record = read_json(path)
        said(record["measured"])
        name = path.parent.name
        (out / name).mkdir(exist_ok=True)
        drawn_here = draw_measured(record, out / name, figures) if figures != "none" else []
        files += [file for _, file in drawn_here]
        pages.append(
            "\n\n".join([
                f"## {record['measured']} of the paper, measured ({name})",
                "\n".join(f"- {line}" for line in findings(record)),
                f"Made with {_settings(record['settings'])}.",
                *(f"![{title}: {name}]({name}/{file.name})" for title, file in drawn_here),
            ])
        )  # fmt: skip
    if left_out:
        pages.append("## Left out\n\n" + "\n".join(f"- {line}" for line in left_out))
    write("report.md", "\n\n".join(pages) + "\n")
    return Report(out, tuple(parts), tuple(files), tuple(left_out))


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())


def _opening(parts: Sequence[Section], left_out: Sequence[str], command: str) -> str:
    count = sum(len(group.runs) for part in parts for group in part.groups)
    missing = f", {len(left_out)} left out (see the end)" if left_out else ""
    lines = [f"{counted(count, 'run')} in {counted(len(parts), 'table')}{missing}."]
    if command:
        lines[0] += f" Made by `{command}`."
    lines += ["", *(f"- [{part.title}]({part.name}/table.md): {counted(len(part.groups), 'row')}" for part in parts)]
    return "\n".join(lines)


def _section(
    part: Section, ddof: int, against: str | None, tests: Sequence[seed_tests.SeedTest], instead: str
) -> Iterator[str]:
    groups = part.groups
    yield from (f"## {part.title}", "", caption(groups), "")
    yield markdown_table(COLUMNS, cells(groups, ddof, "markdown"))
    yield from ("", *legend(groups, ddof, against), *one_seed(groups), "")
    yield from _beside_the_paper(part, ddof)
    if tests:
        yield from ("### Tests by seed", "", *([instead, ""] if instead else []))
        yield from (seed_tests.as_markdown(tests), "")
        yield from (
            "Points of accuracy; a pair is the same seed of both rows. p (Holm) is corrected for all rows tested in "
            "its metric, bold below 0.05. Hedges' g: the difference over its standard deviation.", "",
        )  # fmt: skip
    yield from ("<details><summary>The commands that repeat these runs</summary>", "", "```sh")
    yield from (command_of(run.config, run.path.name) for group in groups for run in group.runs)
    yield from ("```", "", "</details>", "")


def _beside_the_paper(part: Section, ddof: int) -> Iterator[str]:
    """Printed values beside ours, for the rows that the paper has."""
    table = printed_for(part.config)
    rows = [(group, printed) for group in part.groups if (printed := printed_row(group.runs[0].config)) is not None]
    if table is None or not rows:
        return
    size = f"{table.model}, {table.samples:,} samples"
    alike = table.same_size(part.config)
    yield f"### Beside the paper ({table.source}, {size})"
    yield ""
    cells_of_rows = []
    for group, printed in rows:
        a_auc, a_last, compute = printed.cells()
        ours = [format_mean_sd(summarise(group.values(key), ddof), 2, 100) for key in ("a_auc", "a_last")]
        cells_of_rows.append((group.label, ours[0], a_auc, ours[1], a_last, compute))
    heads = ("method", "A_AUC %, here", "printed", "A_last %, here", "printed", "compute, printed")
    yield from (markdown_table(heads, cells_of_rows), "")
    if not alike:
        yield "These runs are of another size than the paper's: compare differences between rows, not accuracies."
        yield ""


def command_of(config: Mapping[str, Any], name: str) -> str:
    """The command line that makes such a run again, into a folder of this name."""
    words = ["budgeted", "run"]
    for key, value in config.items():
        if key in ("data", "download", "sources", "settings", "usual") or value is None or value == "":
            continue
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, bool):
            words += [flag] if value else []
        else:
            words += [flag, str(value)]
    for key, value in {**_habits_since_left(config), **(config.get("settings") or {})}.items():
        words += ["--set", f"{key}={value}"]
    return shlex.join([*words, "--out", f"runs/{name}"])


def _habits_since_left(config: Mapping[str, Any]) -> dict[str, str]:
    """What the method was usually run with then and is not now: a command has to say it, the rest goes without."""
    then = config.get("usual") or {}
    parts: dict[str, Any] = {part: config.get(part) for part in ("method", "freezing", "retrieval", "codec")}
    if not then or any(":" in (part or "") for part in parts.values()):  # nobody's file is run for a command line
        return dict(then)
    try:
        now = RunConfig(**parts).with_usual().usual
    except BudgetedError:  # a part that has gone since
        return dict(then)
    return {key: value for key, value in then.items() if now.get(key) != value}
