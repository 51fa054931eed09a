"""Out of a run again: what is exported and what `predict` says is what the run's learner answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from budgeted import models, streams
from budgeted.errors import BudgetedError
from budgeted.learner.saving import export
from budgeted.methods import Method
from budgeted.runs.trained import Trained, trained
from budgeted.streams.orders import first_of_each_class
from tests.cli.small import MEMORY, QUICK
from tests.command_line import Capture, refused, said

DIGITS = streams.load("digits")


@pytest.fixture(scope="module")
def learned(runs: Path) -> Trained:
    return trained(runs / "er-1")


def test_the_trained_learner_is_the_one_that_was_evaluated_last(runs: Path, learned: Trained) -> None:
    """Its accuracy on the run's own test images is the last one on record."""
    record = json.loads((runs / "er-1" / "records.jsonl").read_text().splitlines()[-1])
    correct = np.zeros(10, int)
    chosen = first_of_each_class(DIGITS.test_labels, 50)
    answers = learned.learner.predict(torch.from_numpy(DIGITS.test_images[chosen])).numpy()
    np.add.at(correct, DIGITS.test_labels[chosen], answers == DIGITS.test_labels[chosen])
    assert correct.tolist() == record["correct"]
    assert learned.names == tuple(str(label) for label in learned.learner.class_labels)
    assert learned.finished


def test_weights_and_description_rebuild_the_model(
    runs: Path, learned: Trained, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "model"
    printed = said(["export", str(runs / "er-1"), "--out", str(out)], capsys)
    assert str(out / "model.safetensors") in printed
    told = json.loads((out / "model.json").read_text())
    model = models.build(told["model"], classes=len(told["classes"]), input_shape=tuple(told["input_shape"])).eval()
    model.load_state_dict(load_file(out / told["file"]))
    images = torch.from_numpy(DIGITS.test_images[:20])
    mean, std = (torch.tensor(told[key]).view(1, -1, 1, 1) for key in ("mean", "std"))
    logits = model((images.float() / 255 - mean) / std)
    torch.testing.assert_close(logits, learned.learner.logits(images), rtol=1e-4, atol=1e-5)
    assert [told["labels"][row] for row in logits.argmax(1)] == learned.learner.predict(images).tolist()
    assert "not empty" in refused(["export", str(runs / "er-1"), "--out", str(out)], capsys)


def test_a_program_of_torch_answers_alike_for_any_batch(learned: Trained, tmp_path: Path) -> None:
    file, _ = export(learned.learner, tmp_path / "program", "torch")
    program = torch.export.load(file).module()
    for count in (1, 7):
        images = torch.from_numpy(DIGITS.test_images[:count])
        torch.testing.assert_close(program(images), learned.learner.logits(images), rtol=1e-4, atol=1e-5)


def test_an_onnx_file_answers_alike_for_any_batch(learned: Trained, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    file, _ = export(learned.learner, tmp_path / "onnx", "onnx")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in (1, 7):
        images = DIGITS.test_images[:count]
        (answer,) = session.run(None, {"images": images})
        ours = learned.learner.logits(torch.from_numpy(images))
        torch.testing.assert_close(torch.from_numpy(answer), ours, rtol=1e-3, atol=1e-4)


def test_what_is_more_than_a_model_is_not_handed_on(
    learned: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correction that is no scale and shift by class cannot be written into the file: it is refused."""
    plain = Method.respond
    monkeypatch.setattr(Method, "respond", lambda self, *given: plain(self, *given) ** 2 + 1)
    with pytest.raises(BudgetedError, match="answers otherwise than the learner"):
        export(learned.learner, tmp_path / "model")
    monkeypatch.setattr(Method, "respond", lambda self, *given: 2 * plain(self, *given) + 1)
    export(learned.learner, tmp_path / "model", "torch")
    assert not (tmp_path / "other").exists()


def pictures(folder: Path, count: int) -> list[Path]:
    paths = []
    for number in range(count):
        paths.append(folder / f"{number}.png")
        Image.fromarray(DIGITS.test_images[number, 0]).save(paths[-1])
    return paths


def test_predictions_are_the_learners(runs: Path, learned: Trained, tmp_path: Path, capsys: Capture) -> None:
    paths = pictures(tmp_path, 6)
    run = str(runs / "er-1")
    printed = said(["predict", run, *map(str, paths), "--top", "1"], capsys).splitlines()
    answers = learned.learner.predict(torch.from_numpy(DIGITS.test_images[:6])).tolist()
    assert [line.split(": ")[1].split()[0] for line in printed] == [str(answer) for answer in answers]
    found = json.loads(said(["predict", run, str(tmp_path), "--json"], capsys))
    assert list(found) == [str(path) for path in paths]
    for chances, line in zip(found.values(), printed, strict=True):
        assert sum(chances.values()) == pytest.approx(1, abs=1e-5)
        likeliest = max(chances, key=lambda name: chances[name])
        assert line.split(": ")[1] == f"{likeliest} {100 * chances[likeliest]:.1f} %"


def test_images_of_any_size_and_colour_are_taken(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    Image.new("RGBA", (31, 17), (200, 10, 10, 255)).save(tmp_path / "odd.png")
    (tmp_path / "._odd.png").write_bytes(b"hidden, as macOS leaves it")
    for place in (tmp_path / "odd.png", tmp_path):
        assert "odd.png: " in said(["predict", str(runs / "er-1"), str(place)], capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "RUN"], "name an image"),
        (["predict", "RUN", "nowhere.png"], "there is no image nowhere.png"),
        (["predict", "RUN", "empty"], "holds no images"),
        (["predict", "RUN", "empty", "--top", "0"], "--top must be 1 or more"),
        (["predict", "empty", "text.png"], "no run folder"),
        (["predict", "RUN", "text.png"], "not a whole image"),
        (["export", "empty"], "no run folder"),
    ],
)
def test_mistakes(
    arguments: list[str], says: str, runs: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("text.png").write_text("no image")
    assert says in refused([str(runs / "er-1") if each == "RUN" else each for each in arguments], capsys)


def test_a_run_that_was_killed_early_says_so(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run"
    said(
        ["run", *QUICK, *MEMORY, "--method", "vanilla", "--checkpoint-every", "20", "--out", str(folder), "--json"],
        capsys,
    )
    (folder / "summary.json").unlink()
    assert "of a run that has not ended" in said(["export", str(folder)], capsys)
    for checkpoint in (folder / "checkpoints").iterdir():
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    assert "has no checkpoint yet" in refused(["export", str(folder), "--out", str(tmp_path / "out")], capsys)
