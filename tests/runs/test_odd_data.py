"""Runs on what a user's own data may be: one class, relative places, pictures that are cropped, classes untested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from budgeted.errors import BudgetedError
from budgeted.learner.events import Event
from budgeted.learner.files import read_json
from budgeted.learner.late import LateLabels
from budgeted.runs.config import RunConfig
from budgeted.runs.run import resume, start
from tests.command_line import Capture, refused, said
from tests.learner.small import make
from tests.runs.small import Stopped, stop_after

SMALL: dict[str, Any] = {"method": "er", "model": "mlp", "slots": 20, "eval_every": 4, "iterations": 1.0}


def folder(place: Path, classes: tuple[str, ...], count: int = 5, size: tuple[int, int] = (16, 16)) -> Path:
    for shade, name in enumerate(classes):
        (place / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", size, (40 * shade, 10 * number, 90)).save(place / name / f"{number}.png")
    return place


def test_one_class_is_learned_to_the_end(tmp_path: Path) -> None:
    summary = start(RunConfig(dataset=f"folder:{folder(tmp_path / 'one', ('cat',), 10)}", **SMALL), tmp_path / "run")
    assert summary["a_last"] == 1.0
    assert summary["klr"] is None


def test_what_was_learned_and_cannot_be_tested_is_said(tmp_path: Path) -> None:
    """Of the class with test images nothing can be read."""
    table = folder(tmp_path / "p", ("cat", "dog"), 6) / "m.csv"
    rows = [f"{name}/{number}.png,{name},train" for name in ("cat", "dog") for number in range(5)]
    table.write_text("\n".join(["path,label,split", *rows, "dog/5.png,dog,test"]))
    for number in range(5):
        (tmp_path / "p" / "dog" / f"{number}.png").write_bytes(b"no picture")
    config = RunConfig(dataset=f"manifest:{table}", stream="arrival", skip_bad=True, size=16, **SMALL)
    with pytest.raises(BudgetedError, match="no class that was learned has test images"):
        start(config, tmp_path / "run")


def test_bad_test_images_are_counted_and_named(tmp_path: Path, capsys: Capture) -> None:
    folder(tmp_path / "p" / "train", ("cat", "dog"))
    for path in sorted(folder(tmp_path / "p" / "test", ("cat", "dog"), 3).glob("*/[01].png")):
        path.write_bytes(b"no picture")
    flags = ["--method", "er", "--model", "mlp", "--slots", "9", "--skip-bad", "--out", str(tmp_path / "run")]
    text = said(["run", "--dataset", f"folder:{tmp_path / 'p'}", "--size", "16", *flags], capsys)
    assert "4 bad test images were left out; the first: " in text
    summary = read_json(tmp_path / "run" / "summary.json")
    assert summary["skipped_test"] == len(summary["skipped_test_first"]) == 4
    assert summary["skipped"] == 0


def test_evaluations_without_test_images_do_not_count_while_it_runs(tmp_path: Path) -> None:
    table = folder(tmp_path / "p", ("cat", "dog"), 6) / "m.csv"
    cats, dogs = ([f"{name}/{number}.png,{name},train" for number in range(5)] for name in ("cat", "dog"))
    table.write_text("\n".join(["path,label,split", *cats, *dogs, "dog/5.png,dog,test"]))
    told: list[float] = []

    def listen(event: Event) -> None:
        if event.kind == "evaluation" and "a_auc" in event.values:
            told.append(event.values["a_auc"])

    config = RunConfig(dataset=f"manifest:{table}", stream="arrival", **{**SMALL, "eval_every": 1})
    summary = start(config, tmp_path / "run", listeners=[listen])
    assert told[-1] == pytest.approx(summary["a_auc"])


def test_it_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where data lie is remembered in full."""
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    config = RunConfig(dataset="digits", data="data", limit=40, **SMALL)
    with pytest.raises(Stopped):
        start(config, tmp_path / "run", stop_after(20))
    monkeypatch.chdir("/")
    resume(tmp_path / "run")
    assert Path(str(resume(tmp_path / "run")["config"]["data"])) == tmp_path / "data"


def test_predictions_crop_as_the_run_did(tmp_path: Path, capsys: Capture) -> None:
    """The middle has the colour of the class, the sides that of the other one."""
    for name, middle, sides in (("red", (250, 0, 0), (0, 0, 250)), ("blue", (0, 0, 250), (250, 0, 0))):
        (tmp_path / "p" / name).mkdir(parents=True)
        for number in range(8):
            picture = Image.new("RGB", (64, 16), sides)
            picture.paste(middle, (24, 0, 40, 16))
            picture.save(tmp_path / "p" / name / f"{number}.png")
    more = {**SMALL, "iterations": 4.0}
    config = RunConfig(dataset=f"folder:{tmp_path / 'p'}", size=8, resize="crop", **more)
    assert start(config, tmp_path / "run")["a_last"] == 1.0
    for name in ("red", "blue"):
        path = str(tmp_path / "p" / name / "0.png")
        assert f"0.png: {name} " in said(["predict", str(tmp_path / "run"), path], capsys)


@pytest.mark.parametrize("limit", [1e5, None, True])
def test_late_labels_want_bytes_and_leave_nothing_behind(limit: Any) -> None:
    learner = make("er")
    with pytest.raises(BudgetedError, match="as a whole number"):
        LateLabels(learner, limit)
    assert not learner.reserved
    LateLabels(learner, 10_000)


def test_a_picture_of_the_users_is_not_drawn_over(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "photos", ("cat", "dog"))
    for _ in range(2):  # one of ours is
        said(["data", "info", "folder:photos"], capsys)
    Image.new("RGB", (9, 9)).save("photos.png")
    before = Path("photos.png").read_bytes()
    assert "--picture" in refused(["data", "info", "folder:photos"], capsys)
    assert Path("photos.png").read_bytes() == before


def test_a_look_says_that_pictures_are_no_squares(tmp_path: Path, capsys: Capture) -> None:
    place = folder(tmp_path / "photos", ("cat", "dog"), size=(20, 10))
    assert "no squares" in said(["data", "check", f"folder:{place}"], capsys)
    assert "--size must be 1 or more" in refused(["data", "check", f"folder:{place}", "--size", "0"], capsys)
