"""REMIND: replay until the base is over; then the front rests, samples are codes, and the rest alone is trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.cluster.vq import kmeans2
from torch import Tensor, nn

from budgeted.budget import Budget, Compute
from budgeted.errors import BudgetedError
from budgeted.learner import Learner
from budgeted.methods import METHODS, Step
from budgeted.methods.crops import boxes, resized, weights_of
from budgeted.methods.remind import REMIND, mixed
from budgeted.network.front import FrontAndRest
from budgeted.network.quantiser import ProductQuantiser, codes_of, drawn_from, improved, restored, vectors_of
from tests.bright_rows import FACTS, samples
from tests.methods import small
from tests.methods.small import assert_charged_as_executed, assert_resumes_exactly, body_of, feed, learner_of
from tests.nets import NETS, seeded

NAME = "remind"
LENGTH = 40
KNOWN = dataclasses.replace(FACTS, samples=LENGTH)  # the base is over after 24
OVER = 24


def made(model: str = "tiny", **more: Any) -> Learner:
    own = {"codebooks": 8, **more.pop("own", {})}  # three channels of the 24 each: less to run
    return learner_of(METHODS[NAME], model, **{"facts": KNOWN, "slots": 200, "own": own, **more})


def model_of(learner: Learner) -> FrontAndRest:
    assert isinstance(learner.model, FrontAndRest)
    return learner.model


def front_by_hand(model: FrontAndRest, images: Tensor) -> Tensor:
    """The stem of `tiny`, with running statistics."""
    convolution, norm = model.model.get_submodule("stem.0"), model.model.get_submodule("stem.1")
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    maps = F.conv2d(images, convolution.weight, convolution.bias, padding=1)
    return F.relu(F.batch_norm(maps, norm.running_mean, norm.running_var, norm.weight, norm.bias))


def rest_by_hand(model: FrontAndRest, features: Tensor, training: bool) -> Tensor:
    """The body of `tiny`, its mean and its head."""
    first, norm, second = body_of(model.model.get_submodule("body"))
    head = model.model.get_submodule("head")
    assert isinstance(head, nn.Linear)
    maps = F.conv2d(features, first.weight, first.bias, stride=2, padding=1)
    mean, variance = (None, None) if training else (norm.running_mean, norm.running_var)
    inside = F.relu(F.batch_norm(maps, mean, variance, norm.weight, norm.bias, training=training))
    return F.relu(F.conv2d(inside, second.weight, second.bias)).mean((2, 3)) @ head.weight.T + head.bias


# -- the quantiser --------------------------------------------------------------------------------------------------


def test_a_code_is_the_nearest_entry_of_every_part() -> None:
    generator = torch.Generator().manual_seed(0)
    features, quantiser = torch.randn(3, 12, 2, 5, generator=generator), ProductQuantiser(12, 5)
    assert quantiser.parts == 4  # five do not divide twelve
    quantiser.centroids.normal_(generator=generator)
    codes = quantiser.codes(features)
    assert (codes.shape, codes.dtype) == ((3, 2, 5, 4), torch.uint8)
    back = quantiser.restored(codes)
    assert back.shape == features.shape
    for sample, row, column, part in np.ndindex(3, 2, 5, 4):
        piece = features[sample, 3 * part : 3 * part + 3, row, column]
        distances = [(piece - entry).square().sum().item() for entry in quantiser.centroids[part]]
        number = int(codes[sample, row, column, part])
        assert distances[number] == pytest.approx(min(distances), rel=1e-4, abs=1e-5)
        assert torch.equal(back[sample, 3 * part : 3 * part + 3, row, column], quantiser.centroids[part, number])


def test_the_codebooks_are_trained_as_another_library_trains_them() -> None:
    generator = np.random.default_rng(0)
    vectors = torch.from_numpy(generator.normal(size=(3000, 6)).astype(np.float32))
    centroids = drawn_from(vectors, torch.zeros(2, 256, 3), generator)
    for part in range(2):
        own = vectors[:, 3 * part : 3 * part + 3]
        assert all((own == entry).all(1).any() for entry in centroids[part])  # begins with vectors that there are
        expected, _ = kmeans2(own.double().numpy(), centroids[part].double().numpy(), iter=1, minit="matrix")
        np.testing.assert_allclose(improved(vectors, centroids)[part], expected, rtol=1e-3, atol=1e-4)
    before, after = centroids, centroids
    for _ in range(10):
        after = improved(vectors, after)
    errors = [(restored(codes_of(vectors, each), each) - vectors).square().sum() for each in (before, after)]
    assert errors[1] < 0.8 * errors[0]
    lonely = improved(vectors[:1], centroids)  # all entries but one are nearest to nothing, and stay
    assert (lonely != centroids).any(2).sum(1).tolist() == [0, 0] or (lonely != centroids).any(2).sum(1).max() == 1


def test_an_entry_that_is_nearest_to_nothing_halves_the_widest_cluster() -> None:
    vectors = torch.tensor([0.0, 0, 0, 0, 0, 9, 11, 22, 38])[:, None]
    entries = torch.tensor([0.0, 0, 10, 30])[None, :, None]  # the second is where the first is
    assert improved(vectors, entries).flatten().tolist() == [0, 38, 10, 22]  # 30 less and more its deviation


def test_behind_a_relu_no_entry_is_wasted() -> None:
    generator = np.random.default_rng(0)
    vectors = torch.from_numpy(generator.normal(size=(2000, 4)).astype(np.float32)).relu()  # a quarter begins at zeros
    centroids = drawn_from(vectors, torch.zeros(2, 256, 2), generator)
    assert all(len(each.unique(dim=0)) < 240 for each in centroids)
    for _ in range(10):
        centroids = improved(vectors, centroids)
    codes = codes_of(vectors, centroids)
    assert [len(codes[..., part].unique()) for part in range(2)] == [256, 256]


# -- features are varied --------------------------------------------------------------------------------------------


def test_crops_are_those_that_torch_resizes() -> None:
    generator = np.random.default_rng(1)
    features = torch.randn(40, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    found = boxes(40, (6, 8), 2 / 7, generator)
    down, across = weights_of(found, (6, 8))
    got = resized(features, down, across)
    for sample, (top, left, height, width) in enumerate(found.tolist()):
        assert 0.2 * 48 < height * width <= 48
        crop = features[sample : sample + 1, :, top : top + height, left : left + width]
        expected = F.interpolate(crop, (6, 8), mode="bilinear", align_corners=False)
        torch.testing.assert_close(got[sample : sample + 1], expected, rtol=1e-4, atol=1e-5)
    assert len({tuple(box) for box in found.tolist()}) > 20


def test_replayed_features_are_mixed_in_pairs_those_of_the_stream_are_not() -> None:
    features, others = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 0, 1])
    got = mixed(features, 2, 0.3, others)
    assert torch.equal(got[:2], features[:2])
    for row, other in ((2, 4), (3, 2), (4, 3)):
        torch.testing.assert_close(got[row], 0.3 * features[row] + 0.7 * features[other])


def test_logits_and_loss_of_a_step_are_the_hand_written_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = made(own={"mixup": 1.0})
    feed(learner, 0, OVER + 9)
    model, method, compared = model_of(learner), learner.method, []
    assert isinstance(method, REMIND)
    own_loss = method.loss

    def comparing(step: Step, logits: Tensor) -> Tensor:
        found = own_loss(step, logits)
        share, others = method.mix
        by_hand = rest_by_hand(model, step.inputs, training=True)
        torch.testing.assert_close(logits, by_hand, rtol=1e-3, atol=1e-4)
        single = F.cross_entropy(by_hand, step.labels, reduction="none")
        for row, other in enumerate(others.tolist(), start=step.new):
            of_other = F.cross_entropy(by_hand[row : row + 1], step.labels[step.new + other : step.new + other + 1])
            single[row] = share * single[row] + (1 - share) * of_other
        assert found.item() == pytest.approx(single.mean().item(), rel=1e-3)
        compared.append((step.new, len(others), share))
        return found

    monkeypatch.setattr(method, "loss", comparing)
    feed(learner, OVER + 9, LENGTH)
    assert compared
    assert all(new == 4 and replayed == 4 and 0 < share < 1 for new, replayed, share in compared)


# -- the base, and what comes after ---------------------------------------------------------------------------------


def test_until_the_base_is_over_it_is_er() -> None:
    """With the selection of ER it learns the same bits as ER does, on the same memory of images."""
    remind = learner_of(METHODS[NAME](codebooks=2).with_parts(selection="reservoir"), "tiny", facts=KNOWN, slots=200)  # type: ignore[call-arg]
    er = learner_of(METHODS["er"], "tiny", facts=KNOWN, slots=200)
    for learner in (remind, er):
        feed(learner, 0, OVER)
    for name, value in er.model.state_dict().items():
        assert torch.equal(value, remind.model.state_dict()[f"model.{name}"])
    assert torch.equal(*(each.memory.gather(np.arange(OVER)).samples for each in (remind, er)))
    feed(remind, OVER, OVER + 1)
    assert model_of(remind).over


def test_afterwards_the_front_rests_and_is_run_for_what_arrives_alone() -> None:
    learner = made()
    feed(learner, 0, OVER + 1)
    model = model_of(learner)
    calls = []
    handle = model.model.get_submodule("stem.0").register_forward_hook(lambda *given: calls.append(len(given[2])))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps = learner.steps
    feed(learner, OVER + 1, LENGTH)
    handle.remove()
    assert learner.steps - steps >= 12
    assert calls == [1] * (LENGTH - OVER - 1)  # once for every sample, in no step
    now = model.state_dict()
    moved = {name for name in now if not torch.equal(now[name], before[name])}
    assert not any(".stem." in name or "quantiser" in name for name in moved)
    assert {name for name in now if ".body." in name or ".head." in name} <= moved


def test_stored_are_the_codes_of_the_features() -> None:
    learner = made()
    feed(learner, 0, LENGTH)
    model = model_of(learner)
    stored = learner.memory.gather(np.arange(len(learner.memory)))
    assert stored.samples.shape[1:] == (8, 8, 8)
    assert len(learner.memory) == learner.memory.capacity == 200 * 65 // (8 * 8 * 8 + 1)  # in the same bytes
    images = torch.stack([image for image, _ in samples(LENGTH)])
    model.eval()
    with torch.no_grad():
        codes = codes_of(front_by_hand(model, learner.problem.inputs(images)), model.quantiser.centroids)  # type: ignore[arg-type]
    known = {code.numpy().tobytes(): label for code, (_, label) in zip(codes, samples(LENGTH), strict=True)}
    found = [known.get(code.numpy().tobytes()) for code in stored.samples]
    assert sum(one == two for one, two in zip(found, stored.labels.tolist(), strict=True)) >= len(found) - 1


def test_predictions_read_quantised_features() -> None:
    learner = made()
    feed(learner, 0, LENGTH)
    model, asked = model_of(learner), torch.stack([image for image, _ in samples(6, seed=2)])
    with torch.no_grad():
        model.eval()
        features = front_by_hand(model, learner.problem.inputs(asked))  # type: ignore[arg-type]
        quantised = model.quantiser.restored(model.quantiser.codes(features))
        expected = rest_by_hand(model, quantised, training=False)
    assert not torch.allclose(features, quantised)
    torch.testing.assert_close(learner.logits(asked), expected[:, :4], rtol=1e-3, atol=1e-4)


def test_the_quantiser_is_trained_on_what_is_stored() -> None:
    learner = made()
    feed(learner, 0, OVER)
    model = model_of(learner)
    images = learner.memory.gather(np.arange(len(learner.memory))).samples
    model.eval()
    with torch.no_grad():
        vectors = vectors_of(front_by_hand(model, learner.problem.inputs(images)))  # type: ignore[arg-type]
    model.train()
    feed(learner, OVER, OVER + 1)
    again = restored(codes_of(vectors, model.quantiser.centroids), model.quantiser.centroids)
    left = (again - vectors).square().sum() / (vectors - vectors.mean(0)).square().sum()
    assert left < 0.15  # a byte for three channels


def test_where_the_length_is_unknown_the_first_task_is_the_base() -> None:
    learner = made(facts=FACTS)
    feed(learner, 0, 14)
    assert not model_of(learner).over
    learner.end_task()
    assert model_of(learner).over
    feed(learner, 14, 30)
    assert learner.steps == 30
    assert learner.memory.gather(np.arange(2)).samples.shape == (2, 8, 8, 8)


# -- what holds for every method ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny", "mlp"])
def test_every_step_is_charged_as_executed(model: str) -> None:
    learner = made(model)
    assert_charged_as_executed(learner, LENGTH)
    assert model_of(learner).over


@pytest.mark.parametrize(
    "parts", [{"freezing": "adaptive"}, {"freezing": "constant"}, {"retrieval": "sar"}, {"retrieval": "mir"}], ids=str
)
def test_with_parts_that_are_not_its_own_it_is_charged_as_executed(parts: dict[str, str]) -> None:
    settings = made().settings
    if parts.get("freezing") == "adaptive":
        settings = dataclasses.replace(settings, freezing={"ema": 0.3, "ema_start": "first"})
    if parts.get("freezing") == "constant":
        settings = dataclasses.replace(settings, freezing={"n": 1})
    learner = learner_of(METHODS[NAME]().with_parts(**parts), "tiny", settings=settings, facts=KNOWN, slots=200)
    assert_charged_as_executed(learner, 34)
    assert "model.body.0" in learner.rested or "freezing" not in parts  # beyond the front


@pytest.mark.parametrize("at", [OVER - 5, OVER + 6])
def test_resumes_exactly(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = small.network
    monkeypatch.setattr(small, "network", lambda name="tiny", seed=0: build("tiny", seed))
    assert_resumes_exactly(made(), tmp_path / "saved", at, LENGTH)


def test_bytes_stay_within_the_budget() -> None:
    learner = made()
    budget = learner.nbytes()
    limited = made(slots=None, budget=Budget(bytes=budget))
    for number, (image, label) in enumerate(samples(LENGTH)):
        limited.learn(image, label)
        assert limited.nbytes() <= budget, number
    assert model_of(limited).over
    assert limited.nbytes_by_item()["buffers"] >= 4 * 24 * 256  # the codebooks, from the start
    assert learner.nbytes_by_item()["buffers"] == limited.nbytes_by_item()["buffers"]


def test_codes_that_cannot_be_paid_are_not_learned() -> None:
    whole = made()
    feed(whole, 0, OVER)
    amount = whole.ledger.spent.real + 1_000_000
    learner = made(budget=Budget(Compute(amount, "real")))
    feed(learner, 0, LENGTH)
    assert learner.spent_up
    assert not model_of(learner).over
    assert learner.ledger.spent.real <= amount
    assert learner.memory.gather(np.arange(2)).samples.shape == (2, 1, 8, 8)


def test_when_the_compute_is_spent_nothing_more_is_coded() -> None:
    whole = made()
    feed(whole, 0, OVER + 6)
    learner = made(budget=Budget(Compute(whole.ledger.spent.real, "real")))
    feed(learner, 0, LENGTH)
    assert model_of(learner).over
    assert learner.spent_up
    assert learner.ledger.spent.real <= whole.ledger.spent.real
    stored = len(learner.memory)
    feed(learner, 0, 6)
    assert (len(learner.memory), learner.arrived) == (stored, LENGTH + 6)
    asked = torch.stack([image for image, _ in samples(5)])
    assert set(learner.predict(asked).tolist()) <= {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["vit", "dense"])
def test_what_cannot_be_cut_is_refused_in_one_line(name: str) -> None:
    net = NETS[name]
    images = net.batch(torch.Generator().manual_seed(0))[0][:2]
    with pytest.raises(BudgetedError, match="cannot be cut into a front and a rest") as refused:
        FrontAndRest(seeded(net.build), images, 1, 32)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["resnet", "standard resnet", "plain cnn", "separable"])
@pytest.mark.parametrize("trained", [0, 2, 99])
def test_front_and_rest_are_the_model(name: str, trained: int) -> None:
    net = NETS[name]
    images = net.batch(torch.Generator().manual_seed(0))[0][:2]
    model = FrontAndRest(seeded(net.build), images, trained, 32).eval()
    with torch.no_grad():
        expected = model(images)
        features = model.front(images)
        assert tuple(features.shape[1:]) == model.shape
        model.go_over()
        torch.testing.assert_close(model(features), expected)
