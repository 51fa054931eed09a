"""A run that was made as it says is confirmed bit for bit; one that was forged is not, though all digests are right."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from budgeted.errors import BudgetedError
from budgeted.learner.learner import Learner
from budgeted.runs.config import RunConfig
from budgeted.runs.keeping import kept
from budgeted.runs.run import Run, resume, start
from budgeted.runs.verify import Stretch, Verification, _drawn, verify
from budgeted.streams import Dataset
from tests.command_line import Capture, refused, said
from tests.runs.forging import Forged, claim_machine
from tests.runs.small import Stopped, begun, other_dispatch, stop_after

TINY: dict[str, Any] = {
    "model": "mlp", "limit": 20, "slots": 10, "batch_size": 4, "eval_every": 6, "eval_samples": 100,
    "checkpoint_every": 4, "keep_checkpoints": "all",
}  # fmt: skip


def tiny(method: str = "al-sar", **more: Any) -> RunConfig:
    return RunConfig(method=method, **{**TINY, **more})


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest") / "run"
    start(tiny(), folder)
    return folder


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("another") / "run"
    start(tiny(seed=2), folder)
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- honest ---------------------------------------------------------------------------------------------------------


def test_an_honest_run_is_confirmed_bit_for_bit_and_its_folder_is_left_alone(honest: Path, capsys: Capture) -> None:
    before = files(honest)
    text = said(["verify", str(honest), "--stretches", "all"], capsys)
    assert "confirmed bit for bit: 5 of 5 stretches, 20 of 20 samples" in text
    assert text.count("the same bits") == 5
    assert files(honest) == before


def test_a_run_that_was_killed_and_went_on_is_confirmed(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", tiny("vanilla"), 9)
    with pytest.raises(Stopped):
        resume(folder, stop_after(15))
    unfinished = verify(folder, stretches=1)
    assert unfinished.confirmed
    assert not unfinished.finished
    resume(folder)
    found = verify(folder, stretches=0, draw=5)
    assert found.confirmed
    assert found.finished
    assert [(each.begin, each.end) for each in found.looked] == [(0, 4), (16, 20)]
    assert found.missed == 1.0


@pytest.mark.parametrize("more", [{"eval_beside": True}, {"eval_folded": True, "model": "cnn8"}])
def test_a_run_that_evaluates_otherwise_is_confirmed(more: dict[str, Any], tmp_path: Path) -> None:
    """Answers that are under way at a checkpoint are a part of what it holds."""
    start(tiny("vanilla", **more), tmp_path / "run")
    assert verify(tmp_path / "run", stretches="all").confirmed


def test_records_without_checkpoints_are_replayed_whole(honest: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(honest, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    found = verify(folder)
    assert found.confirmed
    assert [(each.begin, each.end) for each in found.looked] == [(0, 20)]


# -- forged ---------------------------------------------------------------------------------------------------------


def edited_accuracy(forged: Forged, _: Path) -> None:
    record = forged.records[1]
    place = next(i for i, (right, of) in enumerate(zip(record["correct"], record["total"], strict=True)) if right < of)
    record["correct"][place] += 1
    record["accuracy"] = sum(record["correct"]) / sum(record["total"])
    forged.follow()


def swapped_weights(forged: Forged, another: Path) -> None:
    theirs = Forged(another).checkpoints[-1].tensors
    mine = forged.checkpoints[-1].tensors
    mine |= {
        name: theirs[name] for name in mine if name.startswith("model.") and theirs[name].shape == mine[name].shape
    }
    forged.follow()


def understated_compute(forged: Forged, _: Path) -> None:
    def half(costs: dict[str, list[int]]) -> dict[str, list[int]]:
        return {name: [paper // 2, real // 2] for name, (paper, real) in costs.items()}

    for each in forged.checkpoints:
        each.numbers["ledger"]["spent"] = half(each.numbers["ledger"]["spent"])
    for record in forged.records:
        record["spent_on"] = half(record["spent_on"])
        totals = [sum(cost[rule] for cost in record["spent_on"].values()) for rule in (0, 1)]
        record["spent"] = dict(zip(("paper", "real"), totals, strict=True))
    forged.follow()


def other_seed(forged: Forged, _: Path) -> None:
    forged.configure(seed=3)
    forged.follow()


def cut_stream(forged: Forged, _: Path) -> None:
    """Half a stream that calls itself a whole one."""
    forged.configure(limit=40, eval_every=12, checkpoint_every=8)
    for record in forged.records:
        record["samples"] *= 2
    for each in forged.checkpoints:
        each.numbers |= {"arrived": 2 * each.numbers["arrived"], "position": 2 * each.numbers["position"]}
        each.name = f"{each.numbers['arrived']:09d}"
    forged.follow()


def edited_config(forged: Forged, _: Path) -> None:
    forged.configure(settings={"learner.learning_rate": "0.01"})
    forged.follow()


def exchanged_checkpoint(forged: Forged, another: Path) -> None:
    forged.checkpoints[2].tensors = Forged(another).checkpoints[2].tensors


def records_of_another_run(forged: Forged, another: Path) -> None:
    theirs = Forged(another)
    forged.records = theirs.records
    for mine, other in zip(forged.checkpoints, theirs.checkpoints, strict=True):
        mine.records = other.records
    forged.follow()


def inflated_summary(forged: Forged, _: Path) -> None:
    forged.summary |= {"a_auc": 0.99, "a_last": 0.99}


def fewer_bytes(forged: Forged, _: Path) -> None:
    for record in forged.records:
        record["bytes"] -= 1000
    forged.summary["bytes"] -= 1000
    forged.follow()


def a_better_ending(forged: Forged, _: Path) -> None:
    """Another class of the test images right in every record: the curve, the summary and all digests agree."""
    for record in forged.records:
        record["correct"] = list(record["total"])
        record["accuracy"] = 1.0
    forged.follow()


FORGERIES: tuple[Callable[[Forged, Path], None], ...] = (
    edited_accuracy, swapped_weights, understated_compute, other_seed, cut_stream, edited_config, exchanged_checkpoint,
    records_of_another_run, inflated_summary, fewer_bytes, a_better_ending,
)  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES, ids=lambda forgery: str(forgery.__name__))
def test_a_forged_run_is_found(
    forgery: Callable[[Forged, Path], None], honest: Path, another: Path, tmp_path: Path
) -> None:
    forged = Forged(honest)
    forgery(forged, another)
    # what is in all of a run shows in its first or last stretch, without any luck
    some = "all" if forgery in (edited_accuracy, exchanged_checkpoint) else 0
    found = verify(forged.write(tmp_path / "forged"), stretches=some)
    assert not found.confirmed
    if forgery not in (inflated_summary, cut_stream):  # which contradict their own records; others need the replay
        assert found.contradictions == ()
        assert any(each.findings for each in found.looked)


def test_the_forger_alone_changes_nothing(honest: Path, tmp_path: Path) -> None:
    """The control: read and written anew, with all digests, a run is still confirmed."""
    assert verify(Forged(honest).follow().write(tmp_path / "copy"), stretches="all").confirmed


def test_other_data_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = RunConfig.load_data

    def easier(config: RunConfig) -> Dataset:
        data = load(config)
        images = np.array(data.train_images)
        images[:, :, 0, 0] = (25 * data.train_labels % 256)[:, None]  # the answer in a corner
        return dataclasses.replace(data, train_images=images)

    with monkeypatch.context() as patched:
        patched.setattr(RunConfig, "load_data", easier)
        start(tiny(), tmp_path / "run")
    careless = verify(tmp_path / "run", stretches=0)
    assert "training images" in careless.contradictions[0]
    forged = Forged(tmp_path / "run")
    forged.configure()  # the digests of the data as they should be
    found = verify(forged.write(tmp_path / "forged"), stretches=0)
    assert not found.confirmed
    assert found.contradictions == ()


def test_a_run_that_began_with_more_than_its_seed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Run._build_learner

    def trained_before(run: Run) -> Learner:
        learner = build(run)
        for tensor in learner.model.state_dict().values():
            tensor.mul_(1.01)
        return learner

    with monkeypatch.context() as patched:
        patched.setattr(Run, "_build_learner", trained_before)
        start(tiny("vanilla"), tmp_path / "run")
    found = verify(tmp_path / "run", stretches=0)
    assert [bool(each.findings) for each in found.looked] == [True, False]


def test_a_forgery_is_said_in_one_line(honest: Path, tmp_path: Path, capsys: Capture) -> None:
    forged = Forged(honest)
    edited_accuracy(forged, honest)
    folder, out = forged.write(tmp_path / "forged"), tmp_path / "found.json"
    line = refused(["verify", str(folder), "--stretches", "all", "--out", str(out)], capsys, quiet=False)
    assert "is not confirmed: stretch 2, samples 4 to 8: the record after 6 samples has other accuracy" in line
    written = json.loads(out.read_text())
    assert not written["confirmed"]
    assert written["weights_sha256"] == forged.summary["weights_sha256"]


# -- what is drawn --------------------------------------------------------------------------------------------------


def test_every_stretch_between_is_drawn_equally_often_and_the_ends_always() -> None:
    chain = [Stretch(number, None, None, False) for number in range(1, 13)]
    drawn = Counter(each.number for draw in range(2000) for each in _drawn(chain, 3, draw))
    assert drawn[1] == drawn[12] == 2000
    assert all(abs(drawn[number] - 2000 * 3 / 10) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for number in range(2, 12))
    assert [each.number for each in _drawn(chain, 99, 1)] == list(range(1, 13))


def test_what_a_draw_leaves_open_is_said(honest: Path) -> None:
    found = verify(honest, stretches=1, draw=3)
    assert found.confirmed
    assert found.missed == pytest.approx(2 / 3)
    again = verify(honest, stretches=1, draw=3)
    assert again.looked == found.looked


@pytest.mark.parametrize("bad", [{"stretches": "some"}, {"stretches": -1}, {"tolerance": 0.0}])
def test_what_cannot_be_asked_is_refused(honest: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError):
        verify(honest, **bad)


# -- elsewhere ------------------------------------------------------------------------------------------------------

_ELSEWHERE = """
import json, sys
from pathlib import Path
from budgeted.runs.verify import verify
for folder in sys.argv[1:]:
    found = verify(Path(folder), stretches=1)
    print(json.dumps([found.confirmed, found.exact, [each.findings for each in found.looked]]))
"""


def test_on_another_arithmetic_it_confirms_within_the_tolerance_and_says_so(honest: Path, tmp_path: Path) -> None:
    forged = Forged(honest)
    understated_compute(forged, honest)
    folders = [str(honest), str(forged.write(tmp_path / "forged"))]
    found = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, *folders], env=other_dispatch(), capture_output=True, text=True, check=True
    )
    as_made, understated = (json.loads(line) for line in found.stdout.splitlines())
    assert as_made[:2] == [True, False]
    assert understated[:2] == [False, False]


@pytest.mark.parametrize("forgery", [swapped_weights, understated_compute, other_seed, a_better_ending])
def test_to_claim_another_machine_hides_no_large_forgery(
    forgery: Callable[[Forged, Path], None], honest: Path, another: Path, tmp_path: Path
) -> None:
    forged = Forged(honest)
    forgery(forged, another)
    folder = forged.write(tmp_path / "forged")
    claim_machine(folder, arithmetic="0" * 16)
    found: Verification = verify(folder, stretches=0)
    assert not found.confirmed
    assert not found.exact


# -- which checkpoints stay -----------------------------------------------------------------------------------------


def test_checkpoints_that_stay_are_spread_over_the_stream(tmp_path: Path) -> None:
    start(tiny("vanilla", checkpoint_every=1, keep_checkpoints=6), tmp_path / "run")
    names = sorted(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == [1, 5, 10, 15, 19, 20]  # the first of each quarter, and the newest two
    begun(tmp_path / "killed", tiny("vanilla", checkpoint_every=1, keep_checkpoints=6), 14)
    resume(tmp_path / "killed")
    assert sorted(int(path.name) for path in (tmp_path / "killed" / "checkpoints").iterdir()) == names


@pytest.mark.parametrize("keep", [2, 3, 5, 17])
def test_never_more_than_asked_for_and_the_newest_two_always(keep: int) -> None:
    there: set[int] = set()
    for arrived in range(7, 701, 7):
        there = kept([*there, arrived], keep, 700)
        assert len(there) <= keep
        assert {arrived, max(arrived - 7, 7)} <= there
    assert kept([1, 2, 3], "all", 3) == {1, 2, 3}


def test_a_run_that_says_nothing_keeps_two_and_its_configuration_is_as_before() -> None:
    assert "keep_checkpoints" not in RunConfig().to_json()
    assert RunConfig.from_mapping(tiny().to_json(), "here") == tiny()
    for bad in (1, "some"):
        with pytest.raises(BudgetedError, match="keep-checkpoints"):
            tiny(keep_checkpoints=bad)
