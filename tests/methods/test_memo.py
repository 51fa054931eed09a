"""MEMO: one more last stage a task, trained, the old ones at rest; a joint and an auxiliary classifier."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.methods import METHODS, Step
from budgeted.network.expandable import Expandable
from budgeted.runs.plan import grown_bytes, make_plan
from budgeted.streams import info
from tests.bright_rows import FACTS, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, body_of, feed, learner_of, network
from tests.nets import NETS, seeded

MEMO = METHODS["memo"]
TASK = 12


def model_of(learner: Learner) -> Expandable:
    assert isinstance(learner.model, Expandable)
    return learner.model


def features_by_hand(model: Expandable, images: Tensor) -> list[Tensor]:
    """Of every stage of `tiny`, layer by layer: convolution, batch norm, ReLU, convolution, ReLU, mean."""
    tiny = model.model
    assert isinstance(tiny.stem, nn.Sequential)
    maps = tiny.stem(images)
    found = []
    for stage in model.stages:
        first, norm, second = body_of(stage)
        inside = F.relu(norm(F.conv2d(maps, first.weight, first.bias, stride=2, padding=1)))
        found.append(F.relu(F.conv2d(inside, second.weight, second.bias)).mean((2, 3)))
    return found


def test_logits_and_loss_are_the_hand_written_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joint logits of all stages' features; the auxiliary classifier of the newest: old classes are one to it."""
    learner = learner_of(MEMO, "tiny", own={"auxiliary_weight": 0.7})
    feed(learner, 0, 14)  # classes 0 and 1
    learner.end_task()
    feed(learner, 14, 36)  # 2 and 3
    model, method = model_of(learner), learner.method
    assert (len(learner.class_labels), len(model.stages)) == (4, 2)
    own_loss, compared = method.loss, []

    def comparing(step: Step, logits: Tensor) -> Tensor:
        found = own_loss(step, logits)
        features = features_by_hand(model, step.inputs)
        by_hand = torch.cat(features, 1) @ learner.head.weight.T + learner.head.bias
        torch.testing.assert_close(logits, by_hand, rtol=1e-4, atol=1e-5)
        weight, bias = (each[:3] for each in learner.network.beside["auxiliary"].parameters())
        told = features[1] @ weight.T + bias
        wanted = torch.tensor([{0: 0, 1: 0, 2: 1, 3: 2}[row] for row in step.labels.tolist()])
        expected = F.cross_entropy(by_hand, step.labels) + 0.7 * F.cross_entropy(told, wanted)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)
        compared.append(set(wanted.tolist()))
        return found

    monkeypatch.setattr(method, "loss", comparing)
    for _ in range(3):
        learner._step()
    assert {0, 1, 2} in compared


def test_the_newest_stage_is_trained_the_older_ones_and_their_statistics_rest() -> None:
    learner = learner_of(MEMO, "tiny")
    feed(learner, 0, TASK)
    learner.end_task()
    model = model_of(learner)
    old, new = model.stages
    for first, second in zip(old.state_dict().values(), new.state_dict().values(), strict=True):
        assert torch.equal(first, second)  # it starts as the one before it
        assert first.data_ptr() != second.data_ptr()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()  # the next step brings all of it back into training mode, but for what rests
    feed(learner, TASK, 2 * TASK)
    now = model.state_dict()
    moved = {name for name in now if not torch.equal(now[name], before[name])}
    assert not any(".stages.0." in name for name in moved)
    assert {name for name in now if ".stages.1." in name} <= moved  # running statistics too
    assert {name for name in now if ".stem." in name} <= moved  # shared layers go on, through old stages as well
    assert not old.training
    assert new.training
    ids = {id(parameter) for parameter in learner.network.parameters()}
    assert {id(parameter) for parameter in new.parameters()} <= ids


def test_the_head_keeps_what_it_knew_and_reads_the_new_stage() -> None:
    learner = learner_of(MEMO, "tiny")
    feed(learner, 0, TASK)
    before, asked = learner.head.weight.detach().clone(), torch.stack([image for image, _ in samples(6, seed=3)])
    learner.end_task()
    after, width = learner.head.weight.detach(), before.shape[1]
    assert after.shape == (before.shape[0], 2 * width)
    assert torch.equal(after[:, :width], before)
    assert 0 < after[:, width:].abs().max() <= (2 * width) ** -0.5
    model = model_of(learner).eval()
    with torch.no_grad():
        one, two = features_by_hand(model, learner.inputs_of(asked))
        torch.testing.assert_close(one, two)
        told = torch.cat([one, two], 1) @ after.T + learner.head.bias
    torch.testing.assert_close(learner.logits(asked), told, rtol=1e-4, atol=1e-5)  # predictions are the joint ones


def test_without_a_new_class_there_is_no_auxiliary_term() -> None:
    learner = learner_of(MEMO, "tiny")
    feed(learner, 0, 32)  # all four classes
    learner.end_task()
    drawn = learner.network.beside["auxiliary"].state_dict()["weight"].clone()
    feed(learner, 32, 44)
    assert torch.equal(drawn, learner.network.beside["auxiliary"].state_dict()["weight"])
    learner.end_task()
    assert not torch.equal(drawn, learner.network.beside["auxiliary"].state_dict()["weight"])  # drawn anew


@pytest.mark.parametrize("model", ["tiny", "mlp"])
def test_every_step_is_charged_as_executed(model: str) -> None:
    assert_charged_as_executed(learner_of(MEMO, model), task=TASK)


@pytest.mark.parametrize("parts", [{"freezing": "adaptive"}, {"freezing": "constant"}, {"retrieval": "mir"}], ids=str)
def test_with_parts_that_are_not_its_own_it_is_charged_as_executed(parts: dict[str, str]) -> None:
    method = MEMO().with_parts(**parts)
    settings = Settings(dataclasses.replace(learner_of(MEMO).settings.learner))
    if parts.get("freezing") == "adaptive":
        settings = dataclasses.replace(settings, freezing={"ema": 0.3, "ema_start": "first"})
    learner = learner_of(method, "tiny", settings=settings)
    assert_charged_as_executed(learner, 30, task=10)
    assert len(model_of(learner).stages) == 4
    assert learner.mean_frozen_share > 0 or "freezing" not in parts


def test_ptlf_freezes_under_it() -> None:
    """Blocks of the shared layers and of the newest stage may rest; what rests does not move."""
    method = MEMO().with_parts(freezing="ptlf")
    settings = dataclasses.replace(learner_of(MEMO).settings, freezing={"stretch": 8, "probe": 3})
    learner = learner_of(method, "tiny", settings=settings)
    rested = 0
    for i in range(30):
        before = {name: value.detach().clone() for name, value in learner.model.named_parameters()}
        steps = learner.steps
        feed(learner, i, i + 1, 10)
        if learner.last is not None and learner.steps == steps + 1 and learner.last.frozen:
            for block in learner.last.frozen:
                for name in learner.freezing.chain.owned(block):
                    rested += 1
                    assert torch.equal(before[name], learner.model.get_parameter(name))
    assert sum(learner.rested.values()) > 10


def test_resumes_exactly(tmp_path: Path) -> None:
    learner = learner_of(MEMO)
    assert_resumes_exactly(learner, tmp_path / "saved", 2 * TASK + 5, 3 * TASK + 7, task=TASK)
    assert len(model_of(learner).stages) == 4


def test_the_bytes_of_every_stage_come_off_the_memory() -> None:
    budget = learner_of(MEMO, "tiny", slots=4000).nbytes()
    learner = learner_of(MEMO, "tiny", slots=4000, budget=Budget(bytes=budget))
    stage = sum(4 * p.numel() for p in model_of(learner).stages[0].parameters())
    stage += sum(b.numel() * b.element_size() for b in model_of(learner).stages[0].buffers())
    columns = 4 * 4 * 32  # of four classes' rows of the head
    for tasks in (1, 2):
        feed(learner, (tasks - 1) * 6, tasks * 6)
        learner.end_task()
        assert learner.memory.capacity == (4000 * 65 - tasks * (stage + columns)) // 65
        assert learner.nbytes() <= budget
    other = learner_of(MEMO, "tiny")
    assert grown_bytes(other, 2) == 2 * (stage + columns)


def test_a_plan_reserves_what_will_come() -> None:
    memory = 400_000
    plan = make_plan(
        MEMO, info("digits"), "mlp", settings=Settings(), budget=Budget(bytes=memory), iterations=1, measure=False,
        samples=100,
    )  # fmt: skip
    stage, columns = 4 * (64 * 256 + 256), 4 * 10 * 256
    assert plan.bytes["growth"] == 4 * (stage + columns)  # a boundary after every fifth
    assert 0 <= memory - sum(plan.bytes.values()) < 65


@pytest.mark.parametrize("name", ["vit", "dense", "decoder"])
def test_what_cannot_be_split_is_refused_in_one_line(name: str) -> None:
    net = NETS[name]
    example = net.batch(torch.Generator().manual_seed(0))[0][:2]
    with pytest.raises(BudgetedError, match="cannot be repeated: its channels do not reach") as refused:
        Expandable(seeded(net.build), example)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "stage"), [("resnet20", "stages.2"), ("cnn8", "stages.2"), ("separable", "blocks")])
def test_the_last_stage_is_what_is_repeated(name: str, stage: str) -> None:
    net = NETS[{"resnet20": "resnet", "cnn8": "plain cnn"}.get(name, name)]
    images = net.batch(torch.Generator().manual_seed(0))[0][:2]
    model = Expandable(seeded(net.build), images)
    before = model.eval()(images)
    assert model._stage == stage
    model.end_task()
    head = model.model.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight[:, model.width :] = 0
        torch.testing.assert_close(model.eval()(images), before)


def test_classes_must_be_declared() -> None:
    with pytest.raises(BudgetedError, match="say how many there will be"):
        Learner(network("tiny"), MEMO, dataclasses.replace(FACTS, classes=None), slots=10)
