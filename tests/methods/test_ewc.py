"""EWC: the penalty against autograd of the written formula, the Fisher information against a full backward."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted import streams
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.learner.state import tensors_of
from budgeted.methods import METHODS, Step
from budgeted.methods.ewc import ElasticWeightConsolidation
from budgeted.registry import load
from budgeted.runs.plan import make_plan
from tests.bright_rows import FACTS, SHAPE
from tests.methods import small
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of
from tests.nets import seeded

EWC = METHODS["ewc"]
TASK = 12


def technique_of(learner: Learner) -> ElasticWeightConsolidation:
    assert isinstance(learner.method, ElasticWeightConsolidation)
    return learner.method


def after_a_task(**more: object) -> tuple[Learner, ElasticWeightConsolidation]:
    learner = learner_of(EWC, **more)  # type: ignore[arg-type]
    feed(learner, 0, TASK, TASK)
    return learner, technique_of(learner)


@torch.no_grad()
def shift(learner: Learner, by: float) -> None:
    """Move every weight along one fixed direction."""
    generator = torch.Generator().manual_seed(5)
    for parameter in learner.model.parameters():
        parameter.add_(by * torch.randn(parameter.shape, generator=generator))


def test_the_penalty_is_zero_at_the_anchor_and_quadratic_away_from_it() -> None:
    learner, technique = after_a_task()
    assert technique.penalty() == 0
    values = []
    for _ in range(3):
        shift(learner, 0.01)
        values.append(technique.penalty())
    assert values[0] > 0
    assert values[1] / values[0] == pytest.approx(4, rel=1e-3)
    assert values[2] / values[0] == pytest.approx(9, rel=1e-3)


def test_the_fisher_information_is_not_zero_after_a_task_and_says_so_of_every_layer() -> None:
    _, technique = after_a_task()
    assert technique.anchored
    for name, values in technique.importance.items():
        assert torch.equal(values, technique.fisher[name])
        assert values.min() >= 0
        assert values.max() > 0, name


def test_normalised_the_fisher_information_in_the_penalty_is_scaled_to_one_over_all_weights() -> None:
    """By one factor and one shift for all; the running average is left alone, and the scaling is charged."""
    _, plain = after_a_task()
    learner, technique = after_a_task(own={"normalised": True})
    together = torch.cat([values.flatten() for values in plain.importance.values()])
    low, high = together.min(), together.max()
    for name, values in technique.importance.items():
        torch.testing.assert_close(values, (plain.importance[name] - low) / (high - low))
        assert torch.equal(technique.fisher[name], plain.fisher[name])
    assert max(float(values.max()) for values in technique.importance.values()) == 1
    more = learner.ledger.spent_on["fisher"].real - plain.learner.ledger.spent_on["fisher"].real  # type: ignore[attr-defined]
    assert more >= 4 * together.numel()
    assert_charged_as_executed(learner_of(EWC, own={"normalised": True}), 40, 12)
    shift(learner, 0.01)
    shift(plain.learner, 0.01)  # type: ignore[arg-type]
    assert technique.penalty() > 3 * plain.penalty()


def hand(learner: Learner, step: Step, loss_more: Tensor | float = 0.0) -> dict[str, Tensor]:
    """Gradients by a full backward of the whole loss."""
    names = dict(learner.model.named_parameters())
    with learner.network.aside():
        loss = F.cross_entropy(learner.model(step.inputs), step.labels) + loss_more
    return dict(zip(names, torch.autograd.grad(loss, list(names.values())), strict=True))


def some_step(learner: Learner) -> Step:
    drawn = learner.memory.gather(np.arange(8))
    return Step(4, np.arange(4), learner.inputs_of(drawn.samples), drawn.labels, {})


def test_gradients_are_those_of_the_loss_with_its_penalty() -> None:
    learner, technique = after_a_task(own={"strength": 1e4})
    shift(learner, 0.05)
    step = some_step(learner)
    penalty = sum(
        (technique.strength / 2 * technique.importance[name] * (parameter - technique.anchor[name]) ** 2).sum()
        for name, parameter in learner.model.named_parameters()
    )
    assert technique.penalty() == pytest.approx(float(torch.as_tensor(penalty).detach()), rel=1e-5)
    data, whole = hand(learner, step), hand(learner, step, penalty)
    for name, parameter in learner.model.named_parameters():
        parameter.grad = data[name].clone()
    technique.after_backward(step)
    for name, parameter in learner.model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-4, atol=1e-7)
        assert not torch.allclose(whole[name], data[name], rtol=1e-2)


def test_the_fisher_information_is_the_running_mean_of_squared_gradients_of_the_data_alone() -> None:
    """Against a full backward of the plain loss in every step, also while the penalty pulls."""
    learner = learner_of(EWC, own={"window": 5, "strength": 1e4})
    technique = technique_of(learner)
    squares: list[dict[str, Tensor]] = []
    taken = technique.after_backward

    def noting(step: Step) -> None:
        squares.append({name: g.square() for name, g in hand(learner, step).items()})
        taken(step)

    technique.after_backward = noting  # type: ignore[method-assign]
    feed(learner, 0, 24, TASK)
    assert technique.anchored
    assert len(squares) == learner.steps == 24
    for name, found in technique.fisher.items():
        mean = torch.zeros_like(found)
        for i, square in enumerate(squares):
            padded = torch.zeros_like(found)
            padded[: len(square[name])] = square[name]
            mean += (padded - mean) / min(i + 1, 5)
        torch.testing.assert_close(found, mean, rtol=1e-3, atol=1e-9)


def test_a_strong_penalty_holds_the_weights_and_none_is_plain_replay() -> None:
    moved = {}
    for strength in (0.0, 1e6):
        learner, technique = after_a_task(own={"strength": strength})
        feed(learner, TASK, 3 * TASK)
        moved[strength] = sum(
            float((technique.importance[name] * (parameter.detach() - technique.anchor[name]).square()).sum())
            for name, parameter in learner.model.named_parameters()
        )
        if strength == 0:
            plain = learner_of(METHODS["er"])
            feed(plain, 0, 3 * TASK)
            for mine, other in zip(learner.model.parameters(), plain.model.parameters(), strict=True):
                assert torch.equal(mine, other)
    assert moved[1e6] < 0.5 * moved[0.0]


def test_a_class_that_comes_late_is_free() -> None:
    learner, technique = after_a_task()
    before = {name: kept.clone() for name, kept in technique.importance.items()}
    rows = learner.head.out_features
    feed(learner, TASK, 3 * TASK)
    assert learner.head.out_features > rows
    importance = technique.importance["head.weight"]
    assert importance.shape == learner.head.weight.shape
    assert torch.equal(importance[:rows], before["head.weight"])
    assert not importance[rows:].any()
    learner.end_task()
    assert technique.importance["head.weight"][rows:].any()


def test_frozen_blocks_are_left_alone() -> None:
    learner = learner_of(EWC().with_parts(freezing="constant"), "tiny")
    feed(learner, 0, TASK, TASK)
    frozen = [name for name, values in technique_of(learner).fisher.items() if not values.any()]
    assert frozen
    assert all(learner.model.get_parameter(name).grad is None for name in frozen)


def test_a_step_that_the_scaler_leaves_out_is_not_averaged() -> None:
    learner, technique = after_a_task()
    before = {name: values.clone() for name, values in technique.fisher.items()}
    learner.network.scaler = torch.amp.GradScaler("cpu")
    for parameter in learner.model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    technique.after_backward(some_step(learner))
    assert technique.averaged == learner.steps
    for name, values in technique.fisher.items():
        assert torch.equal(values, before[name])


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_it_charges_what_it_executes(model: str) -> None:
    learner = learner_of(EWC, model)
    assert_charged_as_executed(learner, task=TASK)
    assert learner.last is not None
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    assert learner.last.costs["fisher"].real == 4 * parameters


def test_bytes_are_those_of_what_is_kept() -> None:
    learner, technique = after_a_task()
    feed(learner, TASK, 3 * TASK)  # all declared classes have come
    kept = [tensor for name, tensor in technique.state().items() if "." in name]
    numbers = 2 * 8  # how many steps are averaged, and whether there is an anchor
    assert learner.nbytes_by_item()["method"] == sum(tensor.nbytes for tensor in kept) + numbers
    assert learner.nbytes_by_item()["method"] == learner_of(EWC).nbytes_by_item()["method"]  # reserved


def test_what_is_not_trained_is_not_kept() -> None:
    """A frozen backbone has no Fisher information, and none of its bytes are counted."""
    learner = learner_of(EWC, "tiny")
    whole = learner.nbytes_by_item()["method"]
    model = small.Tiny()
    for parameter in model.stem.parameters():
        parameter.requires_grad_(False)
    rest = Learner(model, EWC, FACTS, slots=12, settings=learner.settings)
    stem = sum(parameter.numel() * 4 for parameter in model.stem.parameters())
    assert rest.nbytes_by_item()["method"] == whole - 3 * stem


def test_undeclared_classes_take_slots_and_are_refused_before_anything_changes() -> None:
    facts = replace(FACTS, classes=None)
    needed = learner_of(EWC, facts=facts, slots=1).nbytes()
    learner = learner_of(EWC, facts=facts, slots=1, budget=Budget(bytes=needed + 100))
    with pytest.raises(BudgetedError, match="do not hold 2 classes and one slot"):
        feed(learner, 0, TASK)
    assert learner.class_labels == [0]
    room = learner_of(EWC, facts=facts, slots=12, budget=Budget(bytes=needed + 12 * 68 + 4 * 4 * 257))
    feed(room, 0, TASK)
    assert room.nbytes() <= needed + 12 * 68 + 4 * 4 * 257


def test_slots_at_the_papers_budget() -> None:
    """The paper says 794, from whole images per model; counted in bytes it is 792."""
    plan = make_plan(
        EWC,
        streams.info("cifar10"),
        "resnet32",
        settings=Settings(),
        budget=Budget(bytes=7_998_016),
        iterations=1.0,
        rule="paper",
        measure=False,
    )
    assert plan.slots == 792


def test_it_resumes_exactly(tmp_path: Path) -> None:
    learner = learner_of(EWC, own={"window": 7})
    assert_resumes_exactly(learner, tmp_path / "saved", at=17, end=34, task=TASK)
    assert "method.anchor.head.weight" in tensors_of(learner)


@pytest.mark.parametrize("own", [{"strength": -1.0}, {"window": 0}])
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        learner_of(EWC, own=own)


def test_layers_that_come_with_a_task_are_free_and_those_that_rest_are_let_go() -> None:
    growing = load(f"{Path(__file__).parents[2]}/examples/growing.py:growing")
    learner = Learner(seeded(lambda: growing(1, SHAPE)), "ewc", FACTS, slots=12)
    feed(learner, 0, 30, task=10)
    trained = learner.network.trained_by_name()
    assert any(name.startswith("branches.3") for name in trained)
    method = learner.method
    assert isinstance(method, ElasticWeightConsolidation)
    for kept in (method.fisher, method.importance, method.anchor):
        assert {name: tensor.shape for name, tensor in kept.items()} == {n: p.shape for n, p in trained.items()}
    assert not any(name.startswith(("branches.0", "branches.1", "branches.2")) for name in method.fisher)
