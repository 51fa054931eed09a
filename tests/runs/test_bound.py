"""A run goes on with the data, the settings and the records that it was begun with, and with no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from budgeted import streams
from budgeted.errors import BudgetedError
from budgeted.runs import content
from budgeted.runs.counter import StepCounter
from budgeted.runs.run import resume, start
from tests.cli.small import QUICK
from tests.command_line import refused
from tests.runs.small import begun, config, same_end

SMALL: dict[str, Any] = {"model": "mlp", "limit": 20, "eval_every": 5, "checkpoint_every": 3, "slots": 10}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    digits = streams.load("digits")
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    arrays = (digits.train_images[:60], digits.train_labels[:60], digits.test_images[:60], digits.test_labels[:60])
    np.savez(path, **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))
    return path


@pytest.fixture(scope="module")
def half(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return begun(tmp_path_factory.mktemp("half") / "run", config(dataset=str(data), **SMALL), 14)


@pytest.fixture
def run(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def black(arrays: dict[str, Any]) -> None:
    arrays["x_train"][:] = 0


def one_pixel(arrays: dict[str, Any]) -> None:
    arrays["x_test"][np.flatnonzero(arrays["y_test"] == 3)[0], 0, 4, 4] ^= 1


def other_labels(arrays: dict[str, Any]) -> None:
    arrays["y_test"][:2] = arrays["y_test"][:2][::-1]


OTHER_DATA: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "black training images": (black, "the training images are not those"),
    "a pixel of a test image": (one_pixel, "the test images are not those"),
    "test labels exchanged": (other_labels, "test labels are not those"),
}


@pytest.mark.parametrize("kind", OTHER_DATA)
def test_other_data_are_refused(kind: str, run: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, said = OTHER_DATA[kind]
    whole = data.read_bytes()
    try:
        with np.load(data) as found:
            arrays = dict(found)
        change(arrays)
        np.savez(data, **arrays)
        assert said in refused(["run", "--resume", str(run)], capsys)
    finally:
        data.write_bytes(whole)
    assert resume(run)["sittings"] == 2  # restored, it goes on


def test_files_that_are_decoded_as_they_are_used_are_bound_by_name_length_and_some_content(tmp_path: Path) -> None:
    paths = [tmp_path / "here" / "train" / f"class{number % 2}" / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)

    def digest(place: str = "here") -> str:
        found = streams.load(f"folder:{tmp_path / place}", test=False, on_demand=True)
        return content._images(found.train_images, np.arange(len(found.train_labels)))

    before = digest()
    shutil.copytree(tmp_path / "here", tmp_path / "moved")
    assert digest("moved") == before  # another place, the same data
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert digest() != before
    paths[3].write_bytes(whole)
    assert digest() == before
    limit, content.LOOKED_INTO = content.LOOKED_INTO, 2
    try:  # of the many that are not looked into, the length counts
        before = digest()
        paths[3].write_bytes(whole + b"x")
        assert digest() != before
    finally:
        content.LOOKED_INTO = limit


EDITS: dict[str, Any] = {"batch_size": 5, "settings": {"learner.optimizer": "sgd"}, "seed": 3, "eval_every": 7}


@pytest.mark.parametrize("key", EDITS)
def test_edited_settings_are_refused(key: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads((run / "config.json").read_text())
    found[key] = EDITS[key]
    (run / "config.json").write_text(json.dumps(found))
    assert "config.json was changed since the run was begun" in refused(["run", "--resume", str(run)], capsys)
    del found["config_sha256"]  # as a file from before there was one: then the checkpoint knows
    (run / "config.json").write_text(json.dumps(found))
    name = "settings.learner.optimizer" if key == "settings" else key
    assert f"{name} " in (said := refused(["run", "--resume", str(run)], capsys))
    assert "other settings than the run was made with" in said


def test_a_checkpoint_of_other_settings_is_refused(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = config(dataset=str(data), **SMALL, settings={"learner.learning_rate": "0.01"})
    foreign = begun(tmp_path / "foreign", chosen, 14)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(foreign / "checkpoints", run / "checkpoints")
    said = refused(["run", "--resume", str(run)], capsys)
    assert "settings.learner.learning_rate 0.01 then, not said now" in said


def edited(lines: list[bytes]) -> None:
    lines[0] = lines[0].replace(b'"samples": 4', b'"samples": 3')


def swapped(lines: list[bytes]) -> None:
    lines[0], lines[1] = lines[1], lines[0]


def flipped(lines: list[bytes]) -> None:
    lines[1] = bytes([lines[1][0] ^ 4]) + lines[1][1:]


@pytest.mark.parametrize("change", [edited, swapped, flipped])
def test_other_records_are_refused(
    change: Callable[[list[bytes]], None], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    change(lines)
    (run / "records.jsonl").write_bytes(b"".join(lines))
    assert "other records than those the checkpoint was made with" in refused(["run", "--resume", str(run)], capsys)
    assert (run / "records.jsonl").read_bytes() == b"".join(lines)


def test_a_summary_that_was_changed_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume(run)
    whole = (run / "summary.json").read_text()
    (run / "summary.json").write_text(whole.replace('"a_auc": 0.', '"a_auc": 1.'))
    for command in (["run", "--resume", str(run)], ["table", str(run)]):
        assert "is not as the run wrote it" in refused(command, capsys)
    (run / "summary.json").write_text("{}")
    for command in (["run", "--resume", str(run)], ["table", str(run)]):
        assert "is no summary of a run" in refused(command, capsys)


def test_figures_are_drawn_from_the_records_that_the_run_made(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resume(run)
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[:-1]))
    command = ["table", str(run), "--figure", str(run / "figure.png")]
    assert "other records than the run made" in refused(command, capsys, quiet=False)


@pytest.mark.parametrize("content", [b"", b"x", b"0" * 38, None])
def test_a_counter_that_is_damaged_is_unknown_and_nothing_else_is(
    content: bytes | None, run: Path, tmp_path: Path, half: Path
) -> None:
    whole = resume(Path(shutil.copytree(half, tmp_path / "other")))
    if content is None:
        (run / "executed_steps").unlink()
    else:
        (run / "executed_steps").write_bytes(content)
    ended = resume(run)
    same_end(ended, whole)
    assert ended["executed_steps"] is None
    assert whole["executed_steps"] == 14 + 20 - 12


def test_a_counter_of_another_run_or_of_an_earlier_moment_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    counter = StepCounter(path, "mine", None)
    counter.add(7)
    counter.close()
    for run, least, known in (("mine", 7, 7), ("another", 7, None), ("mine", 7, None)):
        counter = StepCounter(path, run, least)
        assert counter.count == known
        counter.close()
    path.unlink()
    counter = StepCounter(path, "mine", 3)
    assert counter.count is None
    counter.close()


def test_before_the_first_checkpoint_another_configuration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the counter knows then which run was begun."""
    mine, other = (begun(tmp_path / str(seed), config(**SMALL, seed=seed), 2) for seed in (1, 2))
    whole = (mine / "config.json").read_bytes()
    (mine / "config.json").write_bytes((other / "config.json").read_bytes())
    records = (mine / "records.jsonl").exists()
    assert "executed_steps is not of the run" in refused(["run", "--resume", str(mine)], capsys)
    assert (mine / "records.jsonl").exists() is records
    (mine / "config.json").write_bytes(whole)
    assert resume(mine)["executed_steps"] == 22


def test_files_of_others_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is no run may hold files of the names that a run would write."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000000001").write_text("precious")
    said = refused(["run", *QUICK, "--out", str(tmp_path)], capsys)
    assert "holds a checkpoints without a config.json" in said
    assert (tmp_path / "checkpoints" / "000000001").read_text() == "precious"
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "records.jsonl").write_text("precious")
    with pytest.raises(BudgetedError, match="holds a records"):
        start(config(**SMALL), tmp_path)
