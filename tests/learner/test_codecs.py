"""Learners whose memory is compressed: what is charged, what the model sees, what a plan promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from budgeted import models, streams
from budgeted.bench.check import assert_passes
from budgeted.budget import Budget
from budgeted.learner import DataFacts, Learner, LearnerSettings, Settings
from budgeted.learner.settings import from_pairs
from budgeted.methods import METHODS
from budgeted.problems.augment import Augmentation
from budgeted.replay import CODECS, Column, Fitted, Jpeg, Memory, label_column
from budgeted.runs.config import RunConfig
from budgeted.runs.plan import make_plan
from budgeted.runs.run import start

SHAPE, CLASSES = (1, 8, 8), 4
FACTS = DataFacts(SHAPE, (0.5,), (0.25,), classes=CLASSES, samples=60)
PICTURES = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (60, *SHAPE), dtype=np.uint8))
VARYING = ["webp", "progressive"]


def learner(codec: str, method: str = "er", nbytes: int = 303_000, **codec_settings: Any) -> Learner:
    settings = Settings(LearnerSettings(batch_size=8), codec=codec_settings)
    chosen = METHODS[method]().with_parts(codec=codec)
    model = models.build("cnn8", classes=1, input_shape=SHAPE, seed=0)
    return Learner(model, chosen, FACTS, budget=Budget(bytes=nbytes), settings=settings, seed=0)


def feed(one: Learner, count: int = 24) -> None:
    for number in range(count):
        one.learn(PICTURES[number], number % CLASSES)


@pytest.mark.parametrize("name", ["half", "progressive"])  # one of fixed size, and the one that changes most
def test_a_codec_passes_the_checks_of_a_users_own(name: str) -> None:
    kind = CODECS[name]
    assert_passes(f"{kind.__module__}:{kind.__qualname__}")


@pytest.mark.parametrize("name", ["ycc420", "jpeg"])
def test_all_that_is_decoded_and_encoded_is_charged(name: str) -> None:
    coded, raw = learner(name), learner("raw")
    work: list[tuple[int, int]] = []
    operations = coded.memory.codec.operations

    def counted(decoded: int, encoded: int = 0) -> int:
        work.append((decoded, encoded))
        return operations(decoded, encoded)

    coded.memory.codec.operations = counted  # type: ignore[method-assign]
    drawn = 0
    for number in range(24):
        before = len(coded.memory)
        steps = coded.steps
        coded.memory.gather(np.arange(len(coded.memory)))  # a user looks: not the learner's cost
        coded.learn(PICTURES[number], number % CLASSES)
        raw.learn(PICTURES[number], number % CLASSES)
        drawn += (coded.steps - steps) * min(4, before)
    decoded, encoded = (sum(each) for each in zip(*work, strict=True))
    assert (decoded, encoded) == (drawn, 24)
    difference = coded.ledger.spent.real - raw.ledger.spent.real
    assert difference == operations(decoded, encoded) > 0
    assert coded.ledger.spent.paper == raw.ledger.spent.paper


@pytest.mark.parametrize("method", ["der++", "mir", "gdumb"])
def test_methods_that_keep_or_look_at_more_work_on_codes(method: str) -> None:
    one = learner("progressive", method, nbytes=340_000 if method == "der++" else 303_000)
    feed(one)
    one.before_prediction()
    assert one.nbytes() <= one.budget.bytes  # type: ignore[operator]
    assert len(one.memory) > 0
    assert one.ledger.spent_on["retrieval"].real > 0


def test_everywhere_means_that_the_model_sees_one_kind_of_picture() -> None:
    plain, everywhere = learner("jpeg", quality=20), learner("jpeg", quality=20, everywhere=True)
    for one in (plain, everywhere):
        feed(one, 4)
    passed = everywhere.memory.codec.passed(PICTURES[:8])
    assert not torch.equal(passed, PICTURES[:8])
    plain.model.load_state_dict(everywhere.model.state_dict())
    assert torch.equal(everywhere.outputs(PICTURES[:8]), plain.outputs(passed))
    assert not torch.equal(everywhere.outputs(PICTURES[:8]), plain.outputs(PICTURES[:8]))
    seen: list[torch.Tensor] = []
    inputs = everywhere.problem.inputs

    def watched(samples: Any, generator: Any = None) -> Any:
        seen.append(samples)
        return inputs(samples, generator)

    everywhere.problem.inputs = watched  # type: ignore[method-assign]
    for number in range(8, 12):
        everywhere.learn(PICTURES[number], number % CLASSES)
    new = seen[-1][: everywhere.stream_batch]
    assert torch.equal(new, everywhere.memory.codec.passed(PICTURES[8:12]))


@pytest.mark.parametrize("name", VARYING)
def test_a_plan_is_what_is_then_spent(name: str, tmp_path: Path) -> None:
    config = RunConfig(
        method="er", model="cnn8", codec=name, memory="320kB", limit=120, eval_every=60, eval_samples=20, seed=1
    )
    info = streams.info("digits")
    plan = make_plan(
        config.build_method(), info, "cnn8", settings=config.build_settings(info.flips), samples=120,
        budget=config.budget(), iterations=1.0, eval_every=60, dataset=config.load_data,
    )  # fmt: skip
    summary = start(config, tmp_path / "run")
    assert plan.spent.real == pytest.approx(summary["spent"]["real"], rel=0.01)
    assert plan.slots is not None
    assert plan.typical is not None
    if name != "progressive":  # which has not come to its coarsest
        assert plan.slots == pytest.approx(summary["slots"], rel=0.1)
    assert sum(plan.bytes.values()) == 320_000 >= summary["bytes"]


def test_slots_that_differ_in_bytes_are_the_room_of_so_many_samples_as_they_are(tmp_path: Path) -> None:
    config = RunConfig(method="er", model="cnn8", codec="jpeg", slots=20, limit=60, eval_every=60, eval_samples=20)
    summary = start(config, tmp_path / "run")
    room = 20 * (64 + 1)  # pixels and a label
    assert room - 60 < summary["bytes_by_item"]["memory"] <= room
    assert summary["stored"] != 20
    info = streams.info("digits")
    plan = make_plan(
        config.build_method(), info, "cnn8", settings=config.build_settings(info.flips), samples=60, slots=20,
        budget=Budget(), iterations=1.0, eval_every=60,
    )  # fmt: skip
    assert plan.bytes["memory"] == room
    assert plan.slots is None  # nobody knows without the data
    assert plan.spent.real == pytest.approx(summary["spent"]["real"], rel=0.01)


def test_what_is_fitted_to_samples_compresses_pictures_and_nothing_else() -> None:
    picture = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8))
    kinds = {"pixels": (picture, True), "small": (picture[..., :8], False), "floats": (torch.randn(2, 5), False)}
    for name, (samples, compressed) in kinds.items():
        columns = (Column("sample", tuple(samples.shape[1:]), samples.dtype), label_column(2))
        memory = Memory(columns, limit=50_000, codec=Fitted(quality=75))
        jpeg = Memory(columns, limit=50_000, codec=Jpeg(quality=75)) if compressed else None
        for label, sample in enumerate(samples):
            memory.put(label, sample, label)
            if jpeg is not None:
                jpeg.put(label, sample, label)
        back = memory.gather(np.arange(2)).samples
        assert torch.equal(back, samples if jpeg is None else jpeg.gather(np.arange(2)).samples), name
        assert (memory.codec.operations(2) > 0) == compressed, name


def test_a_method_is_run_as_it_usually_is_unless_something_else_is_said() -> None:
    method = METHODS["cram"]()
    usual = from_pairs({}, method, flips=True)
    assert (usual.learner.optimizer, usual.learner.average) == ("muon", "bfloat16")
    said = from_pairs({"learner.optimizer": "adam"}, method, flips=True)
    assert (said.learner.optimizer, said.learner.average) == ("adam", "bfloat16")
    assert from_pairs({}, METHODS["vanilla"](), flips=True).learner == LearnerSettings()
    front = Learner("cnn8", "cram", FACTS, memory="700kB")
    assert front.settings.learner == usual.learner
    assert front.settings.augmentation == Augmentation(flip=FACTS.flips)
    given = Learner("cnn8", "cram", FACTS, memory="700kB", settings=Settings())
    assert given.settings.learner == LearnerSettings()
