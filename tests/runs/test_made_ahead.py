"""A run whose samples and batches are made ahead ends as one in which nothing is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from budgeted.learner.learner import Learner
from budgeted.runs.run import resume, start
from tests.runs.small import begun, config, same_end


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every sample, whether the next one was announced with it."""
    found: list[bool] = []
    learn = Learner.learn

    def noted(self: Learner, sample: Any, label: Any, then: Any = None) -> None:
        found.append(then is not None)
        learn(self, sample, label, then)

    monkeypatch.setattr(Learner, "learn", noted)
    return found


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("vanilla", {"stream": "disjoint"}),
        ("cram", {"slots": None, "memory": "330kB", "checkpoint_every": 50}),
        ("er", {"iterations": 0.7}),
        ("rm", {"stream": "disjoint"}),
        ("vanilla", {"compute": "0.1GFLOP"}),
        ("vanilla", {"compute": "0.1GFLOP", "settings": {"learner.on_spent": "stop"}}),
    ],
)
def test_the_same_end(method: str, more: dict[str, Any], tmp_path: Path) -> None:
    chosen = config(method, **{"model": "mlp", "limit": 90, "checkpoint_every": 20, **more})
    ahead = start(chosen, tmp_path / "ahead")
    plain = start(replace(chosen, decode_threads=0), tmp_path / "plain")
    same_end(ahead, plain)
    for name in ("stored", "slots", "budget_spent", "executed_steps", "spent_on"):
        assert ahead[name] == plain[name]
    same_end(ahead, resume(begun(tmp_path / "stopped", chosen, 33)))


def test_nothing_is_announced_across_an_evaluation_a_checkpoint_or_a_fifth(
    tmp_path: Path, announced: list[bool]
) -> None:
    start(config("vanilla", model="mlp", limit=60, eval_every=25, checkpoint_every=10), tmp_path / "run")
    assert [place for place, each in enumerate(announced, 1) if not each] == [
        10,
        12,
        20,
        24,
        25,
        30,
        36,
        40,
        48,
        50,
        60,
    ]


def test_nothing_is_announced_where_nothing_is_made_ahead(tmp_path: Path, announced: list[bool]) -> None:
    start(config("vanilla", model="mlp", limit=30, decode_threads=0), tmp_path / "none")
    stops = {"learner.on_spent": "stop"}
    start(config("vanilla", model="mlp", limit=30, compute="1GFLOP", settings=stops), tmp_path / "stops")
    assert not any(announced)
