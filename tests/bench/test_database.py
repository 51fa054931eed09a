"""Runs asked in SQL: the same as a plain loop over rows and lines, whatever is in them and wherever they lie."""

from __future__ import annotations

import json
import operator
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgeted.bench.database import Database
from budgeted.bench.query import database_of, look, where
from budgeted.cli import main
from budgeted.errors import BudgetedError
from tests.markdown import ROOT

RESULTS = ROOT / "results"
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def holds(found: Any, sign: str, wanted: str) -> bool:
    """One value by hand."""
    if (found is None or wanted == "none") and sign not in ("=", "!="):
        return False
    try:
        return SIGNS[sign](float(found), float(wanted))
    except (TypeError, ValueError):
        text = "" if found is None else str(found).lower()
        return SIGNS[sign](text, "" if wanted.lower() == "none" else wanted.lower())


flags = st.one_of(st.none(), st.booleans())
values = st.one_of(
    st.none(), st.integers(-9, 9), st.sampled_from([2**70, -0.5, 1.5, 3e14, "2e-3", "er", "Al", "9", "it's"])
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.lists(flags, min_size=1, max_size=6), st.lists(values, min_size=1, max_size=6)),
    st.sampled_from(sorted(SIGNS)),
    st.sampled_from(["3", "-1", "2e-3", "er", "AL", "true", "none", "it's", "1.5", '"; DROP TABLE runs; --']),
)
def test_a_condition_holds_as_by_hand(column: list[Any], sign: str, wanted: str) -> None:
    database = Database([{"path": f"no folder {place}", "a.b": value} for place, value in enumerate(column)])
    expected = [place for place, value in enumerate(column) if holds(value, sign, wanted)]
    assert database.where([("a.b", sign, wanted)]) == expected


def test_records_are_the_lines_of_the_files_wherever_these_lie(tmp_path: Path) -> None:
    odd = tmp_path / 'it\'s [1] * "run"? é'
    shutil.copytree(RESULTS / "full-size", odd)
    runs = look([odd]).runs
    lines = [
        (str(run.path), each["samples"], each["accuracy"])
        for run in runs
        for each in map(json.loads, (run.path / "records.jsonl").read_text().splitlines())
    ]
    database = database_of(runs)
    database.add_records()
    heads, found = database.ask("SELECT run, samples, accuracy FROM records")
    assert heads == ["run", "samples", "accuracy"]
    assert len(lines) > 100
    assert sorted(found) == sorted(lines)
    _, ((joined,),) = database.ask("SELECT count(*) FROM records JOIN runs ON run = path")
    assert joined == len(lines)


def test_damaged_records_are_no_matter_to_who_asks_for_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in look([RESULTS / "full-size"]).runs:
        shutil.copytree(run.path, tmp_path / run.path.name)
    damaged = next(tmp_path.glob("al-sar*")) / "records.jsonl"
    damaged.write_text(damaged.read_text()[:700])
    assert len(where(look([tmp_path]).runs, ["method=al-sar"])) == 1
    assert main(["query", str(tmp_path), "--sql", "SELECT method FROM runs"]) == 0
    assert "al-sar" in capsys.readouterr().out
    assert main(["query", str(tmp_path), "--sql", "SELECT * FROM records"]) == 2
    assert str(damaged) in capsys.readouterr().err


def test_no_runs_are_no_rows() -> None:
    assert Database([]).ask("SELECT * FROM runs") == (["path"], [])
    assert where([], []) == []


def test_a_mistake_in_sql_is_said_in_one_line_and_what_it_prints_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BudgetedError, match=r"DuckDB: .*SELEC"):
        Database([]).ask("SELEC 1")
    folder = str(RESULTS / "components")
    asked = "SELECT method, count(*) AS n, avg(a_auc) AS a FROM runs WHERE seed = 1 GROUP BY method ORDER BY method"
    assert main(["query", folder, "--sql", asked, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in found] == ["al", "al-sar", "sar", "vanilla"]
    assert [each["n"] for each in found] == [1, 1, 1, 2]
    for kind in ("csv", "markdown", "terminal"):
        assert main(["query", folder, "--sql", asked, "--format", kind, "--where", "method!=al"]) == 0
        printed = capsys.readouterr().out
        assert "al-sar" in printed
        assert len(printed.splitlines()) in (4, 5, 7)
    assert main(["query", folder]) == 0
    assert "| records | accuracy | DOUBLE |" in capsys.readouterr().out
    assert main(["query"]) == 2
    assert "give folders of runs" in capsys.readouterr().err
    assert main(["query", folder, "--sql", f"COPY (FROM runs) TO '{tmp_path / 'runs.parquet'}'"]) == 0
    assert (tmp_path / "runs.parquet").stat().st_size > 1000
