"""What holds for a learner whatever its method: the ledger, the seed, predictions, precision, its parts."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from budgeted.audit import ExecutedOnData
from budgeted.budget import total
from budgeted.errors import BudgetedError, UnknownName
from budgeted.learner import Learner, LearnerSettings, Settings
from budgeted.learner.generators import NAMES, Generators
from budgeted.learner.state import numbers_of, tensors_of, weights_digest
from budgeted.methods import METHODS, Method, Step
from budgeted.methods.al_sar import AL
from tests.bright_rows import FACTS, augmenter_of, samples
from tests.learner.small import cnn8, images, make, settings_of, tiny

# -- the ledger is what was executed ------------------------------------------------------------------------------


def longest_wait(learner: Learner) -> int:
    """Arrivals after which every iteration due has been run."""
    if not learner.method.trains:
        return 10  # until the next evaluation of the test (GDumb)
    waiting = max(1, learner.stream_batch * learner.method.choices)
    withheld = (
        1 if learner.method.name == "bic" else 0
    )  # every tenth sample of a class: the next one runs its iterations
    return waiting + withheld


MIXTURES: dict[str, Method | type[Method]] = {
    **METHODS,
    "er with everything": METHODS["er"]().with_parts(retrieval="sar", freezing="adaptive"),
    "vanilla, constant, class-balanced": METHODS["vanilla"]().with_parts(
        freezing="constant", retrieval="class-balanced"
    ),
    "sar, random": METHODS["sar"]().with_parts(freezing="random"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_whole_run_charges_what_it_executes(name: str) -> None:
    """From the first sample on: growing batches, growing head, frozen and refreshed steps."""
    learner = make(MIXTURES[name], slots=12, settings=settings_of(MIXTURES[name], batch_size=6))
    with ExecutedOnData() as executed:
        for arrived, (image, label) in enumerate(samples(30), 1):
            executed_before, charged_before, steps = executed.total, learner.ledger.spent.real, learner.steps
            learner.learn(image, label)
            if arrived % 10 == 0:
                learner.end_task()
                learner.before_prediction()
            ran, charged = executed.total - executed_before, learner.ledger.spent.real - charged_before
            if steps > 0:  # in the first step the closed form is checked against autograd, once
                assert charged == pytest.approx(ran, rel=0.01)
            # an iteration is run or still due, at the latest until the next batch of the stream or the next evaluation
            assert learner.steps + learner.due == arrived
            assert learner.due < (longest_wait(learner) if arrived > 1 else 2)
    assert learner.ledger.steps == learner.steps
    assert learner.ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    if learner.method.freezing != "none":
        assert learner.mean_frozen_share > 0


def test_the_ledger_is_the_sum_of_its_steps() -> None:
    learner = make("al-sar")
    steps = []
    for image, label in samples(20):
        before = learner.steps
        learner.learn(image, label)
        if learner.steps == before + 1:
            assert learner.last is not None
            steps.append(total(learner.last.costs.values()))
        else:
            steps.append(learner.ledger.spent - total(steps))  # none for the first sample, two for the second
    assert total(steps) == learner.ledger.spent
    assert learner.ledger.steps == learner.steps == len(steps) == 20


# -- same seed, same run ------------------------------------------------------------------------------------------


@cache
def digest_of(name: str, seed: int, repetition: int) -> str:
    state = torch.random.get_rng_state()
    torch.manual_seed(repetition)  # what others do to the global generators must not matter
    try:
        learner = make(name, tiny(), seed=seed)
        for arrived, (image, label) in enumerate(samples(48), 1):
            learner.learn(image, label)
            if arrived % 12 == 0:
                learner.end_task()
        learner.before_prediction()
        return weights_digest(learner)
    finally:
        torch.random.set_rng_state(state)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_weights(name: str) -> None:
    assert digest_of(name, 1, 0) == digest_of(name, 1, 1)
    assert digest_of(name, 1, 0) != digest_of(name, 2, 0)


def test_methods_differ() -> None:
    assert len({digest_of(name, 1, 0) for name in METHODS}) == len(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_global_generators_are_left_alone(name: str) -> None:
    # the legacy state is what a library that calls numpy.random.seed shares with everyone
    legacy = np.random.get_state()  # noqa: NPY002
    assert isinstance(legacy, tuple)
    model = tiny()
    torch_before, numpy_before = torch.random.get_rng_state(), legacy[1].copy()
    learner = make(name, model)
    for image, label in samples(12):
        learner.learn(image, label)
    assert torch.equal(torch.random.get_rng_state(), torch_before)
    after = np.random.get_state()  # noqa: NPY002
    assert isinstance(after, tuple)
    assert np.array_equal(after[1], numpy_before)


def test_generators_are_independent_and_saved_exactly() -> None:
    generators, untouched = Generators(5), Generators(5)
    generators["retrieval"].random(100)
    for name in NAMES:
        same = generators[name].random() == untouched[name].random()
        assert same == (name != "retrieval")
    assert len({Generators(5)[name].random() for name in NAMES}) == len(NAMES)
    assert Generators(5)["head"].random() != Generators(6)["head"].random()
    saved = json.loads(json.dumps(generators.state()))
    other = Generators(0)
    other.load_state(saved)
    for name in NAMES:
        assert np.array_equal(other[name].random(7), generators[name].random(7))


def test_what_one_part_draws_moves_no_other() -> None:
    """A run that draws more for its augmentation stores and replays the same samples."""
    from budgeted.learner import Augmentation

    runs = []
    for ops in (0, 2):
        chosen = dataclasses.replace(settings_of(METHODS["vanilla"]), augmentation=Augmentation(randaugment_ops=ops))
        learner = make("vanilla", tiny(), slots=5, settings=chosen)
        for image, label in samples(24):
            learner.learn(image, label)
        runs.append(learner)
    first, second = (run.generators.state() for run in runs)
    assert {name for name in NAMES if first[name] != second[name]} == {"augmentation"}
    assert torch.equal(*(run.memory.gather(np.arange(5)).samples for run in runs))


# -- predictions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_predicting_while_learning_changes_nothing(name: str) -> None:
    quiet, asked = make(name, tiny()), make(name, tiny())
    for image, label in samples(20):
        quiet.learn(image, label)
        asked.learn(image, label)
        asked.predict(images(3))
        assert asked.model.training == quiet.model.training
    assert json.dumps(numbers_of(quiet)) == json.dumps(numbers_of(asked))
    first, second = tensors_of(quiet), tensors_of(asked)  # batch norm statistics, moments and memory among them
    assert first.keys() == second.keys()
    # a logit or a loss that a slot does not have yet is NaN
    assert [key for key in first if not torch.allclose(first[key], second[key], rtol=0, atol=0, equal_nan=True)] == []


def test_predictions_are_labels_and_do_not_depend_on_the_batch() -> None:
    learner = make("vanilla")
    for image, label in samples(24):
        learner.learn(image, label + 100)
    asked = images(10)
    together = learner.predict(asked)
    assert set(together.tolist()) <= {100, 101, 102, 103}
    assert together.tolist() == [int(learner.predict(image[None])) for image in asked]
    torch.testing.assert_close(learner.outputs(asked, batch=3), learner.logits(asked))


def test_bad_samples_are_refused_and_leave_nothing_behind() -> None:
    learner = make("al-sar")
    good = images(1)[0]
    with pytest.raises(BudgetedError, match="call learn"):
        learner.predict(good[None])
    for bad in (good.float(), good[0], torch.zeros(3, 8, 8, dtype=torch.uint8), good.to(torch.int64)):
        with pytest.raises(BudgetedError, match=r"a sample must be uint8 of shape 1x8x8, got \w+ of shape"):
            learner.learn(bad, 0)
    assert (learner.arrived, learner.class_labels, len(learner.memory)) == (0, [], 0)
    learner.learn(good, 0)
    with pytest.raises(BudgetedError, match="a sample must be uint8"):
        learner.predict(good)  # one image without a batch
    with pytest.raises(BudgetedError, match="a sample must be uint8"):
        learner.predict(good[None].float())


def test_predicting_nothing_is_no_crash() -> None:
    learner = make("vanilla", tiny())
    learner.learn(images(1)[0], 3)
    assert learner.predict(images(1)[:0]).shape == (0,)


# -- ER -----------------------------------------------------------------------------------------------------------


class Seen:
    """An augmenter that notes the raw batches it is given."""

    def __init__(self, learner: Learner) -> None:
        self.augmenter = augmenter_of(learner)
        self.normalise = self.augmenter.normalise
        self.learner = learner
        self.batches: list[Tensor] = []
        self.stored: list[int] = []

    def __call__(self, batch: Tensor, rng: np.random.Generator) -> Tensor:
        self.batches.append(batch.clone())
        self.stored.append(len(self.learner.memory))
        return self.augmenter(batch, rng)


def test_er_trains_on_eight_arrived_and_eight_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make("er", slots=40, settings=settings_of(METHODS["er"], batch_size=16))
    seen = Seen(learner)
    monkeypatch.setattr(learner.problem, "augmenter", seen)
    stream = [*samples(27)]
    for arrived, (image, label) in enumerate(stream, 1):
        learner.learn(image, label)
        assert learner.steps == arrived // 8 * 8  # all iterations due, when the eighth is there
        assert len(learner.memory) == arrived // 8 * 8
    for group in range(3):
        batches = seen.batches[8 * group : 8 * (group + 1)]
        assert seen.stored[8 * group : 8 * (group + 1)] == [8 * group] * 8  # they enter the memory after the steps
        arrived_now = torch.stack([image for image, _ in stream[8 * group : 8 * (group + 1)]])
        earlier = {image.numpy().tobytes() for image, _ in stream[: 8 * group]}
        for batch in batches:
            assert torch.equal(batch[:8], arrived_now)  # the same eight in every iteration
            drawn = [image.numpy().tobytes() for image in batch[8:]]
            assert len(set(drawn)) == len(drawn) == min(8, 8 * group)
            assert set(drawn) <= earlier
        if group == 2:
            assert len({batch[8:].numpy().tobytes() for batch in batches}) > 1  # drawn anew for each
    learner.flush()  # what waits at the end of a stream is not lost
    assert (learner.steps, len(learner.memory)) == (27, 27)
    assert torch.equal(seen.batches[-1][:3], torch.stack([image for image, _ in stream[24:]]))
    learner.flush()
    assert learner.steps == 27


def test_er_waits_for_half_of_any_batch() -> None:
    learner = make("er", tiny(), settings=settings_of(METHODS["er"], batch_size=6))
    assert learner.stream_batch == 3
    for arrived, (image, label) in enumerate(samples(7), 1):
        learner.learn(image, label)
        assert learner.steps == arrived // 3 * 3


# -- lower precision ----------------------------------------------------------------------------------------------


class Observed:
    """Notes what the retrieval is told of per-sample gradients."""

    def __init__(self, learner: Learner) -> None:
        self.rows: list[Tensor] = []
        self.observe = learner.retrieval.observe
        learner.retrieval.observe = self  # type: ignore[method-assign]

    def __call__(self, values: Tensor, present: Tensor, labels: Tensor) -> None:
        self.rows.append(values.clone())
        self.observe(values, present, labels)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_uses_unscaled_gradients(precision: str) -> None:
    learners, told = [], []
    for kind in ("none", precision):
        chosen = Settings(
            LearnerSettings(batch_size=8, autocast=kind, sampled_fraction=0.01),  # type: ignore[arg-type]
            freezing={"ema": 1.0, "refresh_every": 1},
        )
        learner = make("al-sar", iterations=0.0, settings=chosen)
        told.append(Observed(learner))
        for image, label in samples(12):
            learner.learn(image, label)
        learner._step()
        learners.append(learner)
    low = learners[1]
    assert (low.network.scaler is not None) == (precision == "float16")
    assert all(parameter.dtype == torch.float32 for parameter in low.model.parameters())
    # both steps start from the same weights and batch: rounding differs, but not a scale of 2^16
    full_rows, low_rows = told[0].rows[0], told[1].rows[0]
    assert float((low_rows - full_rows).norm() / full_rows.norm()) < 0.3
    traces = [np.array([*learner.freezing.policy.fisher.values()]) for learner in learners]  # type: ignore[attr-defined]
    assert np.allclose(traces[1], traces[0], rtol=0.2)
    gradients = [learner.head.weight.grad for learner in learners]
    assert gradients[0] is not None
    assert gradients[1] is not None
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 0.05
    low.iterations = 1.0
    for image, label in samples(12, seed=4):
        low.learn(image, label)
    assert low.steps == 13
    assert low.last is not None
    assert np.isfinite(low.last.loss)


def test_an_overflow_of_float16_spoils_no_average() -> None:
    """A scale grows until gradients overflow: the scaler leaves such a step out, and so must whoever keeps averages."""
    learner = make("al-sar", settings=settings_of(METHODS["al-sar"], autocast="float16"))
    learner.network.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    for image, label in samples(40):
        learner.learn(image, label)
    assert learner.network.scaler.get_scale() < 2.0**40
    assert all(bool(torch.isfinite(parameter).all()) for parameter in learner.model.parameters())
    assert all(bool(torch.isfinite(tensor).all()) for tensor in learner.retrieval.state().values())
    assert np.isfinite([*learner.freezing.policy.fisher.values()]).all()  # type: ignore[attr-defined]


# -- parts --------------------------------------------------------------------------------------------------------


def test_a_method_keeps_the_parts_that_define_it() -> None:
    for name, part, other in (
        ("al-sar", "freezing", "constant"),
        ("al-sar", "retrieval", "uniform"),
        ("al", "freezing", "none"),
        ("sar", "retrieval", "uniform"),
    ):
        with pytest.raises(BudgetedError, match=f"method '{name}' defines its own {part} .*leave --{part} out"):
            METHODS[name]().with_parts(**{part: other})
    assert METHODS["al-sar"]().with_parts(freezing="adaptive", retrieval="sar", selection=None) == METHODS["al-sar"]()
    assert METHODS["al"]().with_parts(retrieval="sar").retrieval == "sar"
    mixed = METHODS["er"]().with_parts(freezing="linear", retrieval="class-balanced", selection="greedy-balanced")
    assert (mixed.freezing, mixed.retrieval, mixed.selection) == ("linear", "class-balanced", "greedy-balanced")
    assert METHODS["er"].freezing == "none"  # a new method, not a changed one


@pytest.mark.parametrize("part", ["freezing", "retrieval", "selection"])
def test_unknown_parts_are_named(part: str) -> None:
    with pytest.raises(UnknownName, match=r"unknown .* 'adaptve'"):
        make(METHODS["vanilla"]().with_parts(**{part: "adaptve"}), tiny())


@pytest.mark.parametrize("freezing", ["none", "constant", "linear", "random", "adaptive"])
@pytest.mark.parametrize("retrieval", ["uniform", "class-balanced", "sar"])
@pytest.mark.parametrize("name", ["vanilla", "er"])
def test_every_method_takes_every_part_that_it_does_not_define(name: str, retrieval: str, freezing: str) -> None:
    method = METHODS[name]().with_parts(retrieval=retrieval, freezing=freezing)
    learner = make(method, tiny(), facts=dataclasses.replace(FACTS, samples=8))
    for image, label in samples(8):
        learner.learn(image, label)
    assert learner.steps == 8
    assert learner.ledger.spent_on["retrieval"].real > 0


def test_another_loss_is_a_method_of_its_own() -> None:
    class Squared(AL):
        def loss(self, step: Step, logits: Tensor) -> Tensor:
            return (logits - nn.functional.one_hot(step.labels, logits.shape[1])).square().mean()

    learner = make(Squared, tiny())
    for image, label in samples(12):
        learner.learn(image, label)
    assert learner.last is not None
    assert 0 < learner.last.loss < 2
    assert learner.steps == 12


def test_a_closed_learner_leaves_the_model_without_hooks() -> None:
    model = cnn8()
    learner = make("al-sar", model)
    for image, label in samples(6):
        learner.learn(image, label)
    learner.close()
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    ]
    assert hooks == []
