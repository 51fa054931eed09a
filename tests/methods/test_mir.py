"""MIR: what it draws against a virtual step taken by hand, and that looking leaves no trace."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from budgeted.methods import METHODS, Method, Step
from budgeted.methods.mir import MIR
from tests.bright_rows import samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of, network

COMPOSED: dict[str, Method | type[Method]] = {
    "mir": METHODS["mir"],
    "vanilla": METHODS["vanilla"]().with_parts(retrieval="mir"),
}
RATE = LearnerSettings(batch_size=8, learning_rate=1e-2)
FEW = Settings(RATE, retrieval={"candidates": 15})


def taught(name: str = "mir", model: str = "mlp", count: int = 40, **settings: Any) -> Learner:
    made = replace(FEW, learner=settings.pop("learner", RATE), retrieval={"candidates": 15, **settings})
    learner = learner_of(COMPOSED[name], model, settings=made, slots=48)
    feed(learner, 0, count)
    return learner


def stream_batch() -> tuple[Tensor, Tensor]:
    arrived = [*samples(80)][-4:]
    return torch.stack([image for image, _ in arrived]), torch.tensor([label for _, label in arrived])


def increase_by_hand(
    learner: Learner, incoming: tuple[Tensor, Tensor], slots: npt.NDArray[np.int64], model: str = "mlp"
) -> Tensor:
    """Loss after minus loss before one step of torch's own optimizer, on whole copies of the model and of its state."""
    plain = getattr(learner.retrieval, "settings").virtual == "sgd"  # noqa: B009
    losses = []
    batch = learner.memory.gather(slots)
    images = learner.inputs_of(batch.samples)
    for steps in (0, 1):
        other = network(model)
        other.head = torch.nn.Linear(learner.head.in_features, learner.head.out_features)
        other.load_state_dict(learner.model.state_dict())
        other.train()
        if model != "mlp":  # as the learner's: fused optimizers take moments to lie in memory as the weights do
            other = other.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if steps:
            F.cross_entropy(other(learner.inputs_of(incoming[0])), incoming[1]).backward()
            rate = learner.optimizer.param_groups[0]["lr"]
            kind = torch.optim.SGD if plain else type(learner.optimizer)
            optimizer = kind(other.parameters(), lr=rate)  # type: ignore[call-arg]
            if not plain:
                optimizer.load_state_dict(copy.deepcopy(learner.optimizer.state_dict()))
            optimizer.step()
        with torch.no_grad():
            losses.append(F.cross_entropy(other(images), batch.labels, reduction="none"))
    return losses[1] - losses[0]


@pytest.mark.parametrize(
    ("virtual", "own"),
    [
        ("sgd", {}),
        ("optimizer", {}),
        ("optimizer", {"weight_decay": 0.1}),
        ("optimizer", {"optimizer": "adamw", "weight_decay": 0.1}),
        ("optimizer", {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1}),
    ],
)
def test_draws_the_candidates_whose_loss_rises_most_and_leaves_no_trace(virtual: str, own: dict[str, Any]) -> None:
    """With batch norm: its statistics, the parameters, the gradients and the mode stay as they were."""
    rates = replace(RATE, **own)
    learner, incoming = taught(model="cnn8", count=20, virtual=virtual, reuse=False, learner=rates), stream_batch()
    remembered = copy.deepcopy(learner.optimizer.state_dict())
    # the present rate counts, not the one it began with
    learner.optimizer.param_groups[0]["lr"] = 0.2 if virtual == "sgd" else 0.005
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
    for place, kept in learner.optimizer.state_dict()["state"].items():
        assert all(torch.equal(torch.as_tensor(kept[key]), torch.as_tensor(value))
                   for key, value in remembered["state"][place].items() if value is not None)  # fmt: skip
    assert all(p.grad is g and bool((g == 1).all()) for p, g in zip(learner.model.parameters(), held, strict=True))
    assert not learner.model.training


def test_a_plain_virtual_step_at_adams_rate_foresees_something_else() -> None:
    """Adam's step is many times longer: other samples are hurt by it."""
    chosen = {}
    for virtual in ("optimizer", "sgd"):
        learner = taught(model="cnn8", virtual=virtual, reuse=False)
        learner.retrieval.meet(learner, *stream_batch())
        chosen[virtual] = set(learner.retrieval.draw(learner.memory, 4, np.random.default_rng(3)).tolist())
        if virtual == "optimizer":
            state = learner.model.state_dict()
        else:
            learner.model.load_state_dict(state)
            learner.retrieval.meet(learner, *stream_batch())
            chosen[virtual] = set(learner.retrieval.draw(learner.memory, 4, np.random.default_rng(3)).tolist())
    assert chosen["optimizer"] != chosen["sgd"]


def test_the_gradient_on_what_arrived_is_its_part_of_the_step() -> None:
    """Against gradients of both parts by hand, of the very inputs that were made; what arrived is run once."""
    learner = taught()
    noted: list[Any] = []
    inputs = learner.problem.inputs

    def noting(samples: Any, generator: Any = None) -> Any:
        noted.append(inputs(samples, generator))
        return noted[-1]

    found: dict[str, Tensor] = {}

    def keep(step: Step) -> None:
        found.update({name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None})
        labels.append(step.labels)

    labels: list[Tensor] = []
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    learner.problem.inputs, learner.method.after_backward = noting, keep  # type: ignore[method-assign]
    arrived = [*samples(43)][40:43]
    learner.iterations = 0.0
    for image, label in arrived:
        learner.learn(image, label)
    learner.pace.reset(1)
    learner.learn(*[*samples(44)][43])
    assert [len(each) for each in noted] == [4, 15, 4]  # arrived, candidates, replayed
    rows = torch.tensor([label for _, label in [*samples(44)][40:]])
    other = network("mlp")
    other.head = torch.nn.Linear(learner.head.in_features, learner.head.out_features)
    other.load_state_dict(before)
    (F.cross_entropy(other(noted[0]), rows) + F.cross_entropy(other(noted[2]), labels[0])).backward()
    for name, parameter in other.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_reuse_saves_a_pass_of_what_arrived_and_the_batch_norms_learn_from_it() -> None:
    reused, twice = (taught(model="cnn8", count=24, reuse=reuse) for reuse in (True, False))
    a_pass = twice.network.price(twice.problem.example(4), backward=True).real
    steps = twice.steps - 8  # of the first ones, nothing is to be chosen for
    assert twice.ledger.spent.real - reused.ledger.spent.real == pytest.approx(steps * a_pass, rel=0.1)
    learner, incoming = taught(model="cnn8", count=20), stream_batch()
    counted = [b.clone() for name, b in learner.model.named_buffers() if name.endswith("num_batches_tracked")]
    learner.retrieval.meet(learner, *incoming)
    learner.retrieval.draw(learner.memory, 4, np.random.default_rng(3))
    now = [b for name, b in learner.model.named_buffers() if name.endswith("num_batches_tracked")]
    assert [int(b) for b in now] == [int(b) + 1 for b in counted]


def test_where_the_loss_is_the_methods_own_what_arrived_is_run_with_the_batch() -> None:
    learner = learner_of(METHODS["der++"]().with_parts(retrieval="mir"), settings=FEW, slots=48)
    feed(learner, 0, 30)
    assert not learner.retrieval.ahead()
    assert_charged_as_executed(learner_of(METHODS["der++"]().with_parts(retrieval="mir"), settings=FEW, slots=30))


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
