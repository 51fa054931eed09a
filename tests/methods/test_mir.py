"""MIR: what it draws against a virtual step taken by hand, and that looking leaves no trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.settings import from_pairs
from budgeted.methods import METHODS, Method
from budgeted.methods.mir import MIR
from tests.bright_rows import samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of, network

COMPOSED: dict[str, Method | type[Method]] = {
    "mir": METHODS["mir"],
    "vanilla": METHODS["vanilla"]().with_parts(retrieval="mir"),
}
FEW = Settings(LearnerSettings(batch_size=8, learning_rate=1e-2), retrieval={"candidates": 15})


def taught(name: str = "mir", model: str = "mlp", count: int = 40) -> Learner:
    learner = learner_of(COMPOSED[name], model, settings=FEW, slots=48)
    feed(learner, 0, count)
    return learner


def stream_batch() -> tuple[Tensor, Tensor]:
    arrived = [*samples(80)][-4:]
    return torch.stack([image for image, _ in arrived]), torch.tensor([label for _, label in arrived])


def increase_by_hand(
    learner: Learner, incoming: tuple[Tensor, Tensor], slots: npt.NDArray[np.int64], model: str = "mlp"
) -> Tensor:
    """Loss after minus loss before one step of torch's own SGD, on whole copies of the model."""
    losses = []
    batch = learner.memory.gather(slots)
    images = learner.inputs_of(batch.samples)
    for steps in (0, 1):
        other = network(model)
        other.head = torch.nn.Linear(learner.head.in_features, learner.head.out_features)
        other.load_state_dict(learner.model.state_dict())
        other.train()
        if steps:
            F.cross_entropy(other(learner.inputs_of(incoming[0])), incoming[1]).backward()
            torch.optim.SGD(other.parameters(), lr=learner.optimizer.param_groups[0]["lr"]).step()
        with torch.no_grad():
            losses.append(F.cross_entropy(other(images), batch.labels, reduction="none"))
    return losses[1] - losses[0]


def test_draws_the_candidates_whose_loss_rises_most_and_leaves_no_trace() -> None:
    """With batch norm: its statistics, the parameters, the gradients and the mode stay as they were."""
    learner, incoming = taught(model="cnn8", count=20), stream_batch()
    learner.optimizer.param_groups[0]["lr"] = 0.2  # the present rate counts, not the one it began with
    candidates = np.random.default_rng(3).choice(len(learner.memory), 15, replace=False)
    expected = increase_by_hand(learner, incoming, candidates, "cnn8")
    state = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    held = [torch.ones_like(p) for p in learner.model.parameters()]
    for parameter, gradient in zip(learner.model.parameters(), held, strict=True):
        parameter.grad = gradient
    learner.model.eval()
    learner.retrieval.meet(learner, *incoming)
    drawn = learner.retrieval.draw(learner.memory, 4, np.random.default_rng(3))

    order = expected.argsort(descending=True).numpy()
    assert drawn.tolist() == candidates[order[:4]].tolist()
    assert expected[order[3]] > expected[order[4]] > expected[order[-1]]  # a choice that could have gone wrong
    assert all(torch.equal(state[name], tensor) for name, tensor in learner.model.state_dict().items())
    assert all(p.grad is g and bool((g == 1).all()) for p, g in zip(learner.model.parameters(), held, strict=True))
    assert not learner.model.training


def test_a_memory_that_fits_into_the_batch_is_drawn_whole_and_costs_no_pass() -> None:
    learner = learner_of(METHODS["mir"], settings=FEW)
    feed(learner, 0, 8)  # two stream batches of four: the second one meets four stored samples
    assert learner.last is not None
    assert learner.last.costs["retrieval"].real <= 8
    feed(learner, 8, 12)
    assert learner.last.costs["retrieval"].real > learner.last.costs["forward"].real


def test_without_a_stream_part_the_samples_stored_last_stand_for_it() -> None:
    learner = taught("vanilla")
    learner.retrieval.meet(learner, torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    slots = learner.retrieval.draw(learner.memory, 8, np.random.default_rng(1))
    drawn = learner.memory.gather(slots)
    assert torch.equal(drawn.samples[:4], torch.stack([image for image, _ in [*samples(40)][36:]]))
    candidates = np.random.default_rng(1).choice(np.arange(36), 15, replace=False)
    expected = increase_by_hand(learner, (drawn.samples[:4], drawn.labels[:4]), candidates)
    assert slots[4:].tolist() == candidates[expected.argsort(descending=True)[:4].numpy()].tolist()
    learner.memory.put(int(slots[3]), drawn.samples[0], 0)  # one of them leaves, another has come
    learner.retrieval.meet(learner, torch.empty(0, 1, 8, 8, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    assert learner.retrieval.draw(learner.memory, 4, np.random.default_rng(1)).tolist() == slots[[0, 1, 2, 3]].tolist()


@pytest.mark.parametrize("name", COMPOSED)
def test_everything_it_runs_is_charged(name: str) -> None:
    assert_charged_as_executed(learner_of(COMPOSED[name], settings=FEW, slots=30))


@pytest.mark.parametrize("name", COMPOSED)
def test_resume_is_exact(name: str, tmp_path: Path) -> None:
    """A class appears late, samples wait, slots are given up as it comes."""
    learner = learner_of(COMPOSED[name], settings=FEW, slots=20)
    assert_resumes_exactly(learner, tmp_path / "saved", 18, 32)
    assert learner.settings.retrieval == {"candidates": 15}
    assert learner.head.out_features == 4


def test_bytes_are_those_of_er() -> None:
    assert learner_of(METHODS["mir"]).nbytes_by_item() == learner_of(METHODS["er"]).nbytes_by_item()
    learner = taught("vanilla")
    assert learner.nbytes_by_item()["retrieval"] == 4 * 8 == 8 * len(learner.retrieval._latest)  # type: ignore[attr-defined]


def test_a_compute_budget_holds() -> None:
    whole = taught().ledger.spent.real
    learner = learner_of(METHODS["mir"], settings=FEW, slots=48, budget=Budget(Compute(whole // 2, "real")))
    feed(learner, 0, 40)
    assert learner.spent_up
    assert 0.3 * whole < learner.ledger.spent.real <= whole // 2


@pytest.mark.parametrize(
    "pairs", [{"retrieval.candidates": "0"}, {"retrieval.candidates": "some"}, {"retrieval.candidate": "3"}]
)
def test_bad_settings_are_one_line(pairs: dict[str, str]) -> None:
    with pytest.raises(BudgetedError, match="candidates") as refused:
        learner_of(MIR, settings=from_pairs(pairs, MIR(), flips=False))
    assert "\n" not in str(refused.value)
    assert from_pairs({"retrieval.candidates": "7"}, MIR(), flips=False).retrieval == {"candidates": 7}
    with pytest.raises(BudgetedError, match="defines its own retrieval"):
        METHODS["mir"]().with_parts(retrieval="uniform")
