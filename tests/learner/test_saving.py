from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from budgeted import models
from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner, export, load, save
from budgeted.learner.files import sealed
from budgeted.learner.saving import _only_writer
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS
from budgeted.methods.er import ER

FACTS = DataFacts((1, 8, 8), (0.3,), (0.4,), classes=4, samples=80)


def learner(name: str, **more: object) -> Learner:
    model = models.build("cnn8", classes=1, input_shape=(1, 8, 8), seed=3)
    return Learner(model, METHODS[name], FACTS, slots=20, seed=3, **more)  # type: ignore[arg-type]


def feed(taught: Learner, start: int, end: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (end, 1, 8, 8), generator=generator, dtype=torch.uint8)
    for i in range(start, end):
        taught.learn(images[i], (i // 5) % 4)


@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_learner_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    room = max(10**6, learner(name).nbytes())  # EWC keeps the model four times
    taught = learner(name, iterations=1.0, budget=Budget(Compute(10**13, "real"), room))
    feed(taught, 0, 37)
    save(taught, tmp_path / "saved")
    save(taught, tmp_path / "saved")  # replaces the earlier one
    again = load(tmp_path / "saved", models.build("cnn8", classes=1, input_shape=(1, 8, 8), seed=9))
    for each in (taught, again):
        feed(each, 37, 60)
    assert weights_digest(again) == weights_digest(taught)
    assert again.ledger.spent == taught.ledger.spent
    assert again.steps == taught.steps
    assert again.nbytes_by_item() == taught.nbytes_by_item()


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("er", {"stream_share": 0.25, "retrieval": "class-balanced"}),
        ("sparcl", {"density": 0.5}),
        ("lider-der++", {"alpha": 0.9, "target_weight": 2.0, "target_steps": 5}),
    ],
)
def test_what_a_method_was_made_with_comes_back(name: str, own: dict[str, Any], tmp_path: Path) -> None:
    method = METHODS[name](**own)
    model = models.build("cnn8", classes=1, input_shape=(1, 8, 8), seed=3)
    taught = Learner(model, method, FACTS, slots=20, seed=3)
    feed(taught, 0, 21)
    save(taught, tmp_path / "saved")
    again = load(tmp_path / "saved", models.build("cnn8", classes=1, input_shape=(1, 8, 8), seed=9))
    for item in dataclasses.fields(method):
        if item.init:
            assert getattr(again.method, item.name) == getattr(method, item.name), item.name
    for each in (taught, again):
        feed(each, 21, 40)
    assert weights_digest(again) == weights_digest(taught)


def test_a_method_whose_setting_no_file_can_hold_is_asked_for(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Given(ER):
        """with a setting that is an object"""

        wish: object = None

    Given.name = "er"
    model = models.build("cnn8", classes=1, input_shape=(1, 8, 8), seed=3)
    save(Learner(model, Given(wish=Path("here")), FACTS, slots=20), tmp_path / "saved")
    with pytest.raises(BudgetedError, match="give it as own_method"):
        load(tmp_path / "saved", model)
    assert load(tmp_path / "saved", model, Given(wish=Path("here"))).method.name == "er"


def test_export_holds_the_weights_and_the_classes(tmp_path: Path) -> None:
    taught = learner("er")
    feed(taught, 0, 30)
    export(taught, tmp_path / "model")
    facts = json.loads((tmp_path / "model.json").read_text())
    assert facts["classes"] == taught.class_labels
    fresh = models.build("cnn8", classes=len(facts["classes"]), input_shape=(1, 8, 8), seed=5)
    fresh.load_state_dict(load_file(tmp_path / "model.safetensors"))
    images = torch.randint(0, 256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    with torch.no_grad():
        logits = fresh.eval()((images.float() / 255 - 0.3) / 0.4)
    torch.testing.assert_close(logits, taught.logits(images), rtol=1e-4, atol=1e-5)


def test_a_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(BudgetedError, match="something else"):
        save(learner("er"), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(BudgetedError, match="holds no saved learner"):
        load(tmp_path / "nowhere", models.build("cnn8", input_shape=(1, 8, 8)))


def small(samples: int = 6) -> Learner:
    taught = Learner(models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=3), "er", FACTS, slots=8, seed=3)
    feed(taught, 0, samples)
    return taught


def loaded(folder: Path) -> Learner:
    return load(folder, models.build("mlp", classes=1, input_shape=(1, 8, 8), seed=9))


def test_a_file_of_the_same_name_makes_no_folder_ours(tmp_path: Path) -> None:
    """What else was in such a folder used to be deleted with it."""
    for content in ('{"a game": "saved"}', "no JSON", "[]"):
        (tmp_path / "state.json").write_text(content)
        (tmp_path / "thesis.txt").write_text("precious")
        with pytest.raises(BudgetedError, match="choose another folder"):
            save(small(), tmp_path)
        assert (tmp_path / "state.json").read_text() == content
        assert {path.name for path in tmp_path.iterdir()} == {"state.json", "thesis.txt"}


def test_files_of_others_beside_a_save_stay(tmp_path: Path) -> None:
    save(small(), tmp_path / "saved")
    (tmp_path / "saved" / "notes.txt").write_text("precious")
    save(small(8), tmp_path / "saved")
    assert (tmp_path / "saved" / "notes.txt").read_text() == "precious"
    assert len(list((tmp_path / "saved").iterdir())) == 3
    assert loaded(tmp_path / "saved").arrived == 8


def test_a_save_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    for samples in (6, 8):
        save(small(samples), tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert loaded(tmp_path / "there").arrived == samples
    (tmp_path / "nowhere").symlink_to("not there")
    with pytest.raises(BudgetedError, match="nowhere"):
        save(small(), tmp_path / "nowhere")


@pytest.mark.parametrize("cut_off", ["tensors", "numbers", "clearing"])
def test_an_earlier_save_counts_until_the_new_one_is_whole(
    cut_off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    save(small(), folder)

    class Cut(BaseException):
        pass

    def cut(*_: object) -> None:
        raise Cut

    place = {"tensors": "state.save_file", "numbers": "state.replace_file", "clearing": "saving.remove"}[cut_off]
    with monkeypatch.context() as then:
        then.setattr(f"budgeted.learner.{place}", cut)
        with pytest.raises(Cut):
            save(small(8), folder)
    assert loaded(folder).arrived == (8 if cut_off == "clearing" else 6)
    save(small(10), folder)
    assert loaded(folder).arrived == 10
    assert len(list(folder.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


def test_a_save_of_an_earlier_layout_is_replaced(tmp_path: Path) -> None:
    save(small(), tmp_path)
    numbers = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / numbers.pop("tensors_file")).rename(tmp_path / "tensors.safetensors")
    (tmp_path / "state.json").write_text(json.dumps({**numbers, "format": 2}))
    save(small(8), tmp_path)
    assert not (tmp_path / "tensors.safetensors").exists()
    assert loaded(tmp_path).arrived == 8


def test_numbers_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "thesis").write_text("precious")
    save(small(), tmp_path / "saved")
    numbers = json.loads((tmp_path / "saved" / "state.json").read_text())
    bad = sealed({**numbers, "tensors_file": "../thesis"}, "numbers_sha256")
    (tmp_path / "saved" / "state.json").write_text(json.dumps(bad))
    with pytest.raises(BudgetedError, match="none of ours"):
        loaded(tmp_path / "saved")
    save(small(), tmp_path / "saved")
    assert (tmp_path / "thesis").read_text() == "precious"


def test_two_saves_at_once_are_one_save(tmp_path: Path) -> None:
    tmp_path.joinpath("saved").mkdir()
    with _only_writer(tmp_path / "saved"), pytest.raises(BudgetedError, match="another save"):
        save(small(), tmp_path / "saved")
    save(small(), tmp_path / "saved")


def test_names_with_dots_are_exported_side_by_side(tmp_path: Path) -> None:
    export(small(), tmp_path / "model.v1.2")
    export(small(8), tmp_path / "model.v1.3")
    export(small(), tmp_path / "other.safetensors")
    names = ("model.v1.2", "model.v1.3", "other")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{suffix}" for name in names for suffix in ("json", "safetensors")
    }
    export(small(10), tmp_path / "model.v1.2")  # an export of ours is replaced


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_files_of_others_are_not_exported_over(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"model.{suffix}").write_text('{"name": "my package"}')
    with pytest.raises(BudgetedError, match="is no model that was exported"):
        export(small(), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [f"model.{suffix}"]
    assert (tmp_path / f"model.{suffix}").read_text() == '{"name": "my package"}'


def test_what_was_saved_on_a_device_that_is_not_here_can_be_loaded_elsewhere(tmp_path: Path) -> None:
    save(small(), tmp_path)
    numbers = json.loads((tmp_path / "state.json").read_text())
    numbers["learner"]["device"] = "cuda:7"
    (tmp_path / "state.json").write_text(json.dumps(sealed(numbers, "numbers_sha256")))
    with pytest.raises(BudgetedError, match="device='cpu'"):
        loaded(tmp_path)
    again = load(tmp_path, models.build("mlp", classes=1, input_shape=(1, 8, 8)), device="cpu")
    assert weights_digest(again) == weights_digest(small())


def test_what_a_library_writes_beside_its_file_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors writes under a name of its own and renames: a kill in between leaves that file."""
    folder = tmp_path / "saved"
    save(small(), folder)
    whole = sorted(path.name for path in folder.iterdir())

    def killed(tensors: object, path: Path, *more: object) -> None:
        (Path(path).parent / ".tmpX1y2Z3").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("budgeted.learner.state.save_file", killed)
    monkeypatch.setattr("budgeted.learner.state.shutil.rmtree", lambda *given, **more: None)  # as if killed by -9
    monkeypatch.setattr("budgeted.learner.files.shutil.rmtree", lambda *given, **more: None)
    with pytest.raises(KeyboardInterrupt):
        save(small(), folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*whole, ".tensors.part"])
    monkeypatch.undo()
    save(small(), folder)
    assert sorted(path.name for path in folder.iterdir()) == whole
    monkeypatch.setattr("budgeted.learner.handing_on.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        export(small(), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
