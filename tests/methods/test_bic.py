"""BiC: the old model teaches, some samples are withheld, and the correction takes a constructed bias away."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner
from budgeted.learner.state import tensors_of
from budgeted.methods import METHODS, Step
from budgeted.methods.bias import IDENTITY, Correction, fit
from budgeted.methods.bic import BiasCorrection
from tests.bright_rows import FACTS, augmenter_of, samples
from tests.methods import small
from tests.methods.small import RealOps, assert_resumes_exactly, feed, learner_of

BIC = METHODS["bic"]
SOON = {"every": 3, "validation": 2}  # so that a short stream withholds some of every class


def technique_of(learner: Learner) -> BiasCorrection:
    assert isinstance(learner.method, BiasCorrection)
    return learner.method


def answers(count: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of a model without bias, right most of the time."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    logits = torch.randn(count, classes, generator=generator)
    logits[torch.arange(count), labels] += 1.5
    return logits, labels


def test_the_correction_removes_a_constructed_bias() -> None:
    logits, labels = answers(600, 6)
    biased = logits.clone()
    biased[:, 4:] = 2.5 * logits[:, 4:] + 3
    fair, unfair = ((found.argmax(1) == labels).double().mean() for found in (logits, biased))
    correction = fit(biased, labels, 4, decay=1e-4)
    # logits drawn like these are fair, but not the best of all: what is best for them is the yardstick
    best = fit(logits, labels, 4, decay=1e-9)
    assert correction.alpha == pytest.approx(best.alpha / 2.5, rel=0.01)
    assert correction.beta == pytest.approx(best.beta - 3 * best.alpha / 2.5, rel=0.02)
    mended = (correction(biased).argmax(1) == labels).double().mean()
    assert unfair < fair - 0.2
    assert mended > fair - 0.01
    assert torch.equal(correction(biased)[:, :4], biased[:, :4])  # old classes stay as they are


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("decay", [1e-2, 1e-4])
def test_the_fit_is_the_minimum_that_another_library_finds(seed: int, decay: float) -> None:
    logits, labels = answers(40 + seed, 5, seed)
    logits[:, 3:] = logits[:, 3:] * (0.3 + seed) + seed
    found = fit(logits, labels, 3, decay)
    counts = np.bincount(labels, minlength=5)

    def loss(values: list[float]) -> float:
        moved = logits.double().numpy().copy()
        moved[:, 3:] = values[0] * moved[:, 3:] + values[1]
        own = np.log(np.exp(moved).sum(1)) - moved[np.arange(len(labels)), labels]
        balanced = float(np.mean([own[labels.numpy() == label].mean() for label in range(5)]))
        assert counts.all()
        return balanced + decay / 2 * ((values[0] - 1) ** 2 + values[1] ** 2)

    best = optimize.minimize(loss, [1.0, 0.0], tol=1e-12)
    assert loss([found.alpha, found.beta]) <= best.fun + 1e-9
    assert [found.alpha, found.beta] == pytest.approx(best.x, abs=1e-3)


def taught_learner(**own: Any) -> Learner:
    """Two classes, a boundary, two more: trained a little on all."""
    learner = learner_of(BIC, slots=40, own={**SOON, **own}, iterations=2.0)
    stream = [*samples(120)]
    first = [each for each in stream if each[1] < 2]
    for image, label in first:
        learner.learn(image, label)
    learner.end_task()
    for image, label in stream:
        if label >= 2:
            learner.learn(image, label)
    return learner


def test_predictions_are_made_with_the_correction() -> None:
    """A bias put into the head is taken out again by the time of the evaluation, and charged."""
    learner = taught_learner(decay=1e-4)
    asked = torch.stack([image for image, _ in samples(60, seed=4)])
    labels = torch.tensor([label for _, label in samples(60, seed=4)])
    with torch.no_grad():
        learner.head.bias[2:] += 20
    assert set(learner.predict(asked).tolist()) <= {2, 3}
    before = learner.ledger.spent_on["evaluation_training"].real
    weights = learner.head.weight.detach().clone()
    learner.before_prediction()
    predicted = learner.predict(asked)
    assert (predicted == labels).double().mean() > 0.9
    assert learner.ledger.spent_on["evaluation_training"].real > before
    assert torch.equal(weights, learner.head.weight)  # the model itself is left alone
    correction = technique_of(learner)._correction
    with torch.no_grad():
        plain = learner.model.eval()(learner.inputs_of(asked))
    torch.testing.assert_close(learner.logits(asked)[:, :2], plain[:, :2])
    torch.testing.assert_close(learner.logits(asked)[:, 2:], correction.alpha * plain[:, 2:] + correction.beta)


@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("correction", [IDENTITY, Correction(1, 0.5, 0.3)])
def test_the_loss_is_the_hand_written_one(correction: Correction, offline: bool) -> None:
    learner = taught_learner(temperature=3.0, offline=True)  # whose teacher stays that of the boundary
    technique = technique_of(learner)
    technique._taught, technique.offline = correction, offline
    of_labels, of_teacher = (2 / 4, 2 / 4) if offline else (1, 1)
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.randn(5, 1, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3, 3])
    logits = torch.randn(5, 4, generator=generator, requires_grad=True)
    step = Step(5, np.zeros(0, np.int64), images, labels, {})
    loss = technique.loss(step, logits)
    (gradient,) = torch.autograd.grad(loss, logits)
    old = technique._teacher
    hidden = torch.relu(images.flatten(1) @ old["stem.1.weight"].T + old["stem.1.bias"])
    answers = hidden @ old["head.weight"].T + old["head.bias"]
    if correction is not IDENTITY:
        answers[:, 1] = 0.5 * answers[:, 1] + 0.3
    target = torch.softmax(answers / 3, 1)
    assert target.shape == (5, 2)
    expected = (torch.softmax(logits.detach(), 1) - torch.eye(4)[labels]) / 5 * of_labels
    soft = torch.softmax(logits.detach()[:, :2] / 3, 1)
    expected[:, :2] += (soft - target) / 5 / 3 * of_teacher
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_the_teacher_answers_with_its_own_correction() -> None:
    learner = taught_learner()
    technique = technique_of(learner)
    assert technique._taught == IDENTITY  # before the first boundary there is nothing to correct
    feed(learner, 36, 48)
    learner.before_prediction()
    fitted = technique._correction
    assert fitted.alpha != 1
    learner.end_task()
    assert technique._taught == fitted
    feed(learner, 48, 60)
    learner.before_prediction()
    assert technique._taught == fitted
    other = learner_of(BIC, own=SOON)
    other.method.load_state(technique.state())
    assert technique_of(other)._taught == fitted


def test_offline_the_teacher_is_the_model_at_the_boundary_and_stays() -> None:
    learner = learner_of(BIC, own={**SOON, "offline": True})
    feed(learner, 0, 24)
    learner.end_task()
    at_boundary = {name: value.clone() for name, value in learner.model.state_dict().items()}
    feed(learner, 24, 48)
    learner.learn(next(samples(1))[0], 99)  # a class more
    kept = technique_of(learner)._teacher
    for name, value in at_boundary.items():
        assert torch.equal(kept[name], value)
        if not name.startswith("head"):
            assert not torch.equal(learner.model.state_dict()[name], value)


def test_online_the_teacher_is_renewed_when_a_class_comes_and_teaches_the_others() -> None:
    """As it was before the class: whose row, which has learned nothing, is not taught."""
    learner = learner_of(BIC, own=SOON, slots=40, iterations=2.0)
    stream = [*samples(120)]
    technique = technique_of(learner)
    for image, label in (each for each in stream if each[1] < 2):
        learner.learn(image, label)
    assert technique._rows == 0  # nobody teaches before the first boundary
    learner.end_task()
    at_boundary = technique._teacher
    assert technique._rows == 2
    for image, label in [each for each in stream if each[1] == 0][:9]:
        learner.learn(image, label)
    assert technique._teacher is at_boundary
    before = {name: value.clone() for name, value in learner.model.state_dict().items()}
    learner.learn(*next(each for each in stream if each[1] == 2))
    assert technique._rows == 2
    for name, value in before.items():
        assert torch.equal(technique._teacher[name][: len(value)], value)
    assert any(not torch.equal(technique._teacher[name][: len(value)], value) for name, value in at_boundary.items())
    learner.learn(*next(each for each in stream if each[1] == 3))
    assert technique._rows == 3
    learner.end_task()
    assert technique._rows == 4


def test_online_labels_are_learned_as_much_with_many_old_classes_as_with_few() -> None:
    """Offline the cross-entropy has weight m / (n + m): none when every class is old."""
    images, labels = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3])
    weights = []
    for offline in (False, True):
        learner = learner_of(BIC, own={**SOON, "offline": offline})
        feed(learner, 0, 24)
        learner.end_task()
        technique = technique_of(learner)
        step = Step(4, np.zeros(0, np.int64), images, labels, {})
        logits = learner.network.answers_of(technique._teacher, images).requires_grad_()  # as the teacher has it
        (gradient,) = torch.autograd.grad(technique.loss(step, logits), logits)
        of_labels = (torch.softmax(logits.detach(), 1) - torch.eye(4)[labels]) / 4
        weights.append(float((gradient * of_labels).sum() / of_labels.square().sum()))
    assert weights == pytest.approx([1, 0], abs=1e-4)


def test_withheld_samples_are_of_every_class_and_never_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(BIC, own=SOON, slots=200)
    trained: set[bytes] = set()
    augmenter = augmenter_of(learner)

    class Noting:
        normalise = augmenter.normalise

        def __call__(self, batch: Tensor, rng: np.random.Generator) -> Tensor:
            trained.update(image.numpy().tobytes() for image in batch)
            return augmenter(batch, rng)

    monkeypatch.setattr(learner.problem, "augmenter", Noting())
    feed(learner, 0, 90)
    learner.flush()
    technique = technique_of(learner)
    kept = {sample.numpy().tobytes() for sample in technique._kept.flatten(0, 1)}
    stored = {sample.numpy().tobytes() for sample in learner.memory.gather(np.arange(len(learner.memory))).samples}
    assert len(kept) == 8
    assert not kept & (trained | stored)
    assert learner.steps == 90  # their iterations are not lost
    assert stored == {image.numpy().tobytes() for image, _ in samples(90)} - kept  # one that was replaced is no loss


def test_a_withheld_sample_that_is_replaced_goes_on_in_place_of_the_newcomer() -> None:
    technique = technique_of(learner_of(BIC, own=SOON))
    kept: list[bytes] = []
    replaced = 0
    for number, (image, _) in enumerate(samples(200), start=1):
        found = technique.admits(image, 0)
        if number % 3 or (number > 6 and found is image):
            assert found is image
        elif number <= 6:
            assert found is None
            kept.append(image.numpy().tobytes())
        else:
            assert found is not None
            kept[kept.index(found.numpy().tobytes())] = image.numpy().tobytes()
            replaced += 1
        assert [each.numpy().tobytes() for each in technique._kept[0]][: len(kept)] == kept
    assert replaced >= 3


def test_classes_stay_new_until_others_come() -> None:
    technique = technique_of(learner_of(BIC, own=SOON))
    labels = technique.learner.class_labels
    for seen, expected in ((2, (2, 0)), (2, (2, 0)), (3, (3, 2)), (3, (3, 2))):
        labels[:] = range(seen)
        technique.end_task()
        assert (technique._old, technique._before) == expected


def test_without_old_classes_nothing_is_corrected() -> None:
    learner = learner_of(BIC, own=SOON)
    learner.before_prediction()  # nothing learned yet
    feed(learner, 0, 30)
    learner.before_prediction()
    asked = torch.stack([image for image, _ in samples(5)])
    with torch.no_grad():
        assert torch.equal(learner.logits(asked), learner.model.eval()(learner.inputs_of(asked)))
    assert learner.ledger.spent_on["evaluation_training"].real == 0


def test_every_step_and_every_fit_is_charged() -> None:
    learner = learner_of(BIC, own=SOON, slots=30)
    with RealOps() as executed:
        for i in range(60):
            ran, charged = executed.total, learner.ledger.spent.real
            feed(learner, i, i + 1, task=20)
            if executed.total - ran > 10_000 and learner.steps > 1:
                assert learner.ledger.spent.real - charged == pytest.approx(executed.total - ran, rel=0.01)
            if i % 10 == 9:
                before, fits = executed.total, learner.ledger.spent_on["evaluation_training"].real
                learner.before_prediction()
                fitted = learner.ledger.spent_on["evaluation_training"].real - fits
                assert fitted == pytest.approx(executed.total - before, rel=0.02)
    assert learner.ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    assert learner.ledger.spent_on["evaluation_training"].real > 0


def test_when_the_compute_is_spent_predictions_go_on_without_a_fit() -> None:
    spent = learner_of(BIC, own=SOON)
    feed(spent, 0, 40, task=20)
    budget = Budget(Compute(spent.ledger.spent.real * 3 // 4, "real"))
    learner = learner_of(BIC, own=SOON, budget=budget)
    for i in range(60):
        feed(learner, i, i + 1, task=20)
        learner.before_prediction()
    assert learner.spent_up
    assert learner.ledger.spent.real <= (budget.compute or Compute(0, "real")).amount
    assert learner.predict(torch.stack([image for image, _ in samples(3)])).shape == (3,)


def test_bytes_are_what_is_kept() -> None:
    learner = learner_of(BIC, model="cnn8", own=SOON)
    before = learner.nbytes()
    feed(learner, 0, 40, task=20)
    learner.before_prediction()
    assert learner.nbytes() == before
    saved = tensors_of(learner)
    own = [key for key in saved if key.startswith("method.") and not key.endswith("plain")]
    kept = sum(saved[key].numel() * saved[key].element_size() for key in own)
    rows = len(saved["method._teacher.head.weight"])  # the others of the four classes are reserved
    missing = (4 - rows) * 4 * (learner.head.in_features + 1)
    numbers = 8 * (2 + 2 * 3 + 1)  # classes at the boundaries, two corrections, what the teacher knows
    assert learner.nbytes_by_item()["method"] == kept + missing + numbers


@pytest.mark.parametrize("model", ["mlp", "cnn8"])  # the teacher's convolutions keep their memory format
def test_resume_is_exact(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = small.network
    monkeypatch.setattr(small, "network", lambda name="mlp", seed=0: build(model, seed))
    assert_resumes_exactly(learner_of(BIC, own=SOON), tmp_path / "saved", 31, 45, task=20)


def test_a_correction_survives_saving() -> None:
    learner = taught_learner()
    learner.before_prediction()
    other = learner_of(BIC, own=SOON)
    other.method.load_state(learner.method.state())
    assert technique_of(other)._correction == technique_of(learner)._correction
    assert technique_of(other)._correction.alpha != 1


def test_a_class_beyond_the_declared_ones_is_trained_on() -> None:
    learner = learner_of(BIC, own=SOON, facts=dataclasses.replace(FACTS, classes=2))
    feed(learner, 0, 60, task=20)
    learner.before_prediction()
    assert len(learner.class_labels) == 4
    assert technique_of(learner)._met.shape == (2,)


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"validation": 0}, {"every": 1}, {"decay": 0.0}])
def test_bad_settings_are_one_line(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetedError, match=rf"method\.{next(iter(settings))} must be"):
        learner_of(BIC, own=settings)


def test_classes_must_be_declared() -> None:
    with pytest.raises(BudgetedError, match="say how many classes there are"):
        learner_of(BIC, facts=dataclasses.replace(FACTS, classes=None))
