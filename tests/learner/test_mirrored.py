"""Predictions from a picture and its mirror image: what they are, where they are made, and in files for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from budgeted.errors import BudgetedError
from budgeted.learner import Learner
from budgeted.learner.handing_on import described, hand_on
from budgeted.methods import METHODS
from budgeted.runs.config import RunConfig
from budgeted.runs.run import start
from tests.bright_rows import FACTS, samples
from tests.learner.small import images, make, settings_of, tiny

FLIPS = replace(FACTS, flips=True)


def learned(mirrored: bool, *, flips: bool = True, method: str = "vanilla") -> Learner:
    settings = settings_of(METHODS[method], mirrored=mirrored)
    learner = make(method, tiny(), FLIPS if flips else FACTS, settings=settings)
    for image, label in samples(24):
        learner.learn(image, label)
    return learner


def test_a_prediction_is_the_mean_of_both_looks() -> None:
    plain, mirrored, asked = learned(False), learned(True), images(9)
    both = (plain.logits(asked) + plain.logits(asked.flip(-1))) / 2
    torch.testing.assert_close(mirrored.logits(asked), both)
    torch.testing.assert_close(mirrored.logits(asked), mirrored.logits(asked.flip(-1)))
    assert not torch.allclose(plain.logits(asked), both)
    assert torch.equal(mirrored.predict(asked), torch.tensor(mirrored.class_labels)[both.argmax(1)])


def test_training_is_the_same() -> None:
    plain, mirrored = learned(False), learned(True)
    for ours, theirs in zip(plain.model.parameters(), mirrored.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert plain.ledger.spent == mirrored.ledger.spent


def test_where_a_mirror_changes_the_label_nothing_is_mirrored() -> None:
    asked = images(9)
    assert torch.equal(learned(True, flips=False).logits(asked), learned(False, flips=False).logits(asked))


@pytest.mark.parametrize("method", ["vanilla", "bic"])
def test_a_program_for_others_looks_twice_too(method: str, tmp_path: Path) -> None:
    learner, asked = learned(True, method=method), images(5)
    learner.before_prediction()
    hand_on(learner, tmp_path / "model.pt2", "torch", "")
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(asked), learner.logits(asked), rtol=1e-4, atol=1e-5)
    assert described(learner, "torch")["mirrored"]
    assert not described(learned(False), "torch")["mirrored"]


def test_an_evaluation_counts_both_looks(tmp_path: Path) -> None:
    for label in ("bright", "dark"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(10):
            shade = Image.new("L", (8, 8), number + 200 * (label == "bright"))
            shade.save(tmp_path / "pictures" / label / f"{number}.png")
    config = RunConfig(
        dataset=f"folder:{tmp_path / 'pictures'}", model="cnn8", slots=20, iterations=1.0, method="vanilla",
    )  # fmt: skip
    once, twice = (
        start(replace(config, settings={"learner.mirrored": mirrored}), tmp_path / mirrored)["eval_compute"]["real"]
        for mirrored in ("false", "true")
    )
    assert twice == 2 * once > 0


def test_what_is_not_classified_has_no_mirror_image() -> None:
    """Asked for it is refused; what is usual with a method is for what it can be for."""
    from examples.next_byte import NextByte, reader, texts

    with pytest.raises(BudgetedError, match=r"learner\.mirrored is for samples that are classified"):
        Learner(tiny(), "vanilla", NextByte(), settings=settings_of(METHODS["vanilla"], mirrored=True))
    learner = Learner(reader(), "cram", NextByte(), memory="200kB")
    samples = texts().train_images[:8]
    for number in range(8):
        learner.learn(samples[number], "text")
    assert learner.settings.learner.optimizer == "muon"
    assert torch.equal(learner.predict(list(samples)), learner.predict(torch.from_numpy(samples)))
