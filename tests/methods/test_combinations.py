"""Every freezing policy and every retrieval under each method that trains in a way of its own, charged as executed."""

from __future__ import annotations

import dataclasses
import re
from itertools import cycle
from typing import Any

import pytest

from budgeted.errors import BudgetedError
from budgeted.freezing.policies import POLICIES
from budgeted.learner import LearnerSettings, Settings
from budgeted.methods import METHODS, ccl_dc_over, lider_over
from budgeted.replay.retrieval import RETRIEVALS
from tests.bright_rows import FACTS, samples
from tests.methods.small import RealOps, assert_charged_as_executed, feed, learner_of

OVER = {"lider": lider_over, "ccl-dc": ccl_dc_over}
REFUSED = {"lider": ("lider", "gdumb", "memo", "remind"), "ccl-dc": ("ccl-dc", "gdumb", "remind")}
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


@pytest.mark.parametrize("term", OVER)
@pytest.mark.parametrize("name", METHODS)
def test_a_term_goes_over_a_method_or_says_at_once_why_not(name: str, term: str) -> None:
    if name in REFUSED[term]:
        with pytest.raises(BudgetedError, match=f"'{re.escape(name)}'") as refused:
            OVER[term](METHODS[name])
        assert "\n" not in str(refused.value)
        return
    composed = OVER[term](METHODS[name])
    learner = learner_of(composed, "tiny", facts=dataclasses.replace(FACTS, samples=COUNT))
    feed(learner, 0, COUNT, TASK)
    assert learner.steps >= (1 if term == "ccl-dc" else COUNT // 2)
    assert len(learner.predict([image for image, _ in samples(3)])) == 3
