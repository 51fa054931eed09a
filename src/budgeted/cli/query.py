"""`budgeted query`: SQL over runs and their evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table as RichTable
from tyro.conf import Positional, arg

from budgeted.bench.query import database_of
from budgeted.bench.text_tables import csv_table, markdown_table
from budgeted.cli.console import wide_console
from budgeted.cli.runs_asked import asked
from budgeted.errors import BudgetedError


@dataclass(frozen=True)
class Query:
    """Ask finished runs and their evaluations anything, in SQL (DuckDB).

    Example: budgeted query results --sql "SELECT method, avg(a_auc), count(*) FROM runs GROUP BY method". There are
    two tables: `runs`, a row for each run with its configuration, settings ("retrieval.temperature") and results;
    `records`, a row for each evaluation, whose `run` is the path in `runs`. `COPY (SELECT ...) TO 'FILE.parquet'`
    writes a file.
    """

    folders: Annotated[Positional[tuple[Path, ...]], arg(metavar="DIR [DIR ...]")]
    """Folders of runs, or folders that hold such folders; of any age."""
    sql: Annotated[str | None, arg(metavar="SQL")] = None
    """What to ask; the columns of both tables if not given."""
    where: Annotated[tuple[str, ...], arg(metavar="KEY=VALUE [KEY=VALUE ...]")] = ()
    """Only runs for which these hold, as in dataset=cifar10 'seed<=3' method!=er; all if not given."""
    format: Literal["auto", "terminal", "markdown", "csv", "json"] = "auto"
    """How to print it; auto: a table for the terminal where there is one, Markdown elsewhere."""

    def run_(self) -> None:
        if not self.folders:
            raise BudgetedError('give folders of runs, as in `budgeted query results --sql "SELECT * FROM runs"`')
        database, sql = database_of(asked(self.folders, self.where)), self.sql or _COLUMNS
        if "records" in sql.lower():
            database.add_records()
        self._print(*database.ask(sql))

    def _print(self, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        console = wide_console()
        wanted = self.format
        if wanted == "auto":
            wanted = "terminal" if console.is_terminal else "markdown"
        if wanted == "json":
            print(json.dumps([dict(zip(heads, row, strict=True)) for row in rows], indent=1, default=str))
        elif wanted == "csv":
            print(csv_table(heads, rows), end="")
        elif wanted == "markdown":
            print(markdown_table(heads, _as_text(rows)))
        else:
            table = RichTable(*heads)
            for row in _as_text(rows):
                table.add_row(*row)
            console.print(table)


_COLUMNS = """SELECT table_name AS "table", column_name AS "column", data_type AS "type"
FROM information_schema.columns WHERE table_name IN ('runs', 'records') ORDER BY 1 DESC, ordinal_position"""


def _as_text(rows: Iterable[Sequence[Any]]) -> list[list[str]]:
    return [
        ["" if each is None else f"{each:.6g}" if isinstance(each, float) else str(each) for each in row]
        for row in rows
    ]
