"""Labels that are words: learned, predicted, saved and loaded as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from budgeted.errors import BudgetedError
from budgeted.learner import Learner, export, load, save
from budgeted.learner.state import weights_digest
from tests.bright_rows import samples
from tests.learner.small import cnn8, images, make

NAMES = ("newt", "axolotl", "olm", "siren")


def feed(learner: Learner, start: int, end: int, named: bool = True) -> None:
    for number, (image, label) in enumerate(samples(end)):
        if number >= start:
            learner.learn(image, NAMES[label] if named else label)


@pytest.mark.parametrize("name", ["al-sar", "er", "bic"])
def test_words_are_learned_as_numbers_are(name: str) -> None:
    words, numbers = make(name), make(name)
    feed(words, 0, 40)
    feed(numbers, 0, 40, named=False)
    for learner in (words, numbers):
        learner.before_prediction()
    assert words.class_labels == [NAMES[label] for label in numbers.class_labels]
    assert weights_digest(words) == weights_digest(numbers)
    assert words.ledger.spent == numbers.ledger.spent
    assert words.nbytes_by_item() == numbers.nbytes_by_item()
    assert words.predict(images(8)) == [NAMES[label] for label in numbers.predict(images(8)).tolist()]
    assert words.predict(images(8)[:0]) == []
    assert words.rows_of(["axolotl", "toad", np.str_("newt")]) == [1, -1, 0]


def test_words_are_saved_and_loaded(tmp_path: Path) -> None:
    learner = make("al-sar")
    feed(learner, 0, 25)
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", cnn8(seed=5))
    assert again.class_labels == learner.class_labels == list(NAMES)
    for each in (learner, again):
        feed(each, 25, 40)
    assert again.predict(images(8)) == learner.predict(images(8))
    assert weights_digest(again) == weights_digest(learner)
    with pytest.raises(BudgetedError, match="of the kind of the labels before it, such as 'newt', got 2"):
        again.learn(images(1)[0], 2)
    export(again, tmp_path / "model")
    assert '"axolotl"' in (tmp_path / "model.json").read_text()


def test_pairs_of_words_come_back_as_pairs(tmp_path: Path) -> None:
    learner = make("er")
    for number, (image, label) in enumerate(samples(12)):
        learner.learn(image, ("pond", (number % 2, NAMES[label])))
    save(learner, tmp_path / "saved")
    again = load(tmp_path / "saved", cnn8(seed=5))
    assert again.class_labels == learner.class_labels
    assert again.class_labels[0] == ("pond", (0, "newt"))
    again.learn(images(1)[0], ("pond", (0, "newt")))
    assert again.class_labels == learner.class_labels
