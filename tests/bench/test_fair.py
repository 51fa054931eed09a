"""The fair table: rates are chosen from records by one rule, and footings are what they are called."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from budgeted.bench import fair
from budgeted.bench.recipes import recipe
from budgeted.bench.steps import steps_by_part
from budgeted.bench.sweep import places
from budgeted.bench.table import comparisons, find_runs, group_runs
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.methods import METHODS, Method
from budgeted.runs import run as runs
from budgeted.runs.config import RunConfig
from tests.command_line import said


def quick(method: str) -> RunConfig:
    """A protocol of seconds, under the name of the one that takes a quarter of an hour."""
    return RunConfig(
        method=method, model="mlp", memory="400kB", limit=80, eval_every=20, eval_samples=20, checkpoint_every=80
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "protocol", quick)
    monkeypatch.setattr(fair, "EQUAL_COMPUTE", "100MFLOP")
    monkeypatch.setattr(fair, "at_equal_compute", lambda each: replace(each, compute="100MFLOP", spend_savings=True))
    monkeypatch.setattr(fair, "COMPARED", ("er", "mir", "not-there-yet"))
    monkeypatch.setattr(fair, "OWN_IDEA", ("ewc", "der++", "not-there-yet"))
    monkeypatch.setattr(fair, "PAPER_CHARGES", {"mir": 4.12})
    monkeypatch.setattr(fair, "CHOSEN_AT", 40)


@pytest.mark.usefixtures("small")
def test_rates_are_chosen_from_the_records_and_the_table_is_run_at_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BudgetedError, match="12 of 12 runs of choose-rate are not finished") as refused:
        recipe("as-published", tmp_path)
    assert "\n" not in str(refused.value)
    reached: dict[str, dict[str, float]] = {}
    for place in places(fair.choose_rate().runs, tmp_path):
        assert (place.config.seed, place.config.limit, place.config.compute) == (11, 40, "50000000FLOP")
        summary = runs.start(place.config, place.folder)
        reached.setdefault(fair.row_of(place.config), {})[place.config.settings[fair.RATE]] = summary["a_auc"]
    rates = fair.chosen_rates(fair.choose_rate(), "choose-rate", tmp_path)
    assert rates.keys() == reached.keys()
    assert all(reached[row][rate] == max(reached[row].values()) for row, rate in rates.items())

    made = {name: fair.FROM_RATES[name](rates).runs for name in fair.FROM_RATES}
    for each in (*made["as-published"], *made["one-footing"]):
        assert each.settings[fair.RATE] == rates[fair.row_of(each)]
    assert {each.seed for each in made["as-published"]} == {1, 2, 3}  # and not the one that the rates were chosen on
    published = [each for each in made["as-published"] if each.seed == 1]
    assert [each.method for each in published] == ["er", "mir", "vanilla", "vanilla", "er"]
    assert published[2].retrieval == "class-balanced"
    assert published[3].settings["learner.selection"] == "reservoir"

    for each in made["paper-charges"]:
        assert (each.settings[fair.RATE], each.byte_rule) == (rates[fair.row_of(each)], "paper")
        assert each.iterations == 0.243  # by the figure that the paper prints, and no compute is given
        assert each.compute is None

    mir, control = (runs.start(config, tmp_path / f"table-{config.method}") for config in (published[1], published[4]))
    assert control["iterations"] == pytest.approx(mir["iterations"], abs=2)
    assert control["spent"]["real"] < 0.6 * mir["spent"]["real"]
    text = said(["table", str(tmp_path / "table-mir"), str(tmp_path / "table-er"), "--steps"], capsys)
    row = next(line for line in text.splitlines() if line.startswith("| mir") and line.count("|") == 7)
    assert sum(int(cell) for cell in row.split("|")[2:7]) == pytest.approx(mir["iterations"], abs=3)
    assert main(["table", str(tmp_path / "table-er"), "--steps", "--format", "csv"]) == 2


def test_on_one_footing_batches_are_from_a_balanced_memory_alone() -> None:
    for config in fair.on_one_footing():
        method = config.build_method()
        made = config.build_settings(flips=True)
        assert (method.retrieval, made.learner.selection or method.selection) == ("class-balanced", "greedy-balanced")
        assert made.method.get("stream_share", method.stream_share) == 0
    assert {config.method for config in fair.on_one_footing()} == {"vanilla", *fair.OWN_IDEA}
    assert len(fair.one_footing({}).runs) == 36


def test_methods_are_taken_up_by_name_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {name for name in fair.COMPARED if name in METHODS}
    ours = {"cram"}  # has tables of its own
    assert {*METHODS, "lider-x-der"} >= there >= {*METHODS} - {*fair.OWN_IDEA} - ours
    new = {name: METHODS[name] for name in METHODS}  # all are imported now, and none into what is put back
    monkeypatch.setattr(METHODS, "_known", new)
    new.pop("memo", None)
    monkeypatch.delitem(METHODS._written_in, "memo")
    without = len(fair.published()), len(fair.on_one_footing())
    new["memo"] = METHODS["vanilla"]
    assert (len(fair.published()), len(fair.on_one_footing())) == (without[0] + 1, without[1] + 1)


def test_the_stream_share_of_a_method_that_needs_none_may_be_zero(tmp_path: Path) -> None:
    settings = {"method.stream_share": "0", "learner.selection": "greedy-balanced"}
    alone = runs.start(replace(quick("er"), iterations=1.0, settings=settings), tmp_path / "er")
    vanilla = runs.start(replace(quick("vanilla"), iterations=1.0), tmp_path / "vanilla")
    assert alone["weights_sha256"] == vanilla["weights_sha256"]  # what is left of ER is Vanilla
    with pytest.raises(BudgetedError, match=r"leave method\.stream_share out") as refused:
        runs.start(replace(quick("ocs"), settings=settings), tmp_path / "ocs")
    assert "\n" not in str(refused.value)
    with pytest.raises(BudgetedError, match=r"method\.stream_share must be from 0 to 1"):
        METHODS["er"](stream_share=1.5)


@pytest.mark.parametrize(
    "name", ["ewc", "bic", "lider-er", "mir", "aser", "rm", "der++", "cama", "x-der", "lider-x-der", "ccl-dc-der++"]
)
def test_methods_that_need_no_stream_learn_from_the_memory_alone(name: str, tmp_path: Path) -> None:
    assert isinstance(METHODS[name](stream_share=0.0), Method)
    config = replace(quick(name), iterations=1.0, settings={"method.stream_share": "0"}, stream="disjoint")
    summary = runs.start(config, tmp_path / "run")
    assert summary["iterations"] >= 76  # a step for every sample that was not withheld


def test_steps_by_fifth_are_those_of_the_records(tmp_path: Path) -> None:
    """A run whose compute is spent halfway has its steps in the first half."""
    config = replace(quick("vanilla"), iterations=2.0)
    folder = tmp_path / "run"
    runs.start(config, folder)
    assert steps_by_part(find_runs([folder])[0]).tolist() == pytest.approx([30, 32, 32, 32, 32], abs=3)
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert sum(steps_by_part(find_runs([folder])[0])) == pytest.approx(records[-1]["steps"])


def test_p_values_of_a_table_are_corrected_for_their_number(tmp_path: Path) -> None:
    """By hand, from the definition: the smallest times their number, and no p below one that was smaller."""
    for method in ("vanilla", "er", "al"):
        for seed in (1, 2, 3):
            config = replace(quick(method), iterations=0.5, seed=seed, limit=40)
            runs.start(config, tmp_path / f"{method}-{seed}")
    tests = comparisons(group_runs(find_runs([tmp_path])))
    assert len(tests) == 2
    for which in (0, 1):
        plain = [test.welch.p_value if which == 0 else test.paired.p_value for test in tests if test.paired is not None]
        low, high = np.argsort(plain)
        expected = [0.0, 0.0]
        expected[low] = min(1.0, 2 * plain[low])
        expected[high] = max(expected[low], plain[high])
        assert [test.holm[which] for test in tests] == pytest.approx(expected)
