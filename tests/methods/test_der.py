"""DER++: the loss and its gradient are those written by hand, and the stored logits those of the last training step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from budgeted import streams
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, Settings
from budgeted.methods import METHODS, Step
from budgeted.methods.der import LOGITS, DarkExperienceReplay
from budgeted.runs.plan import make_plan
from tests.bright_rows import FACTS
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

DER = METHODS["der++"]
NAN = math.nan


def technique(**own: float) -> DarkExperienceReplay:
    found = learner_of(DER, own=own).method
    assert isinstance(found, DarkExperienceReplay)
    return found


def by_hand(logits: Tensor, step: Step, alpha: float, beta: float, first: int = 0) -> tuple[float, Tensor]:
    """Loss and gradient, one sample and one class at a time; `first`: replayed samples that stand for the stream's."""
    gradient = torch.zeros_like(logits)
    loss = 0.0
    replayed = range(step.new + first, len(logits))
    parts = [(range(step.new + first), 1.0), (replayed[0::2], beta)]
    for rows, weight in parts:
        for row in rows:
            chances = torch.softmax(logits[row], 0)
            label = int(step.labels[row])
            loss += weight * -math.log(float(chances[label])) / len(rows)
            chances[label] -= 1
            gradient[row] += weight * chances / len(rows)
    pairs = [
        (row, c, float(step.columns[LOGITS][row - step.new, c]))
        for row in replayed[1::2]
        for c in range(logits.shape[1])
        if not math.isnan(float(step.columns[LOGITS][row - step.new, c]))
    ]
    for row, c, old in pairs:
        loss += alpha * (float(logits[row, c]) - old) ** 2 / len(pairs)
        gradient[row, c] += alpha * 2 * (logits[row, c] - old) / len(pairs)
    return loss, gradient


@pytest.mark.parametrize("replayed", [0, 1, 2, 5])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 0.5), (0.2, 1.0), (0.0, 0.0)])
def test_loss_and_gradient_are_those_written_by_hand(alpha: float, beta: float, replayed: int) -> None:
    generator = torch.Generator().manual_seed(1)
    stored = torch.randn(replayed, 4, generator=generator)
    stored[1:2, 2:] = NAN  # stored when two classes were known
    stored[3:4] = NAN  # stored without a step
    logits = torch.randn(3 + replayed, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 1, 0, 2, 2, 0])[: 3 + replayed]
    step = Step(3, np.arange(replayed), torch.empty(0), labels, {LOGITS: stored})
    loss = technique(alpha=alpha, beta=beta).loss(step, logits)
    expected, gradient = by_hand(logits.detach(), step, alpha, beta)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], gradient, rtol=1e-6, atol=1e-9)


def test_a_batch_without_any_known_logit_has_the_cross_entropies_alone() -> None:
    logits = torch.randn(4, 2, requires_grad=True, generator=torch.Generator().manual_seed(0))
    step = Step(2, np.arange(2), torch.empty(0), torch.tensor([0, 1, 0, 1]), {LOGITS: torch.full((2, 4), NAN)})
    loss = technique().loss(step, logits)
    expected = torch.nn.functional.cross_entropy(logits[:2], step.labels[:2])
    expected = expected + 0.5 * torch.nn.functional.cross_entropy(logits[2:3], step.labels[2:3])
    torch.testing.assert_close(loss, expected)
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_a_slot_keeps_the_logits_of_the_last_step_on_its_sample() -> None:
    learner = learner_of(DER, slots=30)
    seen: list[Tensor] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if not isinstance(output, FakeTensor):  # pricing a new shape runs the model without data
            seen.append(output.detach().clone())

    learner.model.register_forward_hook(note)
    feed(learner, 0, 12)  # four stream batches of three, three steps on each
    assert learner.steps == 12
    assert learner.stream_batch == 3
    kept = learner.memory.gather(np.arange(12)).columns[LOGITS]
    for slot in range(12):
        last = seen[3 * (slot // 3) + 2]
        classes = last.shape[1]
        torch.testing.assert_close(kept[slot, :classes], last[slot % 3], rtol=0, atol=0)
        assert kept[slot, classes:].isnan().all()
    assert seen[0].shape[1] == 1
    assert seen[-1].shape[1] == 2  # the second class came late: the first slots do not know it


def test_a_sample_stored_without_a_step_has_no_logits() -> None:
    learner = learner_of(DER, slots=30, iterations=0.2)  # one step for every fifth sample: batches of three go without
    feed(learner, 0, 9)
    assert learner.steps == 1
    kept = learner.memory.gather(np.arange(9)).columns[LOGITS]
    assert [bool(row.isnan().all()) for row in kept] == [True] * 3 + [False] * 3 + [True] * 3


def test_replacing_a_sample_replaces_its_logits() -> None:
    learner = learner_of(DER, slots=3)
    feed(learner, 0, 30)
    technique = learner.method
    technique.stored(1, None)
    kept = learner.memory.gather(np.arange(3)).columns[LOGITS]
    assert kept[1].isnan().all()
    assert not kept[0].isnan().all()


@pytest.mark.parametrize("model", ["mlp", "tiny"])
def test_it_charges_what_it_executes(model: str) -> None:
    assert_charged_as_executed(learner_of(DER, model))


@pytest.mark.parametrize("parts", [{"retrieval": "sar"}, {"freezing": "adaptive"}])
def test_other_parts_fit(parts: dict[str, str]) -> None:
    assert_charged_as_executed(learner_of(DER().with_parts(**parts), "tiny"), count=24)


def test_a_logit_is_four_bytes_in_every_slot() -> None:
    der, er = (learner_of(METHODS[name], slots=10) for name in ("der++", "er"))
    assert der.memory.nbytes() - er.memory.nbytes() == 10 * 4 * 4
    assert der.memory.nbytes() == sum(tensor.nbytes for tensor in der.memory._storage.tensors.values())


@pytest.mark.parametrize(("dataset", "slots"), [("cifar10", 1974), ("cifar100", 1769)])
def test_slots_at_the_papers_budget(dataset: str, slots: int) -> None:
    """The paper says 1974 and 1770; 1770 slots would be 1440 bytes too many."""
    plan = make_plan(
        DER,
        streams.info(dataset),
        "resnet32",
        settings=Settings(),
        budget=Budget(bytes=7_998_016),
        iterations=1.0,
        rule="paper",
        measure=False,
    )
    assert plan.slots == slots


def test_it_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(DER, own={"alpha": 0.3}), tmp_path / "saved", at=16, end=34)


@pytest.mark.parametrize("own", [{"alpha": -0.1}, {"beta": NAN}])
def test_bad_weights_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be 0 or more"):
        learner_of(DER, own=own)


def test_undeclared_classes_are_refused() -> None:
    with pytest.raises(BudgetedError, match="say how many there will be"):
        learner_of(DER, facts=replace(FACTS, classes=None))


def test_more_classes_than_declared_are_refused() -> None:
    learner = learner_of(DER, facts=replace(FACTS, classes=1))
    feed(learner, 0, 9)
    with pytest.raises(BudgetedError, match="say how many there will be"):
        feed(learner, 9, 10)
    assert learner.class_labels == [0]
    assert learner.head.out_features == 1
    assert learner.arrived == 9


# -- batches of the memory alone --------------------------------------------------------------------------------------


class FirstReplays:
    """What every slot must hold, written down beside a learner that runs: the logits of its sample's first replay."""

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner.method, DarkExperienceReplay)
        self.learner, self.method = learner, learner.method
        self.rows: dict[int, list[float]] = {}
        self.first = self.later = self.late_classes = self.replaced = 0
        self._loss, self._after_step, self._stored = self.method.loss, self.method.after_step, self.method.stored
        for verb in ("loss", "after_step", "stored"):
            setattr(self.method, verb, getattr(self, verb))

    def check(self) -> None:
        kept = self.learner.memory.gather(np.arange(len(self.learner.memory))).columns[LOGITS]
        expected = torch.tensor([self.rows[slot] for slot in range(len(kept))])
        torch.testing.assert_close(kept, expected, rtol=0, atol=0, equal_nan=True)

    def loss(self, step: Step, logits: Tensor) -> Tensor:
        loss = self._loss(step, logits)
        if not isinstance(logits, FakeTensor):
            old = torch.tensor([self.rows[slot] for slot in step.slots.tolist()])
            known = Step(0, step.slots, step.inputs, step.labels, {LOGITS: old})
            first = 3 * len(step.labels) // 8  # of a batch of 16, six
            expected, _ = by_hand(logits.detach().double(), known, self.method.alpha, self.method.beta, first)
            assert loss.item() == pytest.approx(expected, rel=1e-4)
        return loss

    def after_step(self, step: Step, logits: Tensor) -> None:
        assert step.new == 0
        for slot, row in zip(step.slots.tolist(), logits.tolist(), strict=True):
            if math.isnan(self.rows[slot][0]):
                self.rows[slot] = [*row, *[NAN] * (4 - len(row))]
                self.first += 1
            else:
                self.later += 1
                self.late_classes += math.isnan(self.rows[slot][len(row) - 1])
        self._after_step(step, logits)
        self.check()

    def stored(self, slot: int, place: int | None) -> None:
        assert place is None
        self.replaced += slot in self.rows
        self.rows[slot] = [NAN] * 4
        self._stored(slot, place)
        self.check()


@pytest.mark.parametrize("retrieval", ["uniform", "class-balanced"])
def test_without_samples_of_the_stream_a_slot_keeps_the_logits_of_its_first_replay(retrieval: str) -> None:
    learner = learner_of(DER(stream_share=0.0).with_parts(retrieval=retrieval), slots=14)
    hand = FirstReplays(learner)
    feed(learner, 0, 40)
    assert learner.steps == 40
    assert min(hand.first, hand.replaced) > 10
    assert hand.later > 100
    assert hand.late_classes > 10  # a class that came after the first replay stays unknown


def test_a_batch_too_small_for_samples_of_the_stream_is_of_the_memory_alone() -> None:
    learner = learner_of(DER, batch_size=2)
    hand = FirstReplays(learner)
    feed(learner, 0, 20)
    assert learner.stream_batch == 0
    assert min(hand.first, hand.later) > 5


def test_without_samples_of_the_stream_it_charges_what_it_executes() -> None:
    assert_charged_as_executed(learner_of(DER(stream_share=0.0)))


def test_without_samples_of_the_stream_it_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(DER, own={"stream_share": 0.0}), tmp_path / "saved", at=16, end=34)
