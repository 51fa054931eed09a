"""Measurements of the paper's figures: what they measure is what it says, and their figures are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from budgeted import streams
from budgeted.bench import measured
from budgeted.bench.inside import LARGER, InsideSettings, look_inside
from budgeted.bench.measured import MEASUREMENTS, RECORD, Measurement, findings, measure
from budgeted.bench.measured_figures import draw_measured
from budgeted.bench.query import look
from budgeted.bench.report import write_report
from budgeted.bench.use_frequency import Toy, ToySettings, decreases, effective, forgotten, transferred
from budgeted.cli import main
from budgeted.errors import BudgetedError

TOY = ToySettings(
    dataset="digits", model="mlp", per_class=2, epochs=5, references=5, uses=6, others=8, learning_rate=0.05
)
INSIDE = InsideSettings(dataset="digits", model="cnn8", samples=120, slots=40, points=12)


def toy() -> Toy:
    return Toy(TOY, streams.load("digits", test=False))


def test_a_toys_step_is_plain_gradient_descent_on_its_sample() -> None:
    one = toy()
    model = one.model
    image, label = one.images[3:4], one.labels[3:4]
    F.cross_entropy(model(image), label).backward()
    expected = [p.detach() - TOY.learning_rate * p.grad for p in one.parameters if p.grad is not None]
    before = one.loss(3)
    one.learn(3)
    assert all(torch.allclose(p, wanted) for p, wanted in zip(one.parameters, expected, strict=True))
    assert one.loss(3) < before


def test_a_loss_is_read_back_as_uses() -> None:
    curve = [4.0, 2.0, 1.0, 1.5, 0.5]  # not falling everywhere
    assert [effective(curve, loss) for loss in (4.0, 3.0, 1.0, 0.5)] == [0.0, 0.5, pytest.approx(2.5, abs=0.6), 4.0]
    assert effective(curve, 9.0) == 0.0  # worse than before its first use
    assert effective(curve, 0.1) == 4.0


def test_the_toys_find_what_was_put_in() -> None:
    """In a plain network that learns alone: a later use gives less, others are forgotten about, like helps like."""
    use = decreases(toy())
    rows = use["decrease_by_use"]
    assert rows[0][0] > rows[-1][0] > 0
    assert use["spearman"] < 0
    lost = forgotten(toy())
    assert lost["effective"][0] == TOY.uses
    assert lost["effective"][-1] < lost["effective"][0]
    moved = transferred(toy())
    assert moved["r"] > 0
    assert max(moved["change"]) > 0 > min(moved["change"])  # it may rise as well as fall


def test_inside_is_what_the_learner_itself_has() -> None:
    found = look_inside(INSIDE, None)
    count = len(found["blocks"])
    assert all(len(row) == count - 1 for row in found["bfc"])
    assert len(found["bfc"]) == len(found["samples"]) <= 12
    assert found["boundaries"] == [24, 48, 72, 96]
    assert all(0 <= share <= 1 for row in found["positive"] for share in row)
    matrix = np.array(found["similarity"])
    assert matrix.shape == (10, 10)
    assert np.allclose(matrix, matrix.T, atol=1e-3)
    assert len(found["use_frequency"]) == len(found["labels"]) == 40
    assert min(found["use_frequency"]) >= 0


def test_the_larger_sample_estimates_the_same_quantity_and_looking_changes_nothing() -> None:
    alone = look_inside(InsideSettings(**{**vars(INSIDE), "method": "al", "stream": "gaussian"}), None)
    beside = look_inside(
        InsideSettings(**{**vars(INSIDE), "method": "al", "stream": "gaussian", "larger_sample": True}), None
    )
    assert alone["fisher"]["own"] == beside["fisher"]["own"]
    own, same, other = (np.array(beside["fisher"][kind])[-1, -1] for kind in ("own", *LARGER))
    assert 0.5 < own / same < 2
    assert other < same  # the squared gradient of a larger batch is smaller
    lines = findings(beside)
    assert any("batches of 16" in line for line in lines)


def test_a_record_is_made_once_drawn_by_the_report_and_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {
        "Figure 8": Measurement("How?", INSIDE, INSIDE),
        "Figures 19 to 21": Measurement("Does it?", TOY, TOY),
    }
    monkeypatch.setattr(measured, "MEASUREMENTS", {**MEASUREMENTS, **small})
    assert main(["sweep", "Figure 8", "--out", str(tmp_path)]) == 0
    assert "Freezing up to some block" in capsys.readouterr().out
    path = tmp_path / "figure-8" / RECORD
    before = path.read_bytes()
    assert measure("Figure 8", "cpu", tmp_path, None) == path
    assert path.read_bytes() == before
    measure("Figures 19 to 21", "cpu", tmp_path, None)
    monkeypatch.setitem(measured.MEASUREMENTS, "Figure 8", Measurement("How?", InsideSettings(), INSIDE))
    with pytest.raises(BudgetedError, match="other settings"):
        measure("Figure 8", "cpu", tmp_path, None)
    found = look([tmp_path])
    written = write_report(found, found.runs, [tmp_path], tmp_path / "report", figures="png")
    assert {file.name for file in written.files} == {
        "criterion.png", "criterion-above-0.png", "similarity.png", "use-frequency.png", "toy-use.png",
        "toy-forgotten.png", "toy-similar.png", "report.md",
    }  # fmt: skip
    page = (tmp_path / "report" / "report.md").read_text()
    assert "## Figure 8 of the paper, measured (figure-8)" in page
    assert "![Class similarity: figure-8](figure-8/similarity.png)" in page
    assert draw_measured({"settings": {}}, tmp_path, "png") == []
