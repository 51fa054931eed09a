"""X-DER: loss, gradient and renewed logits against the definitions, one number at a time."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from budgeted.errors import BudgetedError
from budgeted.learner import Learner
from budgeted.methods import METHODS, Method, Step, lider_over
from budgeted.methods.der import LOGITS
from budgeted.methods.x_der import REPLAYS, ExtendedDarkExperienceReplay
from tests.bright_rows import FACTS, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

X_DER = METHODS["x-der"]
EIGHT = dataclasses.replace(FACTS, classes=8)
OWN = {"heads": 4, "margin": 0.6, "margin_weight": 0.7, "consistency": 0.9, "temperature": 0.8, "gamma": 0.75}


def technique_of(learner: Learner) -> ExtendedDarkExperienceReplay:
    assert isinstance(learner.method, ExtendedDarkExperienceReplay)
    return learner.method


# -- the loss ---------------------------------------------------------------------------------------------------------


def own_side(row: int, past: int, future: int) -> range:
    return range(past) if row < past else range(past, future)


def cross_entropy(rows: list[Tensor], labels: list[int], past: int, future: int) -> Tensor:
    found = [
        torch.stack([row[c] for c in own_side(label, past, future)]).exp().sum().log() - row[label]
        for row, label in zip(rows, labels, strict=True)
    ]
    return torch.stack(found).mean()


def mean_of_positive(values: list[Tensor]) -> Tensor:
    positive = [value for value in values if value.item() > 0]
    return torch.stack(positive).mean() if positive else torch.zeros((), dtype=torch.float64)


def contrast(views: Tensor, labels: list[int], first: int, width: int) -> Tensor:
    units = [view[first : first + width] / view[first : first + width].norm() for view in views]
    found = []
    for i, anchor in enumerate(units):
        others = [j for j in range(len(units)) if j != i]
        nearness = {j: (anchor * units[j]).sum() / OWN["temperature"] for j in others}
        whole = torch.stack([value.exp() for value in nearness.values()]).sum().log()
        of_class = [nearness[j] - whole for j in others if labels[j] == labels[i]]
        found.append(-torch.stack(of_class).mean())
    return torch.stack(found).mean()


def by_hand(logits: Tensor, views: Tensor, of_views: list[int], step: Step, starts: list[int], future: int) -> Tensor:
    """The whole loss for 8 classes in heads of two, in loops."""
    past, labels = starts[-1], step.labels.tolist()
    replayed = range(step.new, len(labels))
    loss = cross_entropy([logits[i] for i in range(step.new)], labels[: step.new], past, future)
    told = [replayed[i] for i in range(0, len(replayed), 2)]
    loss = loss + 0.5 * cross_entropy([logits[i] for i in told], [labels[i] for i in told], past, future)
    stored = step.columns[LOGITS]
    squares = [(logits[i, c] - stored[i - step.new, c]) ** 2 for i in replayed if i not in told for c in range(8)]
    loss = loss + 0.5 * torch.stack(squares).mean()
    if future < 8:
        ends = [*starts[1:], future]
        short = []
        for i, label in enumerate(labels):
            head = next(k for k in range(len(ends)) if label < ends[k])
            best = max(logits[i, c] for c in range(starts[head], ends[head]))
            short.append(max(logits[i, c] for c in range(future, 8)) + OWN["margin"] - best)
        loss = loss + OWN["margin_weight"] * mean_of_positive(short)
        heads = [contrast(views, of_views, first, 2) for first in range(future, 8, 2)]
        loss = loss + OWN["consistency"] * torch.stack(heads).mean()
    if 0 < past < future:
        short = []
        for i, label in enumerate(labels):
            if label >= past:
                chances = [logits[i, c].exp() / logits[i, :future].exp().sum() for c in range(future)]
                short.append(max(chances[:past]).item() + OWN["margin"] - max(chances[past:]))
        loss = loss + OWN["margin_weight"] * mean_of_positive(short)
    return loss


class Views:
    """Stands in for the further forward: random outputs, and a note of what was to be run."""

    def __init__(self, learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learner, self.inputs_of = learner, learner.inputs_of
        self.outputs = torch.empty(0)
        monkeypatch.setattr(learner, "inputs_of", self.note)
        monkeypatch.setattr(learner.network, "forward_also", self.answer)

    def note(self, samples: Tensor, *, augment: bool = False) -> Tensor:
        assert augment
        self.samples = samples
        inputs: Tensor = self.inputs_of(samples, augment=augment)
        return inputs

    def answer(self, inputs: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(5)
        self.outputs = torch.randn(len(inputs), 8, generator=generator, dtype=torch.float64, requires_grad=True)
        return self.outputs


@pytest.mark.parametrize(
    ("starts", "met", "future"), [([0], 2, 2), ([0, 2], 4, 4), ([0, 2, 3], 4, 5), ([0, 2], 3, 4), ([0, 3], 4, 5)]
)
def test_loss_and_gradient_are_those_written_by_hand(
    starts: list[int], met: int, future: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(X_DER, own=OWN, facts=EIGHT, slots=30)
    feed(learner, 0, 6 * met)
    technique = technique_of(learner)
    technique.starts = starts
    assert technique.sides == (starts[-1], future)
    generator = torch.Generator().manual_seed(met)
    labels = torch.randint(0, met, (11,), generator=generator)
    labels[:3] = torch.arange(met)[-3:] if met > 2 else 0
    drawn = learner.memory.gather(np.arange(11))
    columns = {LOGITS: torch.randn(8, 8, generator=generator, dtype=torch.float64)}
    logits = torch.randn(11, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    step = Step(3, np.arange(8), torch.empty(0), labels, columns, drawn.samples)
    views = Views(learner, monkeypatch)
    state = copy.deepcopy(learner.generators["technique"])
    loss = technique.loss(step, logits)

    more = state.choice(len(learner.memory), 8, replace=False)
    stored = learner.memory.gather(more)
    assert torch.equal(views.samples, torch.cat([drawn.samples, stored.samples] * 2))
    of_views = [*labels.tolist(), *stored.labels.tolist()] * 2
    expected = by_hand(logits, views.outputs, of_views, step, starts, future)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    mine = torch.autograd.grad(loss, (logits, views.outputs))
    other = torch.autograd.grad(expected, (logits, views.outputs))
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)
    assert mine[1][:, :future].abs().max() == 0  # the contrast is the future's alone


def test_when_all_classes_are_of_the_past_it_is_der() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 4, generator=generator)
    columns = {LOGITS: torch.randn(4, 4, generator=generator)}
    step = Step(3, np.arange(4), torch.empty(0), torch.tensor([0, 1, 2, 3, 1, 2, 0]), columns)
    learner = learner_of(X_DER)
    feed(learner, 0, 24, task=24)
    assert technique_of(learner).sides == (4, 4)
    assert torch.equal(learner.method.loss(step, logits), learner_of(METHODS["der++"]).method.loss(step, logits))


@pytest.mark.parametrize(
    ("classes", "heads", "met", "starts"),
    [
        (8, 4, [2, 4, 6, 8], [0, 2, 4, 6, 8]),
        (8, 4, [1, 3, 3, 7, 8], [0, 3, 8]),  # no side of one row, and none without a sample
        (4, 5, [2, 3, 4], [0, 2, 4]),
    ],
)
def test_boundaries_divide_the_rows(classes: int, heads: int, met: list[int], starts: list[int]) -> None:
    facts = dataclasses.replace(FACTS, classes=classes)
    learner = learner_of(X_DER, own={"heads": heads}, facts=facts, iterations=0.0)
    technique, image = technique_of(learner), next(samples(1))[0]
    label = 0
    for until in met:
        while label < until:
            learner.learn(image, label)
            label += 1
            past, future = technique.sides
            assert past <= label <= future <= classes
            assert future - past != 1
        learner.end_task()
    assert technique.starts == starts


# -- the stored logits ------------------------------------------------------------------------------------------------


def lowered(logits: list[float], truth: float, gamma: float) -> list[float]:
    greatest = max(logits)
    if greatest <= truth:
        return logits
    if truth > 0:
        return [value * gamma * truth / greatest for value in logits]
    return [value - greatest + truth for value in logits]


class ByHand:
    """The rows of the memory's logits, one number at a time, beside a learner that runs."""

    def __init__(self, learner: OnAll) -> None:
        self.learner, self.method, self.gamma = learner, technique_of(learner), technique_of(learner).gamma
        self.replays: dict[int, int] = {}
        self.renewed = self.kept = self.at_boundary = self.limited = self.first = 0
        self._after_step, self._end_task, self._stored = (
            self.method.after_step,
            self.method.end_task,
            self.method.stored,
        )
        for verb in ("after_step", "end_task", "stored"):
            setattr(self.method, verb, getattr(self, verb))

    def rows(self) -> list[list[float]]:
        columns = self.learner.memory.gather(np.arange(len(self.learner.memory))).columns
        return [[float(value) for value in row] for row in columns[LOGITS]]

    def check(self, expected: list[list[float]]) -> None:
        torch.testing.assert_close(
            torch.tensor(self.rows()), torch.tensor(expected), equal_nan=True, rtol=1e-4, atol=1e-5
        )
        count = len(self.learner.memory)
        column = self.learner.memory.gather(np.arange(count)).columns[REPLAYS].tolist()
        assert column == [self.replays.get(slot, 0) for slot in range(count)]

    def after_step(self, step: Step, logits: Tensor) -> None:
        expected, past = self.rows(), self.method.starts[-1]
        chance = copy.deepcopy(self.learner.generators["technique"])
        labels = step.labels.tolist()
        for k, slot in enumerate(step.slots.tolist()):
            if self.learner.stream_batch == 0 and math.isnan(expected[slot][0]):  # its first replay
                self.first += 1
                expected[slot] = self._of_new(logits[k].tolist(), labels[k])
        old = [k for k in range(len(step.slots)) if labels[step.new + k] < past] if past < 4 else []
        luck: list[float] = chance.random(len(old)).tolist() if old else []
        for k, drawn in zip(old, luck, strict=True):
            slot, label = int(step.slots[k]), labels[step.new + k]
            self.replays[slot] = self.replays.get(slot, 0) + 1
            truth = expected[slot][label]
            if drawn * self.replays[slot] >= 1 or math.isnan(truth):
                self.kept += 1
                continue
            self.renewed += 1
            now = logits[step.new + k].tolist()
            expected[slot][past:] = lowered(now[past:], truth, self.gamma)
        self._after_step(step, logits)
        self.check(expected)

    def end_task(self) -> None:
        expected, past = self.rows(), self.method.starts[-1]
        memory = self.learner.memory
        if past < 4:
            now = self.learner.logits_of_all(memory)
            for slot, label in enumerate(memory.labels.tolist()):
                if label < past and not math.isnan(expected[slot][label]):
                    expected[slot][past:] = lowered(now[slot][past:], expected[slot][label], self.gamma)
                    self.at_boundary += 1
        self._end_task()
        self.replays.clear()
        self.check(expected)

    def stored(self, slot: int, place: int | None) -> None:
        newest = self.method._newest
        label = int(self.learner.memory.labels[slot])
        self.replays.pop(slot, None)
        self._stored(slot, place)
        if place is None or newest is None:
            return
        row = self._of_new(newest[place].tolist(), label)
        assert self.rows()[slot] == pytest.approx(row, rel=1e-4, abs=1e-5)

    def _of_new(self, row: list[float], label: int) -> list[float]:
        """What is stored of a sample that had nothing: of one of the present, rows of the past are lowered."""
        past = self.method.starts[-1]
        if 0 < past <= label:
            before, row[:past] = row[:past], lowered(row[:past], row[label], self.gamma)
            self.limited += before != row[:past]
        return row


class OnAll(Learner):
    def logits_of_all(self, memory: Any) -> list[list[float]]:
        """What the model says to everything stored, all rows of the head, nothing charged."""
        with self.network.aside(), torch.no_grad():
            self.model.eval()
            found: list[list[float]] = self.model(
                self.inputs_of(memory.gather(np.arange(len(memory))).samples)
            ).tolist()
            return found


@pytest.mark.parametrize("gamma", [0.85, 0.3])
def test_stored_logits_are_renewed_in_the_right_rows(gamma: float) -> None:
    learner = learner_of(X_DER, own={"gamma": gamma}, kind=OnAll, slots=14)
    assert isinstance(learner, OnAll)
    hand = ByHand(learner)
    feed(learner, 0, 60, task=14)
    assert technique_of(learner).starts == [0, 2, 4]
    assert min(hand.renewed, hand.kept, hand.at_boundary) > 5
    assert hand.limited > 1


def test_without_samples_of_the_stream_the_first_replay_is_what_a_slot_keeps() -> None:
    learner = learner_of(X_DER, own={"gamma": 0.3, "stream_share": 0.0}, kind=OnAll, slots=14)
    assert isinstance(learner, OnAll)
    hand = ByHand(learner)
    feed(learner, 0, 60, task=14)
    assert technique_of(learner).starts == [0, 2, 4]
    assert min(hand.first, hand.renewed, hand.kept, hand.at_boundary) > 5
    assert hand.limited > 1


def test_a_class_of_the_future_is_never_predicted() -> None:
    learner = learner_of(X_DER, facts=EIGHT)
    assert learner.head.out_features == 8
    feed(learner, 0, 12)
    images = torch.stack([image for image, _ in samples(40)])
    assert learner.logits(images).shape == (40, 2)
    assert set(learner.predict(images).tolist()) <= {0, 1}


def test_the_future_is_prepared_before_its_classes_come() -> None:
    """Without the contrast the rows of the future just fall below the others; with it views of a class are alike."""
    nearness = {}
    for weight in (0.0, 5.0):
        learner = learner_of(X_DER, "tiny", facts=EIGHT, own={"heads": 4, "consistency": weight, "temperature": 0.5})
        feed(learner, 0, 18)
        pictures = list(samples(24))
        learner.model.eval()
        outputs = learner.model(learner.inputs_of(torch.stack([image for image, _ in pictures])))
        units = torch.nn.functional.normalize(outputs[:, 4:6], dim=1)
        labels = torch.tensor([label for _, label in pictures])
        cosines, alike = units @ units.T, labels[:, None] == labels
        nearness[weight] = float((cosines[alike].mean() - cosines[~alike].mean()).detach())
    assert nearness[5.0] > nearness[0.0] + 0.15


# -- what every method must pass --------------------------------------------------------------------------------------

COMPOSITIONS: dict[str, Method | type[Method]] = {
    "sar": X_DER().with_parts(retrieval="sar"),
    "constant": X_DER().with_parts(freezing="constant"),
    "adaptive": X_DER().with_parts(freezing="adaptive"),
    "lider, adaptive": lider_over(X_DER)().with_parts(freezing="adaptive"),
}


def test_it_charges_what_it_executes() -> None:
    assert_charged_as_executed(learner_of(X_DER, "mlp"), task=10)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_other_parts_fit(name: str) -> None:
    learner = learner_of(COMPOSITIONS[name], "tiny")
    assert_charged_as_executed(learner, count=13, task=10)
    if learner.method.freezing == "constant":
        assert learner.mean_frozen_share > 0.5


def test_bytes_are_those_of_what_is_kept() -> None:
    mine, der = (learner_of(METHODS[name], slots=10) for name in ("x-der", "der++"))
    assert mine.nbytes() - der.nbytes() == 10 + 8  # a byte per slot, and where the first stretch begins
    feed(mine, 0, 24, task=12)
    assert mine.nbytes() - der.nbytes() == 10 + 8 * 3


def test_it_resumes_exactly(tmp_path: Path) -> None:
    assert_resumes_exactly(learner_of(X_DER), tmp_path / "saved", at=16, end=34, task=14)


def test_without_samples_of_the_stream_it_charges_what_it_executes_and_resumes_exactly(tmp_path: Path) -> None:
    assert_charged_as_executed(learner_of(X_DER, own={"stream_share": 0.0}), count=24, task=10)
    assert_resumes_exactly(learner_of(X_DER, own={"stream_share": 0.0}), tmp_path / "saved", at=16, end=30, task=14)


def test_classes_beyond_those_declared_are_refused() -> None:
    learner = learner_of(X_DER)
    feed(learner, 0, 24)
    with pytest.raises(BudgetedError, match="say how many there will be"):
        learner.learn(next(samples(1))[0], 9)
    assert learner.class_labels == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "own", [{"heads": 0}, {"views": 1}, {"temperature": 0.0}, {"gamma": 1.5}, {"margin": -1.0}, {"alpha": -1.0}]
)
def test_bad_settings_are_refused(own: dict[str, float]) -> None:
    with pytest.raises(BudgetedError, match=f"method.{next(iter(own))} must be"):
        learner_of(X_DER, own=own)
