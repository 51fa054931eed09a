"""What an unknown name is answered with."""

from __future__ import annotations

import pytest

from budgeted.errors import UnknownName, nearest

KNOWN = ("al-sar", "cifar10", "cifar100", "cnn8", "resnet18", "resnet32", "resnet56", "vit-b")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("resnt32", "resnet32"), ("resnet23", "resnet32"), ("ResNet32", "resnet32"), ("cifar", "cifar10"),
     ("al-sra", "al-sar"), ("resnet99", None), ("resnet50", None), ("cnn16", None), ("something", None)],
)  # fmt: skip
def test_the_nearest_name_and_no_other_number(given: str, meant: str | None) -> None:
    assert nearest(given, KNOWN) == meant
    said = str(UnknownName("model", given, KNOWN))
    assert (f"did you mean {meant!r}?" in said) == (meant is not None)
    assert ("none is near it" in said) == (meant is None)
    assert "\n" not in said


def test_names_that_begin_alike_are_listed_first_and_a_long_list_is_cut() -> None:
    many = [f"a{number}" for number in range(30)] + ["resnet18", "resnet32"]
    said = str(UnknownName("model", "resnet99", many))
    assert "known are resnet18, resnet32, a0" in said
    assert said.endswith("and 20 more")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("lr", "learner.learning_rate"), ("learner.lr", "learner.learning_rate"), ("momentum", "learner.momentum"),
     ("learning-rate", "learner.learning_rate"), ("learner.momentun", "learner.momentum"), ("k", None)],
)  # fmt: skip
def test_the_last_part_of_a_setting_is_enough(given: str, meant: str | None) -> None:
    assert nearest(given, ["learner.learning_rate", "learner.momentum", "learner.norms", "retrieval.ema"]) == meant


@pytest.mark.parametrize("path", ["./pictures", "~/pictures", "data/flowers.npz", "flowers.npz"])
def test_a_path_that_is_not_there_is_called_a_path(path: str) -> None:
    said = str(UnknownName("data set", path, KNOWN))
    assert said.startswith(f"there is no file or folder {path}: check the path")
