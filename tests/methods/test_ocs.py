"""OCS: scores against gradients taken one by one, the choice against all choices, and no look ahead."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.settings import from_pairs
from budgeted.methods import METHODS
from budgeted.methods.ocs import OnlineCoreset, coreset_scores
from budgeted.network.per_sample import PerSampleGradients
from tests.bright_rows import augmenter_of, samples
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, feed, learner_of

OCS = METHODS["ocs"]


def made(model: str = "mlp", **more: Any) -> Learner:
    return learner_of(OCS, model, **{"slots": 20, **more})


def arrived(count: int) -> tuple[Tensor, Tensor]:
    found = [*samples(count, seed=4)]
    return torch.stack([image for image, _ in found]), torch.tensor([label for _, label in found])


def gradient(learner: Learner, images: Tensor, labels: Tensor) -> Tensor:
    """Of all parameters, by an ordinary backward in evaluation mode."""
    learner.model.eval()
    loss = F.cross_entropy(learner.model(learner.inputs_of(images)), labels)
    found = torch.autograd.grad(loss, [*learner.model.parameters()])
    return torch.cat([each.flatten() for each in found]).double()


def scores_by_hand(
    learner: Learner, images: Tensor, labels: Tensor, stored: tuple[Tensor, Tensor], tau: float
) -> Tensor:
    """The paper's three terms, each written down as it stands there."""
    with learner.network.aside():
        each = [gradient(learner, images[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
        mean = torch.stack(each).mean(0)
        past = gradient(learner, *stored) if len(stored[1]) else None
    scores = []
    for i, own in enumerate(each):
        score = F.cosine_similarity(own, mean, 0)
        others = [F.cosine_similarity(own, other, 0) for j, other in enumerate(each) if j != i]
        score = score - sum(others) / len(others)
        scores.append(score if past is None else score + tau * F.cosine_similarity(own, past, 0))
    return torch.stack(scores)


@pytest.mark.parametrize("model", ["mlp", "cnn8"])
def test_the_pick_maximises_the_score_over_all_choices(model: str) -> None:
    learner = made(model, own={"tau": 10.0})
    feed(learner, 0, 24 if model == "mlp" else 16)
    known = len(learner.class_labels)
    images, labels = arrived(18)
    images, labels = images[10:], labels[10:] % known
    state = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    technique = learner.method
    assert isinstance(technique, OnlineCoreset)

    rng = np.random.default_rng(0)
    rng.bit_generator.state = learner.generator("technique").bit_generator.state
    others = np.flatnonzero(~np.isin(learner.memory.labels, labels.numpy()))
    stored = learner.memory.gather(rng.choice(others, min(4, len(others)), replace=False).astype(np.int64))
    assert len(stored.labels) > 0
    assert not {*stored.labels.tolist()} & {*labels.tolist()}
    learner.model.train()
    picked = technique.pick(images, labels)
    assert learner.model.training
    expected = scores_by_hand(learner, images, labels, (stored.samples, stored.labels), 10.0)
    choices = {choice: float(expected[[*choice]].sum()) for choice in itertools.combinations(range(8), 4)}
    best = max(choices, key=lambda choice: choices[choice])
    assert tuple(sorted(picked.tolist())) == best
    assert sorted(choices.values())[-1] > sorted(choices.values())[-2] + 1e-4  # no other would do as well
    assert all(torch.equal(state[name], tensor) for name, tensor in learner.model.state_dict().items())
    learner.waiting, learner.picked = [*zip(images, labels.tolist(), strict=True)], picked.tolist()
    learner.stacked = None
    stored_before, learner.memory._slots = len(learner.memory), None
    learner.pace.reset()
    learner.flush()  # just those that were picked are offered, and a pick holds for its own samples alone
    assert len(learner.memory) == stored_before + 4
    assert learner.picked is None


@pytest.mark.parametrize("affinity", [False, True])
def test_scores_are_the_papers(affinity: bool) -> None:
    learner = made()
    feed(learner, 0, 24)
    images, labels = arrived(12)
    batch = learner.memory.gather(np.arange(5 if affinity else 0))
    stored = batch.samples, batch.labels
    found = coreset_scores(learner, images, labels, stored, 3.0).double()
    torch.testing.assert_close(found, scores_by_hand(learner, images, labels, stored, 3.0), rtol=1e-4, atol=1e-4)


class Seen:
    """Stands in for the augmentation and keeps the batches that training sees."""

    def __init__(self, learner: Learner) -> None:
        self.augmenter, self.batches = augmenter_of(learner), []  # type: ignore[var-annotated]

    def __call__(self, batch: Tensor, rng: np.random.Generator) -> Tensor:
        self.batches.append([image.numpy().tobytes() for image in batch])
        return self.augmenter(batch, rng)

    def normalise(self, images: Tensor) -> Tensor:
        return self.augmenter.normalise(images)


def test_half_of_what_arrived_is_trained_on_and_the_last_half_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = made(slots=40, iterations=0.5)
    seen = Seen(learner)
    monkeypatch.setattr(learner.problem, "augmenter", seen)
    stream = [image.numpy().tobytes() for image, _ in samples(27)]
    for number, (image, label) in enumerate(samples(24), 1):
        learner.learn(image, label)
        assert learner.steps == number // 8 * 4  # nothing is trained on, or looked at, before it has arrived
        assert len(learner.memory) == number // 8 * 4
        for batch in seen.batches:
            assert set(batch) <= set(stream[:number])
    for group in range(3):
        here = set(stream[8 * group : 8 * group + 8])
        for batch in seen.batches[4 * group : 4 * group + 4]:
            assert set(batch[:4]) <= here
            assert len(set(batch[:4])) == 4
            assert len(batch) == 4 + min(4, 4 * group)
        stored = {sample.numpy().tobytes() for sample in learner.memory.gather(np.arange(len(learner.memory))).samples}
        assert stored & here == set(seen.batches[4 * group + 3][:4])  # those of the last step
    for image, label in [*samples(27)][24:]:
        learner.learn(image, label)
    learner.flush()  # fewer than have places: all are trained on and stored
    assert len(learner.memory) == 15
    assert set(seen.batches[-1][:3]) == set(stream[24:])


@pytest.mark.parametrize("model", ["mlp", "cnn8"])
def test_everything_it_runs_is_charged(model: str) -> None:
    assert_charged_as_executed(made(model), 36 if model == "mlp" else 16)


def test_what_it_runs_by_torch_func_is_charged() -> None:
    learner = made()
    learner.network._per_sample = PerSampleGradients(learner.model)
    learner.network._per_sample.by_layer = False
    assert_charged_as_executed(learner, 24)


def test_resume_is_exact(tmp_path: Path) -> None:
    assert_resumes_exactly(made(), tmp_path / "saved", 21, 36)


def test_bytes_are_those_of_er_and_of_more_samples_that_wait() -> None:
    er, ocs = learner_of(METHODS["er"], slots=20).nbytes_by_item(), made().nbytes_by_item()
    assert er.pop("selection") == 8  # how many have come, which a reservoir counts
    assert ocs.pop("stream batch") == 2 * er.pop("stream batch") == 8 * (64 + 1)
    assert ocs == er


def test_a_compute_budget_holds() -> None:
    whole = made()
    feed(whole, 0, 40)
    budget = Budget(Compute(whole.ledger.spent.real // 2, "real"))
    learner = made(budget=budget)
    feed(learner, 0, 40)
    assert learner.spent_up
    assert 0.25 * whole.ledger.spent.real < learner.ledger.spent.real <= whole.ledger.spent.real // 2


def test_a_class_that_appears_late() -> None:
    learner = made()
    feed(learner, 0, 24)
    for image, _ in samples(8):
        learner.learn(image, 11)
    assert learner.class_labels[-1] == 11
    assert learner.memory.counts[-1] > 0


def test_it_takes_other_parts() -> None:
    method = OCS().with_parts(retrieval="mir", selection="aser", freezing="adaptive")
    learner = learner_of(method, slots=12)
    feed(learner, 0, 32)
    assert learner.steps == 32


@pytest.mark.parametrize(("name", "value"), [("choices", "0"), ("tau", "-1"), ("tau", "nan"), ("kappa", "3")])
def test_bad_settings_are_one_line(name: str, value: str) -> None:
    with pytest.raises(BudgetedError) as refused:
        OnlineCoreset(**from_pairs({f"method.{name}": value}, OnlineCoreset(), False).method)
    assert name in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_batch_without_a_place_for_the_stream_is_refused() -> None:
    with pytest.raises(BudgetedError, match=r"raise learner\.batch_size"):
        learner_of(
            OnlineCoreset(stream_share=0.1),
            settings=Settings(LearnerSettings(batch_size=4)),
        )
