"""Every freezing policy and every retrieval under each method that trains in a way of its own, charged as executed."""

from __future__ import annotations

import dataclasses
from itertools import cycle
from typing import Any

import pytest

from budgeted.freezing.policies import POLICIES
from budgeted.learner import LearnerSettings, Settings
from budgeted.methods import METHODS
from budgeted.replay.retrieval import RETRIEVALS
from tests.bright_rows import FACTS
from tests.methods.small import RealOps, assert_charged_as_executed, feed, learner_of

NAMES = ("x-der", "ccl-dc", "memo", "remind", "sparcl", "trire")
COUNT, TASK = 15, 5
SOON: dict[str, dict[str, Any]] = {
    "adaptive": {"ema": 0.3, "ema_start": "first"},
    "constant": {"n": 1},
    "linear": {"n_max": 2},
    "random": {"n_max": 2},
    "egeria": {"period": 1, "window": 2},
    "ptlf": {"stretch": 4, "probe": 2},
}
"""settings with which a policy freezes within a few steps"""
PAIRS = list(zip(sorted({*POLICIES} - {"none"}), cycle(sorted({*RETRIEVALS} - {"uniform"})), strict=False))


@pytest.mark.parametrize(("freezing", "retrieval"), PAIRS)
@pytest.mark.parametrize("name", NAMES)
def test_other_parts_go_with_it(name: str, freezing: str, retrieval: str) -> None:
    settings = Settings(LearnerSettings(batch_size=8, learning_rate=1e-3), freezing=SOON.get(freezing, {}))
    learner = learner_of(
        METHODS[name]().with_parts(freezing=freezing, retrieval=retrieval),
        "tiny",
        slots=60,
        settings=settings,
        facts=dataclasses.replace(FACTS, samples=COUNT),
    )
    if freezing == "ptlf":  # its decompositions are numpy's, which are charged and which the audit does not see
        with RealOps() as executed:
            feed(learner, 0, COUNT, TASK)
        assert learner.ledger.spent.real > 0.99 * executed.total
    else:
        assert_charged_as_executed(learner, COUNT, task=TASK)
    assert learner.steps > COUNT // 2
    if freezing in ("constant", "linear", "random", "ptlf"):
        assert learner.mean_frozen_share > 0
