"""Recommendations: the shipped records against the runs, the model against plain algebra, choices by a known rule."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from budgeted import streams
from budgeted.bench import outcomes
from budgeted.bench.outcomes import Outcome
from budgeted.bench.recommend import Asked, Fitted, recommend
from budgeted.budget import parse_compute
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.runs.config import RunConfig

RESULTS = Path(__file__).parents[2] / "results"
ROWS = outcomes.shipped()


def test_what_the_package_brings_is_what_the_runs_came_to() -> None:
    if not RESULTS.is_dir():
        pytest.skip("the runs are in the repository alone")
    assert outcomes.as_json(outcomes.gather(RESULTS)) == outcomes.as_json(ROWS)


def test_a_row_is_the_mean_over_its_seeds() -> None:
    row = next(row for row in ROWS if len(row.runs) > 1)
    summaries = [json.loads((RESULTS / run / "summary.json").read_text()) for run in row.runs]
    assert row.a_auc == tuple(pytest.approx(100 * each["a_auc"], abs=1e-3) for each in summaries)
    assert len({each["seed"] for each in summaries}) == len(row.runs)
    spent = [each["spent"]["real"] / each["iterations"] for each in summaries]
    assert row.step_real == pytest.approx(np.mean(spent))
    held = [each["bytes"] for each in summaries]
    assert row.fixed_bytes + row.slots * row.slot_bytes == pytest.approx(np.mean(held), rel=1e-6)


# -- the model ------------------------------------------------------------------------------------------------------


def row(**more: Any) -> Outcome:
    given: dict[str, Any] = {
        "dataset": "cifar10", "classes": 10, "shape": (3, 32, 32), "stream": "gaussian", "samples": 5_000,
        "choice": {"method": "vanilla", "model": "resnet20"},
        "parts": {"retrieval": "uniform", "freezing": "none", "codec": "raw"},
        "learner": {"learning_rate": 3e-4, "optimizer": "adam", "average": "none", "average_decay": 0.99},
        "batch_size": 16, "steps": 5_000.0, "slots": 1_000.0,
        "fixed_bytes": 1e6, "slot_bytes": 3_073.0, "step_paper": 2e9, "step_real": 4e9, "a_auc": (50.0,),
        "a_last": (50.0,), "runs": ("one",),
    }  # fmt: skip
    return Outcome(**{**given, **more})


def measured_by(rule: Any) -> list[Outcome]:
    """Two codecs at several lengths and bytes, whose A_AUC a rule says."""
    found = []
    for samples in (2_500, 5_000, 10_000, 20_000, 40_000):
        for nbytes in (2e6, 4e6, 8e6):
            for codec, slot in (("raw", 3_073.0), ("jpeg", 300.0)):
                slots = min((nbytes - 1e6) / slot, samples)
                choice = {"method": "vanilla", "model": "resnet20", "codec": codec}
                parts = {"retrieval": "uniform", "freezing": "none", "codec": codec}
                made = row(
                    samples=samples, steps=float(samples), slots=slots, slot_bytes=slot, choice=choice, parts=parts
                )
                found.append(dataclasses.replace(made, a_auc=(rule(made),), runs=(f"{codec}-{samples}-{nbytes}",)))
    return found


def pays_when_long(each: Outcome) -> float:
    """Stored share helps, blur hurts: compression pays where the memory is short of the stream."""
    return 60 + 4 * math.log2(min(1.0, each.slots / each.samples)) - (5 if each.choice["codec"] == "jpeg" else 0)


def test_leaving_one_out_in_closed_form_is_leaving_one_out() -> None:
    rows = measured_by(pays_when_long)
    fitted = Fitted(rows)
    errors, deviations = fitted.left_out
    covariance = fitted.closeness(rows) + np.diag(np.full(len(rows), np.exp(2 * fitted._parameters[-1]) + 1e-6))
    results = np.array([each.a_auc[0] for each in rows])
    rest = results - results.mean()
    for place in (0, 7, 20):
        others = np.arange(len(rows)) != place
        weights = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, place])
        assert rest[place] - weights @ rest[others] == pytest.approx(errors[place], abs=1e-6)
        left = covariance[place, place] - weights @ covariance[others, place]
        assert math.sqrt(left) == pytest.approx(deviations[place], rel=1e-6)


def test_the_slope_of_the_fit_is_what_differences_say() -> None:
    fitted = Fitted(measured_by(pays_when_long))
    at = fitted._usual + np.linspace(-0.5, 0.5, len(fitted._usual))
    _, slope = fitted._unlikeliness(at)
    for place in range(len(at)):
        moved = np.zeros_like(at)
        moved[place] = 1e-5
        more, less = fitted._unlikeliness(at + moved)[0], fitted._unlikeliness(at - moved)[0]
        assert (more - less) / 2e-5 == pytest.approx(slope[place], rel=1e-4, abs=1e-5)


# -- recommendations ------------------------------------------------------------------------------------------------


def asked(samples: int, nbytes: float, compute: str | None = None, dataset: str = "cifar10") -> Asked:
    amount = parse_compute(compute or f"{samples * 4}GFLOP")
    return Asked(streams.info(dataset), "gaussian", samples, int(nbytes), amount)


@pytest.mark.parametrize(("samples", "nbytes"), [(3_500, 7e6), (3_500, 2.8e6), (14_000, 6e6), (28_000, 3e6)])
def test_budgets_between_the_records_get_the_better_codec(samples: int, nbytes: float) -> None:
    found = recommend(asked(samples, nbytes), measured_by(pays_when_long))
    by_rule = {str(each.row.choice["codec"]): pays_when_long(each.row) for each in found.candidates}
    best = found.candidates[0]
    assert by_rule[str(best.row.choice["codec"])] == max(by_rule.values())
    assert best.a_auc == pytest.approx(pays_when_long(best.row), abs=1.5)
    assert not found.unmeasured
    assert best.row.steps == samples
    assert best.row.fixed_bytes + best.row.slots * best.row.slot_bytes <= nbytes * 1.0001


def test_what_is_outside_the_records_is_said() -> None:
    rows = measured_by(pays_when_long)
    assert "64,000 samples: the records have" in recommend(asked(64_000, 4e6), rows).unmeasured[0]
    assert "61MiB: the records have" in recommend(asked(5_000, 64e6), rows).unmeasured[0]
    assert "40GFLOP a sample: the records have" in recommend(asked(5_000, 4e6, "200TFLOP"), rows).unmeasured[0]
    assert recommend(asked(5_000, 4e6, dataset="svhn"), rows).unmeasured[0] == "svhn: the records are of cifar10"
    far = recommend(asked(5_000, 4e6, "10GFLOP"), rows)
    assert far.unmeasured[-1].startswith("anything near this")
    assert far.candidates[0].deviation > 3


def test_what_does_not_fit_is_no_candidate() -> None:
    rows = measured_by(pays_when_long)
    assert {each.row.choice["codec"] for each in recommend(asked(5_000, 1.005e6), rows).candidates} == {"jpeg"}
    with pytest.raises(BudgetedError, match="nothing that was measured fits this budget"):
        recommend(asked(5_000, 1e6), rows)
    with pytest.raises(BudgetedError, match="nothing that was measured fits this budget"):
        recommend(asked(5_000, 4e6), rows, "resnet32")


def test_our_records_foretell_each_other() -> None:
    """Better than their mean does, by far; deviations are no boast."""
    errors, deviations = Fitted(ROWS).left_out
    results = np.array([np.mean(each.a_auc) for each in ROWS])
    assert np.abs(errors).mean() < np.abs(results - results.mean()).mean() / 2
    assert (np.abs(errors) <= 2 * deviations).mean() > 0.85


def test_the_command_prints_a_run_and_its_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["--memory", "5MB", "--limit", "10000"]
    assert main(["plan", "--recommend", *budget, "--compute", "40TFLOP"]) == 0
    told = capsys.readouterr().out
    run = told.splitlines()[0].split()
    assert run[:3] == ["budgeted", "run", "--method"]
    config = parse_run(run[2:])
    assert (config.limit, config.memory, config.compute) == (10_000, "5MB", "40TFLOP")
    assert f"of {len(ROWS)} configurations: data {', '.join(sorted({each.dataset for each in ROWS}))}" in told
    assert main(["plan", "--recommend", *budget, "--compute", "4GFLOP/sample", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert parsed["candidates"][0]["method"] == config.method
    assert parsed["runs"] == sum(len(each.runs) for each in ROWS)
    for more in ([], ["--compute", "40TFLOP", "--slots", "10"]):
        assert main(["plan", "--recommend", *budget, *more]) == 2
        assert "give --memory and --compute" in capsys.readouterr().err


def parse_run(words: list[str]) -> RunConfig:
    """The flags that a recommendation uses."""
    spent, words = "--spend-savings" in words, [word for word in words if word != "--spend-savings"]
    pairs = dict(zip(words[::2], words[1::2], strict=True))
    named = {flag.removeprefix("--").replace("-", "_"): value for flag, value in pairs.items()}
    numbers = {"limit": int(named.pop("limit")), "batch_size": int(named.pop("batch_size"))}
    settings = dict([named.pop("set").split("=", 1)] if "set" in named else [])
    return RunConfig(**named, **numbers, settings=settings, spend_savings=spent)  # type: ignore[arg-type]
