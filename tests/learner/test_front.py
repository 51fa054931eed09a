"""What people write first: names and quantities as text, pictures and words, floats, what a learner says of itself."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from budgeted.budget import Budget, Compute
from budgeted.cli import main
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner, Settings, export, load, save
from budgeted.learner.events import Event, csv_file, log_lines, tensorboard, tracker_of
from budgeted.problems import Augmentation
from budgeted.problems.given import picture
from tests.bright_rows import SHAPE

PLAIN = Settings(augmentation=Augmentation(0, False, 0))


def pictures(count: int, size: tuple[int, int] = (12, 10)) -> list[tuple[Image.Image, str]]:
    """Dark cats and bright dogs."""
    draw = np.random.default_rng(0)
    found = []
    for number in range(count):
        level = 20 if number % 2 else 200
        pixels = draw.integers(level, level + 40, (*size, 3)).astype(np.uint8)
        found.append((Image.fromarray(pixels), "dog" if number % 2 == 0 else "cat"))
    return found


def taught(count: int = 40, **given: Any) -> Learner:
    learner = Learner("mlp", "er", SHAPE, settings=PLAIN, seed=1, **{"slots": 30, **given})
    for image, word in pictures(count):
        learner.learn(image, word)
    learner.flush()
    return learner


def test_pictures_of_any_size_and_words_become_predictions_and_a_file(tmp_path: Path) -> None:
    learner = taught()
    asked = [image for image, _ in pictures(6, size=(30, 20))]
    assert learner.predict(asked) == [word for _, word in pictures(6)]
    chances = learner.predict_proba(asked)
    torch.testing.assert_close(chances, torch.softmax(learner.logits(asked), 1))
    assert [learner.class_labels[row] for row in chances.argmax(1)] == learner.predict(asked)
    runtime = pytest.importorskip("onnxruntime")
    file, facts = export(learner, tmp_path / "pets", "onnx")
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    batch = torch.stack([picture(image, SHAPE) for image in asked])
    torch.testing.assert_close(
        torch.from_numpy(session.run(None, {"images": batch.numpy()})[0]), learner.logits(asked), rtol=1e-3, atol=1e-4
    )
    assert '"dog"' in facts.read_text()


@pytest.mark.parametrize("form", ["chw tensor", "chw array", "hwc array", "picture"])
def test_one_picture_in_every_form_is_the_same_sample(form: str) -> None:
    channels, height, width = SHAPE
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels)).astype(np.uint8)
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    given: Any = {
        "chw tensor": torch.from_numpy(planes),
        "chw array": planes,
        "hwc array": pixels,
        "picture": Image.fromarray(pixels.squeeze(-1) if channels == 1 else pixels),
    }[form]
    learner = Learner("mlp", "er", SHAPE, slots=4)
    assert torch.equal(learner.problem.check(given), torch.from_numpy(planes))  # type: ignore[arg-type]


def test_an_array_of_another_size_is_squeezed_as_a_picture_is() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (21, 33, 3)).astype(np.uint8)
    learner = Learner("mlp", "er", (3, 8, 8), slots=4)
    expected = np.asarray(Image.fromarray(pixels).resize((8, 8), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert torch.equal(learner.problem.check(pixels), torch.from_numpy(expected.copy()))  # type: ignore[arg-type]


def test_a_photograph_is_turned_upright_as_its_exif_says(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[0] = 255
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=turned)
    found = picture(Image.open(tmp_path / "photo.png"), (3, 8, 8))
    assert found[:, 7].min() == 255
    assert found[:, :7].max() == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("cat.png", "open it first"),
        (Path("cat.png"), "open it first"),
        ([[0, 1], [2, 3]], "make it an array"),
        (np.zeros(SHAPE), "0 to 255 as uint8"),
        (Image.new("I;16", (8, 8)), "convert it to 8 bits"),
    ],
)
def test_what_is_no_sample_is_refused_with_what_to_do(given: Any, says: str) -> None:
    with pytest.raises(BudgetedError, match=says):
        Learner("mlp", "er", SHAPE, slots=4).learn(given, "cat")


def test_one_array_where_several_are_wanted_is_no_batch_of_its_rows() -> None:
    learner = taught(8)
    one = np.zeros((12, 10, 3), dtype=np.uint8)
    with pytest.raises(BudgetedError, match="put it in"):
        learner.predict(one)
    assert len(learner.predict([one])) == len(learner.predict(one[None])) == 1


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(BudgetedError, match="holds no saved learner"):
        load(tmp_path / "nowhere")
    with pytest.raises(BudgetedError, match="unknown format 'pickle'"):
        export(taught(8), tmp_path / "model", "pickle")  # type: ignore[arg-type]


def test_floats_of_any_shape_are_learned_as_they_are(tmp_path: Path) -> None:
    """Two clouds of six numbers; what the model is called with is the sample itself."""
    facts = DataFacts((6,), dtype="float32")
    learner = Learner("mlp", "er", facts, slots=50, seed=1)
    draw = np.random.default_rng(0)
    for number in range(120):
        learner.learn(draw.normal(3.0 * (number % 2), 1.0, 6).astype(np.float32), number % 2)
    learner.flush()
    assert learner.predict([np.full(6, 3.0), np.zeros(6)]).tolist() == [1, 0]
    given = torch.randn(4, 6)
    assert torch.equal(learner.problem.inputs(given), given)  # type: ignore[arg-type]
    assert learner.memory.columns[0].dtype == torch.float32
    save(learner, tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved").logits(given), learner.logits(given))
    with pytest.raises(BudgetedError, match="no finite numbers"):
        learner.learn(np.full(6, np.nan), 1)


def test_mean_and_deviation_of_floats_go_by_channel() -> None:
    facts = DataFacts((2, 5), (1.0, 2.0), (0.5, 4.0), dtype="float32")
    learner = Learner("mlp", "er", facts, slots=4)
    given = torch.randn(3, 2, 5)
    expected = (given - torch.tensor([1.0, 2.0])[:, None]) / torch.tensor([0.5, 4.0])[:, None]
    torch.testing.assert_close(learner.problem.inputs(given), expected)


def test_quantities_may_be_text() -> None:
    assert Budget("5TFLOP", "2MB") == Budget(Compute(5 * 10**12, "real"), 2_000_000)
    learner = Learner("mlp", "er", SHAPE, budget="2MFLOP/sample", memory="300kB")
    assert learner.budget == Budget("2MFLOP/sample", 300_000)
    assert learner.nbytes() <= 300_000


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"budget": "2GB"}, "as compute"),
        ({"budget": 5}, "no compute"),
        ({"memory": "2TFLOP"}, "as bytes"),
        ({"memory": -1}, "no number of bytes"),
        ({"memory": 1.5}, "no number of bytes"),
        ({"memory": "300kB", "slots": 5}, "not two of them"),
        ({"data": "cifar"}, "no shape of samples"),
        ({"data": (3, 0, 8)}, "no shape of a sample"),
        ({"model": 7}, "no model"),
        ({"model": "resnet21"}, "resnet20"),
        ({"method": "al-srr"}, "al-sar"),
        ({"device": "gpu"}, "no device of torch"),
        ({"settings": {"learner.learning_rate": 1}}, "settings is a dict: give Settings"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(given: dict[str, Any], says: str) -> None:
    wanted = {"model": "mlp", "method": "er", "data": SHAPE, **given}
    with pytest.raises(BudgetedError, match=says) as refusal:
        Learner(wanted.pop("model"), wanted.pop("method"), wanted.pop("data"), **wanted)
    assert "\n" not in str(refusal.value)


def test_slots_that_no_budget_holds_take_no_room() -> None:
    """A million pictures of 3 x 64 x 64 would be 12 GB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    learner = Learner("mlp", "er", (3, 64, 64), slots=1_000_000, budget=Budget(bytes="16MB"))
    assert learner.nbytes() <= 16_000_000
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 300_000_000


def test_a_learner_says_where_it_stands() -> None:
    learner = taught(iterations=1.0, budget="100GFLOP", slots=None, memory="300kB")
    text = repr(learner)
    for part in ("mlp", "er", "40 samples", "2 classes", "of 100GFLOP", "of 293KiB"):
        assert part in text
    assert "trains no more" not in text


def test_a_budget_is_topped_up_and_training_goes_on() -> None:
    events: list[Event] = []
    learner = taught(budget="1MFLOP", slots=None, memory="300kB", on_event=events.append)
    steps, capacity = learner.steps, learner.memory.capacity
    assert learner.spent_up
    assert [event.kind for event in events if event.kind != "refused"][-1] == "spent"
    with pytest.raises(BudgetedError, match="top it up in FLOP"):
        learner.top_up("1MMAC")
    learner.top_up("1GFLOP", "100kB")
    assert learner.budget == Budget("1001MFLOP", 400_000)
    for image, word in pictures(20):
        learner.learn(image, word)
    assert learner.steps > steps
    assert (learner.memory.capacity or 0) > (capacity or 0)
    assert learner.nbytes() <= 400_000
    assert learner.ledger.spent.real <= 1_001_000_000


def test_topped_up_it_goes_on_as_one_that_had_as_much_from_the_first() -> None:
    """As long as neither was short of it."""
    whole = taught(20, budget="100GFLOP", slots=None, memory="400kB")
    raised = taught(20, budget="50GFLOP", slots=None, memory="300kB")
    raised.top_up("50GFLOP", "100kB")
    assert raised.memory.capacity == whole.memory.capacity
    for learner in (whole, raised):
        for image, word in pictures(20):
            learner.learn(image, word)
    assert torch.equal(whole.logits([pictures(1)[0][0]]), raised.logits([pictures(1)[0][0]]))


def test_events_tell_what_happened_in_its_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    told = tmp_path / "events.csv"
    learner = Learner("mlp", "er", SHAPE, slots=20, budget="8MFLOP", settings=PLAIN, on_event=events.append)
    learner.events.listen(csv_file(told))
    learner.events.listen(lambda event: 1 / 0)
    for image, word in pictures(60):
        learner.learn(image, word)
    with pytest.raises(BudgetedError):
        learner.learn("no picture", "dog")
    kinds = [event.kind for event in events]
    assert kinds == ["new class", "new class", "half spent", "nearly spent", "spent", "refused"]
    shares = {event.kind: event.spent for event in events}
    assert 0.5 <= (shares["half spent"] or 0) < 0.9 <= (shares["nearly spent"] or 0) <= 1
    assert len(told.read_text().splitlines()) == 1 + len(events)
    assert caplog.text.count("a listener to events failed") == 1
    assert "60 samples" in str(events[-1])


def test_events_are_not_told_twice_after_loading(tmp_path: Path) -> None:
    learner = Learner("mlp", "er", SHAPE, slots=20, budget="8MFLOP", settings=PLAIN)
    for image, word in pictures(60):
        learner.learn(image, word)
    save(learner, tmp_path / "saved")
    again, events = load(tmp_path / "saved"), list[Event]()
    again.events.listen(events.append)
    for image, word in pictures(20):
        again.learn(image, word)
    assert events == []


def test_events_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="budgeted"):
        taught(4, on_event=log_lines())
    assert "new class: label dog" in caplog.text


def test_events_become_curves_of_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    learner = taught(4, on_event=tensorboard(tmp_path / "board"), budget="1GFLOP")
    learner.events.tell("evaluation", accuracy=0.75)
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    assert [(point.step, point.value) for point in found.Scalars("evaluation/accuracy")] == [(4, 0.75)]
    assert len(found.Scalars("spent")) == 3


class TrackerModule(ModuleType):
    """What trackio and Weights & Biases have in common, and both talk on the standard output."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begun: list[dict[str, Any]] = []
        self.told: list[tuple[dict[str, Any], int | None]] = []
        self.ended: list[dict[str, Any]] = []

    def init(self, **given: Any) -> TrackerModule:
        print("a new run of mine")
        self.begun.append(given)
        return self

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self.told.append((metrics, step))

    def finish(self, **given: Any) -> None:
        print("where to look at it")
        self.ended.append(given)


def test_events_go_to_a_tracker_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio = TrackerModule("trackio")
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    run = tracker_of("trackio:mine", {"seed": 1})
    assert run is not None
    with run as listener:
        assert trackio.begun == [{"project": "mine", "config": {"seed": 1}}]
        learner = taught(60, on_event=listener, slots=20, budget="8MFLOP")
        learner.events.tell("evaluation", accuracy=0.75)
        learner.events.tell("topped up", compute="1GFLOP", bytes=None)
    assert trackio.ended == [{}]
    numbers = [numbers for numbers, _ in trackio.told]
    assert [told.get("new class/label") for told in numbers[:2]] == ["dog", "cat"]  # words, too
    kinds = ["half spent/steps", "nearly spent/steps", "spent/steps"]  # which have nothing to say but when
    assert [kind for told in numbers for kind in kinds if kind in told] == kinds
    assert (numbers[-2]["evaluation/accuracy"], trackio.told[-2][1]) == (0.75, 60)
    assert set(numbers[-1]) == {"topped up/compute", "spent"}
    assert tracker_of("folder", {}) is None
    for wrong, message in (("trackio:", "name a project"), ("wandb:mine", "pip install wandb")):
        with pytest.raises(BudgetedError, match=message):
            tracker_of(wrong, {})
    said = capsys.readouterr()
    assert said.out == ""  # where our own results go
    assert said.err.splitlines() == ["a new run of mine", "where to look at it"]


def test_a_tracker_knows_that_a_run_failed_and_fails_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = TrackerModule("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = tracker_of("wandb:mine", {})
    assert run is not None
    with pytest.raises(KeyboardInterrupt), run:
        raise KeyboardInterrupt
    assert wandb.ended == [{"exit_code": 1}]

    def refused(**_: Any) -> None:
        raise ValueError("No API key configured.")

    monkeypatch.setattr(wandb, "finish", refused)
    run = tracker_of("wandb:mine", {})
    assert run is not None
    with run:
        pass
    assert "wandb did not end its run" in caplog.text
    monkeypatch.setattr(wandb, "init", refused)
    run = tracker_of("wandb:mine", {})
    assert run is not None
    with pytest.raises(BudgetedError, match=r"wandb begins no run \(ValueError: No API key"), run:
        pass


def test_a_run_tells_a_tracker_its_configuration_also_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio = TrackerModule("trackio")
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    run = ["--method", "er", "--model", "mlp", "--limit", "40", "--eval-every", "20", "--slots", "20"]
    out = str(tmp_path / "run")
    assert main(["run", *run, "--out", out, "--events", "trackio:mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 40
    (tmp_path / "run" / "summary.json").unlink()
    assert main(["run", "--resume", out, "--events", "trackio:mine"]) == 0
    first, second = (begun["config"] for begun in trackio.begun)
    assert first["limit"] == second["limit"] == 40
    assert second["resumed"] == out
    evaluations = [(step, told) for told, step in trackio.told if "evaluation/accuracy" in told]
    # at the ends of tasks there is an accuracy, but until the first periodic one no mean: it is not told as 0
    assert evaluations[0][0] is not None
    assert evaluations[0][0] < 20
    assert "evaluation/a_auc" not in evaluations[0][1]
    assert evaluations[-1][1]["evaluation/a_auc"] > 0
