"""TriRE: gradients of the two halves against losses written out, a task's part against a search by hand, the phases."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from budgeted import streams
from budgeted.budget import Budget
from budgeted.budget.trace import tracing
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.methods import METHODS, Step
from budgeted.methods.masks import masked_weights
from budgeted.methods.task_part import extracted
from budgeted.methods.trire import RETAIN, REVISE, REWIND, TriRE
from budgeted.registry import load
from budgeted.runs.plan import make_plan
from budgeted.runs.run import start
from tests.bright_rows import FACTS, SHAPE
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of
from tests.nets import seeded
from tests.runs.small import config

TRIRE = METHODS["trire"]
STREAM = dataclasses.replace(FACTS, samples=100)  # tasks of twenty: 12 retain, 4 revise, 4 rewind
TASK = 20


def method_of(learner: Learner) -> TriRE:
    assert isinstance(learner.method, TriRE)
    return learner.method


def made(model: str = "tiny", **more: Any) -> Learner:
    return learner_of(TRIRE, model, **{"facts": STREAM, **more})


def copies(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in kept.items()}


def weights_of(learner: Learner) -> dict[str, Tensor]:
    return copies(dict(masked_weights(learner.network)))


# -- a task's part ---------------------------------------------------------------------------------------------


def test_a_tasks_part_against_a_search_by_hand() -> None:
    """Five channels of two weights, two of which are taken, and three of their four weights."""
    weight = torch.tensor([[0.1, 0.2], [0.9, 0.8], [0.3, 0.1], [0.5, 0.5], [0.7, 0.6]])
    gradient = torch.tensor([[0.0, 0.0], [0.0, 0.0], [-0.5, 0.0], [0.0, 0.2], [0.0, 0.0]])
    wins = torch.tensor([1.0, 0.0, 7.0, 9.0, 8.0])  # channels 3 and 4, if none were dropped
    past = torch.tensor([0.0, 0.0, 0.0, 2.0, 4.0])
    draws = torch.tensor([0.99, 0.99, 0.99, 0.5, 0.5])
    stays = [draws[i] < torch.exp(-past[i] / 4) for i in range(5)]
    assert stays == [True, True, True, True, False]  # exp(-1/2) = 0.61, exp(-1) = 0.37
    found = extracted(weight, gradient, wins, past, draws, 2, 3, 1.0)
    # of channels 2 and 3: 0.8, 0.1, 0.5, 0.7
    assert found.nonzero().tolist() == [[2, 0], [3, 0], [3, 1]]
    assert extracted(weight, gradient, wins, past, draws, 2, 3, 0.0).nonzero().tolist() == [[3, 1], [4, 0], [4, 1]]


def test_wins_are_those_of_the_most_active_channels_of_every_replayed_sample() -> None:
    learner = made(own={"winners": 0.25})
    method = method_of(learner)
    expected = {path: torch.zeros_like(wins) for path, wins in method.wins.items()}
    outputs: dict[str, Tensor] = {}
    for path in expected:
        learner.model.get_submodule(path).register_forward_hook(
            lambda module, given, output, path=path: (
                outputs.__setitem__(path, output.detach())
                if learner.network.freezing.listening and torch.is_grad_enabled() and not tracing()
                else None
            )
        )
    taken = method.after_step

    def noting(step: Step, logits: Tensor) -> None:
        for path, feature in outputs.items():
            for sample in feature:
                highest = sorted(range(len(sample)), key=lambda channel: -float(sample[channel].max()))
                expected[path][highest[: len(sample) // 4]] += 1
        taken(step, logits)

    method.after_step = noting  # type: ignore[method-assign]
    feed(learner, 0, 8)  # all of it retain
    for path, wins in expected.items():
        assert torch.equal(method.wins[path], wins)
        assert wins.any()


def hold_in(method: TriRE, phase: int) -> None:
    """In a phase that does not end, half of all weights in S and half in the task's part."""
    generator = torch.Generator().manual_seed(phase)
    for kept in (method.shared, method.task):
        for mask in kept.values():
            mask.copy_(torch.rand(mask.shape, generator=generator) < 0.5)
    method.phase, method.began, method.length = phase, 16, 1e9


# -- which half moves which weights ----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [RETAIN, REVISE, REWIND])
def test_every_weight_gets_the_gradient_of_its_half(phase: int) -> None:
    """Against both losses written out and differentiated one by one."""
    learner = made()
    feed(learner, 0, 16)
    method = method_of(learner)
    hold_in(method, phase)
    seen: list[tuple[dict[str, Tensor], dict[str, Tensor], Any, Step]] = []
    taken = method.after_backward

    def noting(step: Step) -> None:
        parameters = copies(dict(learner.model.named_parameters()))
        seen.append((parameters, copies(dict(learner.model.named_buffers())), method._apart, step))
        taken(step)
        found.append({name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None})

    found: list[dict[str, Tensor]] = []
    method.after_backward = noting  # type: ignore[method-assign]
    slow = copies(method.ema)
    feed(learner, 16, 20)
    parameters, buffers, apart, step = seen[0]
    assert apart is not None
    assert (step.new, len(step.labels), len(apart[1])) == (0, 4, 4)
    leaves = {name: tensor.requires_grad_() for name, tensor in parameters.items()}
    with learner.network.aside():
        learner.model.train()
        on_stream = functional_call(learner.model, {**leaves, **copies(buffers)}, (apart[0],))
        replayed = functional_call(learner.model, {**leaves, **copies(buffers)}, (step.inputs,))
        learner.model.eval()
        stable = functional_call(learner.model, slow, (step.inputs,)).detach()
    stream = torch.autograd.grad(F.cross_entropy(on_stream, apart[1]), [*leaves.values()])
    loss = F.cross_entropy(replayed, step.labels) + 0.2 * (replayed - stable).square().mean()
    memory = torch.autograd.grad(loss, [*leaves.values()])
    for name, of_stream, of_memory in zip(leaves, stream, memory, strict=True):
        wanted = of_stream + of_memory
        if name in method.shared:
            held, own = method.shared[name], method.task[name]
            free = {RETAIN: ~held, REVISE: own & ~held, REWIND: ~held}[phase]
            wanted = torch.where(free, of_stream, 0.0) + torch.where(held & (phase != REWIND), of_memory, 0.0)
        torch.testing.assert_close(found[0][name], wanted, rtol=1e-3, atol=1e-6)
        assert wanted.any()


@pytest.mark.parametrize("phase", [RETAIN, REVISE, REWIND])
def test_where_batches_are_of_the_memory_alone_it_is_the_stream_to_what_is_free(phase: int) -> None:
    learner = made(own={"stream_share": 0.0})
    feed(learner, 0, 16)
    method = method_of(learner)
    hold_in(method, phase)
    before: list[dict[str, Tensor]] = []
    behind: list[dict[str, Tensor]] = []
    taken = method.after_backward

    def noting(step: Step) -> None:
        assert (step.new, method._apart) == (0, None)
        for found, do in ((before, None), (behind, taken)):
            if do is not None:
                do(step)
            found.append({name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None})

    method.after_backward = noting  # type: ignore[method-assign]
    feed(learner, 16, 17)
    for name, gradient in before[0].items():
        wanted = gradient
        if name in method.shared:
            held, own = method.shared[name], method.task[name]
            moves = {RETAIN: held | ~held, REVISE: held | own, REWIND: ~held}[phase]
            wanted = torch.where(moves, gradient, 0.0)
            assert gradient[held].any()
        assert torch.equal(behind[0][name], wanted)


def test_running_statistics_learn_from_both_halves() -> None:
    learner = made("tiny")
    feed(learner, 0, 16)
    method = method_of(learner)
    norm = next(module for module in learner.model.modules() if isinstance(module, nn.BatchNorm2d))
    seen: list[Tensor] = []
    norm.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach()) if module.training else None)
    mean, steps = norm.running_mean, learner.steps
    assert mean is not None
    expected = mean.clone()
    feed(learner, 16, 20)
    assert len(seen) == 2 * (learner.steps - steps) > 0
    for given in seen:
        expected = 0.9 * expected + 0.1 * given.mean((0, 2, 3))
    torch.testing.assert_close(mean, expected)
    assert method.stream_share == 0.5


# -- the phases ------------------------------------------------------------------------------------------------


def test_a_task_goes_through_its_phases() -> None:
    learner = made()
    method = method_of(learner)
    rate = learner.optimizer.param_groups[0]["lr"]
    moments: dict[int, list[dict[str, Tensor]]] = {}  # weights before and behind the change to a phase
    taken = method._go_on

    def noting(passed: float) -> None:
        before, weights = method.phase, weights_of(learner)
        taken(passed)
        if method.phase != before:
            moments[method.phase] = [weights, weights_of(learner)]

    method._go_on = noting  # type: ignore[method-assign]
    feed(learner, 0, 8)
    assert (method.phase, method.noted) == (RETAIN, False)
    feed(learner, 8, 12)  # 12 of 20: late retain is noted and its end reached
    assert (method.phase, method.noted) == (REVISE, True)
    assert learner.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * rate)
    for name, weight in masked_weights(learner.network).items():
        channels = round(0.3 * len(weight))
        assert int(method.task[name].sum()) == round(0.2 * channels * weight[0].numel())
        assert int(method.task[name].flatten(1).any(1).sum()) <= channels
        assert not method.shared[name].any()
        assert torch.equal(method.earlier[name], moments[REVISE][0][name])  # noted in the same step, behind it
        assert torch.equal(moments[REVISE][0][name], moments[REVISE][1][name])
    noted, task = copies(method.earlier), copies(method.task)
    feed(learner, 12, 16)
    assert method.phase == REWIND
    assert learner.optimizer.param_groups[0]["lr"] == rate
    before, behind = moments[REWIND]
    for name, shared in method.shared.items():
        assert torch.equal(shared, task[name])
        assert torch.equal(behind[name], torch.where(shared, before[name], noted[name]))
        assert not torch.equal(before[name], behind[name])  # the others had moved
        assert not torch.equal(before[name], noted[name])  # and so had the task's own, which stayed
    feed(learner, 16, 20, TASK)
    assert (method.phase, method.noted, method.began) == (RETAIN, False, 20)
    assert all(past.any() for past in method.past.values())
    assert not any(wins.any() for wins in method.wins.values())


def test_the_last_task_is_not_rewound_and_parts_add_up() -> None:
    learner = made()
    method = method_of(learner)
    parts = []
    for end in range(TASK, 100, TASK):
        feed(learner, end - TASK, end, TASK)
        parts.append(copies(method.task))
    feed(learner, 80, 100)
    assert method.phase == REVISE
    for name, shared in method.shared.items():
        together = torch.stack([part[name] for part in parts]).any(0)
        assert torch.equal(shared, together)
        assert int(shared.sum()) > int(parts[0][name].sum())


def test_a_task_that_ends_early_is_retained_all_the_same() -> None:
    learner = made()
    feed(learner, 0, 8, 8)
    method = method_of(learner)
    assert (method.phase, method.began) == (RETAIN, 8)
    assert all(shared.any() for shared in method.shared.values())


def test_without_a_length_a_task_is_as_long_as_the_last() -> None:
    learner = made(facts=FACTS)
    method = method_of(learner)
    feed(learner, 0, TASK - 1)
    assert (method.phase, method.length) == (RETAIN, 0)
    feed(learner, TASK - 1, TASK, TASK)
    assert method.length == TASK
    feed(learner, TASK, TASK + 12)
    assert method.phase == REVISE


def test_the_slow_model_is_a_moving_average() -> None:
    learner = made(own={"ema_share": 1.0, "momentum": 0.75}, facts=FACTS)
    method = method_of(learner)
    feed(learner, 0, 16)
    expected = copies(method.ema)
    taken = method.after_step

    def noting(step: Step, logits: Tensor) -> None:
        for name, p in learner.model.named_parameters():
            expected[name] = 0.75 * expected[name] + 0.25 * p.detach()
        taken(step, logits)

    method.after_step = noting  # type: ignore[method-assign]
    rows = learner.head.out_features
    feed(learner, 16, 20)
    assert learner.head.out_features == rows
    for name, p in learner.model.named_parameters():
        torch.testing.assert_close(method.ema[name], expected[name])
        assert not torch.equal(method.ema[name], p)


def test_at_first_the_slow_model_is_the_mean_of_all_that_moved_it() -> None:
    """However few of the steps do: the weights that the network began with soon count for little."""
    learner = made(own={"ema_share": 0.3})
    method = method_of(learner)
    name, head = "head.bias", learner.head.out_features
    found: list[Tensor] = []
    taken = method.after_step

    def noting(step: Step, logits: Tensor) -> None:
        before, moves = method.ema[name].clone(), method.moves
        taken(step, logits)
        if method.moves > moves:
            assert learner.head.bias is not None
            share = 1 / (moves + 2)
            torch.testing.assert_close(method.ema[name], (1 - share) * before + share * learner.head.bias.detach())
            found.append(before)

    method.after_step = noting  # type: ignore[method-assign]
    feed(learner, 0, 40)
    assert learner.head.out_features > head
    assert 3 < len(found) == method.moves < 0.6 * learner.steps


# -- what all methods must pass --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_it_charges_what_it_executes(model: str) -> None:
    assert_charged_as_executed(made(model), 44, task=TASK)


def test_it_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes_exactly(made("cnn8"), tmp_path / "saved", at=14, end=44, task=TASK, model="cnn8")


def test_bytes_are_the_slow_model_the_weights_to_go_back_to_two_masks_and_counts() -> None:
    learner = made()
    feed(learner, 0, 24, TASK)
    model = sum(t.numel() * t.element_size() for t in (*learner.model.parameters(), *learner.model.buffers()))
    weights = masked_weights(learner.network)
    masked, channels = sum(w.numel() for w in weights.values()), sum(len(w) for w in weights.values())
    assert learner.nbytes_by_item()["method"] == model + (4 + 1 + 1) * masked + 2 * 4 * channels + 5 * 8
    assert learner.nbytes_by_item()["method"] == made().nbytes_by_item()["method"]  # reserved


def test_layers_that_come_with_a_task_belong_to_none() -> None:
    growing = load(f"{Path(__file__).parents[2]}/examples/growing.py:growing")
    learner = Learner(seeded(lambda: growing(1, SHAPE)), TRIRE, STREAM, slots=12)
    feed(learner, 0, 60, task=TASK)
    method = method_of(learner)
    assert {*method.shared} == {*masked_weights(learner.network)}
    assert {*method.ema} == {n for n, _ in (*learner.model.named_parameters(), *learner.model.named_buffers())}


@pytest.mark.parametrize(
    "parts", [{"freezing": "adaptive", "retrieval": "sar"}, {"freezing": "ptlf"}, {"retrieval": "mir"}]
)
def test_it_takes_other_parts(parts: dict[str, str]) -> None:
    learner = learner_of(TRIRE().with_parts(**parts), "tiny", facts=STREAM)
    feed(learner, 0, 24, TASK)
    assert learner.steps == 24


def test_the_lipschitz_term_goes_over_it() -> None:
    learner = learner_of(METHODS["lider-trire"], "tiny", facts=STREAM)
    assert_charged_as_executed(learner, 20)


def test_a_plan_is_what_a_run_spends(tmp_path: Path) -> None:
    chosen = config("trire", model="mlp", iterations=1.0, limit=400, batch_size=16, eval_every=400)
    plan = make_plan(
        TRIRE, streams.info("digits"), "mlp", settings=Settings(), slots=30, samples=400, budget=Budget(),
        iterations=1.0, rule="real", eval_every=400,
    )  # fmt: skip
    assert plan.spent.real == pytest.approx(start(chosen, tmp_path / "run")["spent"]["real"], rel=0.01)


@pytest.mark.parametrize("own", [{"tasks": 0}, {"retain": 1.0}, {"slow": 0.0}, {"momentum": 1.0}])
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        made(own=own)


def test_a_schedule_is_refused() -> None:
    settings = Settings(LearnerSettings(batch_size=8, schedule="cosine"))
    with pytest.raises(BudgetedError, match=r"keep learner\.schedule=constant"):
        made(settings=settings)
