"""SparCL: masks against a search by hand, gradients against losses written out, samples left out against a recount."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from budgeted import streams
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.methods import METHODS, Step
from budgeted.methods.masks import masked_weights
from budgeted.methods.sparcl import SparseContinualLearning, adjusted
from budgeted.registry import load
from budgeted.runs.plan import make_plan
from budgeted.runs.run import start
from tests.bright_rows import FACTS, SHAPE, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of
from tests.nets import seeded
from tests.runs.small import config

SPARCL = METHODS["sparcl"]
OFTEN = {"refresh": 3, "adjust": 0.1}
STREAM = dataclasses.replace(FACTS, samples=48)


def method_of(learner: Learner) -> SparseContinualLearning:
    assert isinstance(learner.method, SparseContinualLearning)
    return learner.method


def made(model: str = "tiny", **more: object) -> Learner:
    given = {"facts": STREAM, "own": OFTEN, **more}
    return learner_of(SPARCL, model, **given)  # type: ignore[arg-type]


def on(mask: Tensor) -> int:
    return int(mask.sum())


# -- which weights ---------------------------------------------------------------------------------------------


def test_the_first_layer_and_the_head_are_dense_where_there_is_anything_else() -> None:
    assert [*masked_weights(made().network)] == ["body.0.weight", "body.3.weight"]
    assert [*masked_weights(made("mlp").network)] == ["stem.1.weight"]
    assert len(masked_weights(made("cnn8").network)) == 6  # of seven convolutions


def test_an_adjustment_against_a_search_by_hand() -> None:
    """Two of five leave, those with the lowest |w| + importance; two that draws favour come, at 0."""
    weight = torch.tensor([0.9, -0.1, 0.0, 0.3, 0.0, -0.5, 0.2, 0.0])
    active = torch.tensor([1, 1, 0, 1, 0, 1, 1, 0], dtype=torch.bool)
    importance = torch.tensor([0.0, 0.6, 9.0, 0.0, 9.0, 0.1, 0.05, 9.0])  # what is not active has none to show
    draws = torch.tensor([0.5, 0.5, 0.1, 0.95, 0.8, 0.5, 0.2, 0.7])
    scores = {i: abs(float(weight[i])) + float(importance[i]) for i in range(8) if active[i]}
    staying = sorted(scores, key=lambda i: -scores[i])[:3]
    coming = sorted(set(range(8)) - {*staying}, key=lambda i: -float(draws[i]))[:2]
    assert (sorted(staying), sorted(coming)) == ([0, 1, 5], [3, 4])  # one that left may come again, from 0
    before = weight.clone()
    found = adjusted(weight, active, importance, draws, 3, 5)
    assert found.nonzero().flatten().tolist() == sorted([*staying, *coming])
    assert torch.equal(weight[staying], before[staying])
    assert not weight[[i for i in range(8) if i not in staying]].any()


def test_the_trained_weights_are_those_with_the_largest_gradients_of_two_losses_written_out() -> None:
    learner = made()
    feed(learner, 0, 24)
    method = method_of(learner)
    method.steps = 0  # the next step chooses
    seen: list[Step] = []
    weights, buffers = ({}, {})  # type: dict[str, Tensor], dict[str, Tensor]
    taken = method.after_backward

    def noting(step: Step) -> None:
        if not seen:
            weights.update({name: p.detach().clone().requires_grad_() for name, p in learner.model.named_parameters()})
            buffers.update({name: b.clone() for name, b in learner.model.named_buffers()})
        seen.append(step)
        taken(step)
        if len(seen) == 1:
            chosen.update({name: mask.clone() for name, mask in method.trained.items()})
            active.update({name: mask.clone() for name, mask in method.active.items()})

    chosen: dict[str, Tensor] = {}
    active: dict[str, Tensor] = {}
    method.after_backward = noting  # type: ignore[method-assign]
    feed(learner, 24, 28)
    step = seen[0]
    assert step.new == 4
    assert len(step.labels) == 8
    learner.model.train()
    with learner.network.aside():
        of_stream = functional_call(learner.model, {**weights, **buffers}, (step.inputs[:4],))
        others = [row for row in range(of_stream.shape[1]) if row not in step.labels[:4].tolist()]
        assert others  # so that leaving them out is something
        hidden = of_stream.index_fill(1, torch.tensor(others), -1e9)
        stream = torch.autograd.grad(F.cross_entropy(hidden, step.labels[:4]), [*weights.values()])
        of_memory = functional_call(learner.model, {**weights, **buffers}, (step.inputs[4:],))
        memory = torch.autograd.grad(F.cross_entropy(of_memory, step.labels[4:]), [*weights.values()])
    for name, on_stream, on_memory in zip(weights, stream, memory, strict=True):
        if name not in chosen:
            continue
        importance = (0.5 * on_stream.abs() + 1.0 * on_memory.abs()).flatten()
        ranked = [i for i in importance.argsort(descending=True).tolist() if active[name].flatten()[i]]
        wanted = {*ranked[: round(0.2 * importance.numel())]}
        assert {*chosen[name].flatten().nonzero().flatten().tolist()} == wanted


def test_what_is_not_active_is_zero_and_what_is_not_trained_has_no_gradient() -> None:
    learner = made()
    method = method_of(learner)
    before = {name: mask.clone() for name, mask in method.active.items()}
    for end in range(4, 48, 4):
        feed(learner, end - 4, end)
        for name, weight in masked_weights(learner.network).items():
            active, trained = method.active[name], method.trained[name]
            assert on(active) == round(0.25 * weight.numel())
            assert not weight[~active].any()
            assert not (trained & ~active).any()
            assert weight.grad is not None
            assert weight.grad[trained].any() or end < 12  # one class alone has none
            assert not weight.grad[~trained].any()
    assert any(not torch.equal(before[name], mask) for name, mask in method.active.items())


def test_a_task_that_ends_wakes_weights_until_the_next_adjustment() -> None:
    learner = made(own={**OFTEN, "between": 0.05})
    method = method_of(learner)
    feed(learner, 0, 12)
    before = {name: mask.clone() for name, mask in method.active.items()}
    learner.end_task()
    for name, mask in method.active.items():
        assert on(mask) == round(0.3 * mask.numel())
        assert not (before[name] & ~mask).any()
        assert not masked_weights(learner.network)[name][mask & ~before[name]].any()  # they begin at 0
    feed(learner, 12, 16)
    woken = {name: mask & ~before[name] for name, mask in method.active.items()}
    assert any(on(masked_weights(learner.network)[name][mask] != 0) for name, mask in woken.items())
    feed(learner, 16, 24)
    for mask in method.active.values():
        assert on(mask) == round(0.25 * mask.numel())


# -- which samples ---------------------------------------------------------------------------------------------


def test_the_samples_mistaken_least_are_left_out_of_later_steps_and_stored() -> None:
    learner = made("mlp", own={**OFTEN, "passes": 2, "removed": 0.5}, slots=40)
    method = method_of(learner)
    steps: list[tuple[list[int], list[int], list[bool]]] = []
    taken = method.after_step

    def noting(step: Step, logits: Tensor) -> None:
        wrong = (logits[: step.new].argmax(1) != step.labels[: step.new]).tolist()
        steps.append((step.labels[: step.new].tolist(), step.labels[step.new :].tolist(), wrong))
        taken(step, logits)

    method.after_step = noting  # type: ignore[method-assign]
    feed(learner, 0, 40)
    assert len(steps) == 40
    assert len(learner.memory) == 40  # those left out too
    rows = learner.rows_of([label for _, label in samples(40)])
    different = 0
    for group in range(10):
        four = steps[4 * group : 4 * group + 4]
        assert [len(new) for new, _, _ in four] == [4, 4, 2, 2]
        assert {len(replayed) for _, replayed, _ in four} == {min(4, 4 * group)}  # no place is filled up
        arrived = rows[4 * group : 4 * group + 4]
        mistakes = [sum(wrong[i] for _, _, wrong in four[:2]) for i in range(4)]
        hardest = sorted(sorted(range(4), key=lambda i: (-mistakes[i], i))[:2])
        assert four[2][0] == four[3][0] == [arrived[i] for i in hardest]
        different += hardest != [0, 1]
    assert different >= 2


def test_a_smaller_batch_is_charged_less() -> None:
    learner = made(own={"passes": 1, "removed": 0.5, "refresh": 1000})
    costs = []
    taken = learner._record

    def noting(done, spent, most, inputs):  # type: ignore[no-untyped-def]
        costs.append((len(inputs), spent["forward"].paper))
        taken(done, spent, most, inputs)

    learner._record = noting  # type: ignore[method-assign]
    feed(learner, 0, 12)
    assert {batch for batch, _ in costs[4:]} == {8, 6}
    of_eight, of_six = (next(cost for batch, cost in costs[4:] if batch == count) for count in (8, 6))
    assert of_six == pytest.approx(0.75 * of_eight, rel=1e-3)


def test_memory_alone_is_trained_on_if_asked() -> None:
    learner = learner_of(SparseContinualLearning(stream_share=0.0, refresh=3), facts=STREAM)
    feed(learner, 0, 20)
    assert learner.steps == 20


# -- what all methods must pass --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_it_charges_what_it_executes(model: str) -> None:
    assert_charged_as_executed(made(model), task=12)


def test_it_resumes_exactly(tmp_path: Path) -> None:
    """Also what is drawn for several layers, one after the other."""
    assert_resumes_exactly(made("cnn8"), tmp_path / "saved", at=18, end=36, task=12, model="cnn8")


def test_bytes_are_two_masks_and_a_few_numbers() -> None:
    learner = made()
    weights = sum(weight.numel() for weight in masked_weights(learner.network).values())
    assert learner.nbytes_by_item()["method"] == 2 * weights + 4 * 4 + 4 * 8


def test_what_is_not_trained_is_not_masked() -> None:
    model = seeded(lambda: load(f"{Path(__file__).parents[2]}/examples/growing.py:growing")(1, SHAPE))
    learner = Learner(model, SPARCL, STREAM, slots=12, settings=made().settings)
    feed(learner, 0, 36, task=12)
    assert {*method_of(learner).active} == {*masked_weights(learner.network)}
    assert any(name.startswith("branches.3") for name in method_of(learner).active)


@pytest.mark.parametrize(
    "parts", [{"freezing": "adaptive", "retrieval": "sar"}, {"freezing": "ptlf"}, {"retrieval": "mir"}]
)
def test_it_takes_other_parts(parts: dict[str, str]) -> None:
    learner = learner_of(SPARCL().with_parts(**parts), "tiny", facts=STREAM)
    feed(learner, 0, 24, task=12)
    assert learner.steps == 24


def test_a_plan_is_what_a_run_spends(tmp_path: Path) -> None:
    chosen = config("sparcl", model="mlp", iterations=1.0, limit=400, batch_size=16, eval_every=400)
    plan = make_plan(
        SPARCL, streams.info("digits"), "mlp", settings=Settings(), slots=30, samples=400, budget=Budget(),
        iterations=1.0, rule="real", eval_every=400,
    )  # fmt: skip
    assert plan.spent.real == pytest.approx(start(chosen, tmp_path / "run")["spent"]["real"], rel=0.01)


@pytest.mark.parametrize("own", [{"density": 1.0}, {"removed": 1.0}, {"refresh": 0}, {"alpha": -1.0}])
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        made(own=own)
