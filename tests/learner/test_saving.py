from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from budgeted import models
from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import DataFacts, Learner, export, load, save
from budgeted.learner.state import weights_digest
from budgeted.methods import METHODS

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
    with pytest.raises(BudgetedError, match="cannot read the checkpoint"):
        load(tmp_path / "nowhere", models.build("cnn8", input_shape=(1, 8, 8)))
