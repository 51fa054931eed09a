"""The demo in small: what it says is what its runs came to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from budgeted.bench import page as page_file
from budgeted.bench.stream_demo import StreamDemo
from budgeted.cli.demo import Demo
from budgeted.errors import BudgetedError
from budgeted.runs.folder import SUMMARY, read_summary

SMALL = StreamDemo(("ours", "frozen"), "60MFLOP", "120kB", (1, 2), "mlp", 60)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_file, "vega", lambda: "")  # its program is long, and no part of this
        Demo(stream=SMALL, out=folder).run_()
    return folder


def test_every_run_keeps_to_the_one_budget_and_its_picture_and_page_are_there(shown: Path) -> None:
    for name in SMALL.learners:
        for seed in SMALL.seeds:
            summary = read_summary(shown / f"{name}-{seed}" / SUMMARY)
            assert 50e6 < summary["spent"]["real"] <= 60e6
            assert summary["bytes"] <= 120_000
    assert (shown / "demo.png").stat().st_size > 10_000
    assert "ours" in (shown / "demo.html").read_text()


def test_the_counter_saw_what_was_charged(shown: Path) -> None:
    for name in SMALL.learners:
        saw = json.loads((shown / f"{name}-counted.json").read_text())
        assert saw["steps"] >= 1
        assert saw["executed"] == pytest.approx(saw["charged"], rel=0.01)


def test_again_it_runs_nothing_and_says_the_same(
    shown: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> str:
        raise BudgetedError("the page needs Vega-Lite: pip install 'budgeted[report]'")

    monkeypatch.setattr(page_file, "vega", missing)
    before = {path: path.stat().st_mtime_ns for path in shown.rglob("*.jsonl")}
    Demo(stream=SMALL, out=shown).run_()
    said = capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in shown.rglob("*.jsonl")}
    steps = {
        name: sum(read_summary(shown / f"{name}-{seed}" / SUMMARY)["iterations"] for seed in SMALL.seeds) / 2
        for name in SMALL.learners
    }
    assert steps["frozen"] > steps["ours"]
    assert f"that bought {steps['frozen'] - steps['ours']:+.0f} steps" in said
    assert "less compute than one of ours" in said
    assert "95 % by seed, 2 of them" in said
    assert "executed / charged" in said
    assert "page      the page needs Vega-Lite: pip install" in said  # one line, and no failure
