"""Runs and the JSON lines of their evaluations as tables that SQL can ask, in DuckDB.

    runs        a row for each finished run: its configuration, its settings by name, what came of it (`query.row`)
    records     a row for each evaluation, read from the runs' files when it is asked for; `run` is the path in `runs`

Nothing is stored: the folders are the database.
"""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from budgeted.errors import BudgetedError
from budgeted.runs.folder import RECORDS

_FILES = '[{"file": "VARCHAR", "run": "VARCHAR"}]'
_LONG = range(-(2**63), 2**63)


class Database:
    """What these rows of runs and the files beside them say."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        keys = dict.fromkeys(["path", *(key for each in rows for key in each)])
        self.columns = {key: _kind_of([each.get(key) for each in rows]) for key in keys}
        self._connection = duckdb.connect(":memory:", config={"threads": 1})
        told = json.dumps([{key: _told(each.get(key)) for key in keys} for each in rows])
        kinds = json.dumps([self.columns])
        self.ask("CREATE TABLE runs AS SELECT unnest(from_json(?, ?), max_depth := 2)", [told, kinds])
        self._files = {str(file): each["path"] for each in rows if (file := Path(each["path"], RECORDS)).exists()}

    def add_records(self) -> None:
        """The second table, for who asks it: all files are read for its columns, and a damaged one is an error."""
        if self._files:
            names = json.dumps([{"file": file, "run": run} for file, run in self._files.items()])
            self.ask("CREATE TABLE _files AS SELECT unnest(from_json(?, ?), max_depth := 2)", [names, _FILES])
            listed = ", ".join(_quoted(glob.escape(file), "'") for file in self._files)
            self.ask(
                f"CREATE VIEW records AS SELECT run, lines.* EXCLUDE (filename) FROM read_json([{listed}],"
                " format = 'newline_delimited', union_by_name = true, filename = true, sample_size = -1) AS lines"
                " JOIN _files ON filename = file"
            )

    def ask(self, sql: str, given: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of the columns, and the rows."""
        try:
            found = self._connection.execute(sql, list(given))
            return [column[0] for column in found.description or ()], found.fetchall()
        except duckdb.Error as error:
            raise BudgetedError(f"DuckDB: {error}") from None

    def where(self, conditions: Sequence[tuple[str, str, str]]) -> list[int]:
        """Places of the rows for which all hold, each of them a column, a sign and a value. By number where both are
        numbers, else as text; what is not there is the empty text, or `none`, neither more nor less than anything."""
        terms, given = ["true"], list[Any]()
        for key, sign, value in conditions:
            column, text = _quoted(key), "" if value.lower() == "none" else value.lower()
            sign = {"=": "IS NOT DISTINCT FROM", "!=": "IS DISTINCT FROM"}.get(sign, sign)
            terms.append(
                f"coalesce(CASE WHEN try_cast({column} AS DOUBLE) IS NOT NULL AND try_cast(? AS DOUBLE) IS NOT NULL"
                f" THEN try_cast({column} AS DOUBLE) {sign} try_cast(? AS DOUBLE)"
                f" ELSE nullif(lower({column}::VARCHAR), '') {sign} nullif(?, '') END, false)"
            )
            given += [value, value, text]
        _, found = self.ask(f"SELECT rowid FROM runs WHERE {' AND '.join(terms)} ORDER BY rowid", given)
        return [int(place) for (place,) in found]


def _kind_of(values: Sequence[Any]) -> str:
    """Of a column: numbers are numbers also where settings give them as text."""
    there = [each for each in values if each is not None]
    if there and all(isinstance(each, bool) for each in there):
        return "BOOLEAN"
    if there and all(isinstance(each, int) and not isinstance(each, bool) and each in _LONG for each in there):
        return "BIGINT"
    return "DOUBLE" if there and all(map(_is_number, there)) else "VARCHAR"


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)


def _told(value: Any) -> Any:
    """What JSON has no number or text for goes as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else json.dumps(value)


def _quoted(text: str, mark: str = '"') -> str:
    return mark + text.replace(mark, mark * 2) + mark
