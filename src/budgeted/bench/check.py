"""The invariants that every part here is held to, run over a part of the user's own.

    for result in check("mine.py:MyRetrieval"):
        print(result)

A method, a retrieval, a selection, a freezing policy or a model is put into a small learner on a small drawn stream,
beside our own parts, and has to pass what ours pass. `assert_passes` is the same for a test of your own.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from budgeted import models
from budgeted.audit import ExecutedOnData
from budgeted.budget import Budget
from budgeted.errors import BudgetedError
from budgeted.freezing import FreezingPolicy
from budgeted.learner import DataFacts, Learner, LearnerSettings, Settings, state
from budgeted.methods import METHODS, Method
from budgeted.methods.er import ER
from budgeted.methods.vanilla import Vanilla
from budgeted.problems import PROBLEMS, Classification, Problem
from budgeted.problems.batches import at, stacked
from budgeted.registry import load
from budgeted.replay import CODECS, Codec, Retrieval, Selection

Kind = Literal["method", "retrieval", "selection", "freezing", "codec", "problem", "model"]
SHAPE, CLASSES, LENGTH, HALF, TASK = (1, 8, 8), 4, 48, 29, 12
_ROOM = 302_500  # bytes, for a codec whose slots differ in size
FACTS = DataFacts(SHAPE, (0.5,), (0.25,), classes=CLASSES, samples=LENGTH)


@dataclass(frozen=True)
class Result:
    """What one check found."""

    name: str
    passed: bool
    what: str
    """what was seen; where it failed, what to do"""

    def __str__(self) -> str:
        return f"{'passed' if self.passed else 'FAILED'}  {self.name}: {self.what}"


class _Failed(Exception):
    """A check that did not hold; its text says what to do."""


def check(part: str) -> Iterator[Result]:
    """Run every check over `FILE.py:NAME` or `package.module:NAME`, one result after the other."""
    kind = kind_of(part)
    yield Result("kind", True, f"{part} is a {'freezing policy' if kind == 'freezing' else kind}")
    build = partial(_learner, part, kind)
    for name, run in _CHECKS.items():
        try:
            yield Result(name, True, run(build))
        except _Failed as failed:
            yield Result(name, False, str(failed))
        except BudgetedError as refused:
            yield Result(name, False, f"refused: {refused}")
        except Exception as error:  # whatever a user's part does wrong is a finding, not an end
            yield Result(name, False, f"{type(error).__name__}: {error}; it must not raise here")


def assert_passes(part: str) -> None:
    """For a test of your own: fails with every check that did not hold."""
    wrong = [str(result) for result in check(part) if not result.passed]
    assert not wrong, "\n".join(wrong)


def kind_of(part: str) -> Kind:
    """What a name stands for."""
    found: Any = METHODS[part] if METHODS.apart(part)[0] else load(part) if ":" in part else None
    if isinstance(found, type):
        for kind, base in (
            ("method", Method), ("retrieval", Retrieval), ("selection", Selection), ("freezing", FreezingPolicy),
            ("codec", Codec), ("problem", Problem),
        ):  # fmt: skip
            if issubclass(found, base):
                return kind  # type: ignore[return-value]
        if hasattr(found, "decide"):
            raise BudgetedError(f"{part} decides but is no freezing policy: make the class from FreezingPolicy")
    if callable(found):
        return "model"
    raise BudgetedError(
        f"{part} is nothing that can be checked: give FILE.py:NAME of a class made from Method, Retrieval, "
        "Selection, FreezingPolicy, Codec or Problem, or of a function that makes a model"
    )


def _learner(part: str, kind: Kind, facts: DataFacts = FACTS, **more: Any) -> Learner:
    """The part in a small learner, beside ours."""
    seed = more.pop("model_seed", 0)
    given = {"slots": 13, "seed": 0, "settings": Settings(LearnerSettings(batch_size=8, learning_rate=1e-3)), **more}
    if kind == "problem":
        problem = PROBLEMS[part].made({})
        problem.classes, problem.samples = facts.classes, facts.samples
        return Learner(_seeded(problem.small_model, seed), ER(), problem, **given)
    model = models.build(part if kind == "model" else "cnn8", classes=1, input_shape=SHAPE, seed=seed)
    method: Any = part if kind == "method" else ER()
    if kind in ("retrieval", "selection", "freezing", "codec"):
        beside = Vanilla() if kind == "freezing" else ER()  # a step a sample, so that each can be looked at
        method = beside.with_parts(**{kind: part})
    if kind == "codec" and CODECS[part].varying:
        del given["slots"]
        given.setdefault("budget", Budget(bytes=_ROOM))
    return Learner(model, method, facts, **given)


def _seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def stream(count: int = LENGTH, problem: Problem | None = None) -> Iterator[tuple[Any, int]]:
    """Images with one bright row, by class; the classes come one after the other, then mixed. Noise, for a problem of
    another kind."""
    drawn = np.random.default_rng(7)
    for number in range(count):
        label = min(number // 5, CLASSES - 1) if number < 20 else int(drawn.integers(CLASSES))
        if problem is not None and not isinstance(problem, Classification):
            yield problem.noise(drawn), label
            continue
        image = drawn.integers(0, 120, SHAPE)
        image[:, 2 * label] += 120
        yield torch.from_numpy(image.astype(np.uint8)), label


def _feed(learner: Learner, start: int, end: int) -> None:
    for number, (image, label) in enumerate(stream(end, learner.problem)):
        if number >= start:
            learner.learn(image, label)
            if (number + 1) % TASK == 0:
                learner.before_prediction()
                learner.end_task()


def _differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    names = sorted(one.keys() ^ other.keys())
    both = one.keys() & other.keys()
    return names + sorted(name for name in both if not _equal(one[name], other[name]))


def _equal(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and bool(torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0)))


# -- the checks ----------------------------------------------------------------------------------------------------

Build = Callable[..., Learner]


def _executed(build: Build) -> str:
    learner = build()
    _feed(learner, 0, 8)  # prices are traced, and a closed form is checked, once
    before = learner.ledger.spent.real
    with ExecutedOnData() as executed:
        _feed(learner, 8, LENGTH)
    charged = learner.ledger.spent.real - before
    off = charged / max(1, executed.total) - 1
    if abs(off) > 0.01:
        raise _Failed(
            f"charged {charged:,}, executed {executed.total:,} ({off:+.1%}): run what is beside the model with "
            "self.learner.run(purpose, function, …), and forwards of the model with budgeted.methods.evaluated"
        )
    return f"{learner.steps} steps, charged over executed {1 + off:.4f}"


def _bytes(build: Build) -> str:
    roomy = build()
    if roomy.network.grows:
        _feed(roomy, 0, LENGTH)  # what it grows by has to be paid for: with less, slots are given up
    budget = roomy.budget.bytes or roomy.nbytes()
    learner = build(budget=Budget(bytes=budget))
    highest = 0
    for number, (image, label) in enumerate(stream(problem=learner.problem)):
        learner.learn(image, label)
        if (number + 1) % TASK == 0:
            learner.end_task()
        highest = max(highest, learner.nbytes())
        if highest > budget:
            raise _Failed(
                f"{highest} bytes after {number + 1} samples, {budget} at the start: reserve in `begin` what is kept "
                "later, or declare it in `kept` from the start"
            )
    for name, part in (
        ("method", learner.method), ("retrieval", learner.retrieval), ("selection", learner.selection),
        ("policy", learner.freezing.policy), ("codec", learner.memory.codec), ("problem", learner.problem),
    ):  # fmt: skip
        hidden = [
            attribute
            for attribute, value in vars(part).items()
            if isinstance(value, (Tensor, np.ndarray)) and attribute not in part.kept_names() and _nbytes(value) > 8
        ]
        if hidden:
            raise _Failed(
                f"the {name} holds {', '.join(hidden)} between steps and does not declare it: name it in `kept`, so "
                "that its bytes are counted and it is saved"
            )
    return f"at most {highest} of {budget} bytes, all that is held is declared"


def _nbytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, np.ndarray) else value.numel() * value.element_size()


def _resume(build: Build) -> str:
    whole = build()
    _feed(whole, 0, HALF)
    with tempfile.TemporaryDirectory() as folder:
        state.write(whole, Path(folder) / "saved")
        tensors, numbers = state.read(Path(folder) / "saved")
    again = build(model_seed=9)
    state.restore(again, tensors, numbers)
    for learner in (whole, again):
        _feed(learner, HALF, LENGTH)
    wrong = _differing(state.tensors_of(whole), state.tensors_of(again))
    if wrong or whole.ledger.spent != again.ledger.spent:
        raise _Failed(
            f"saved after {HALF} samples and loaded again it went another way: "
            f"{', '.join(wrong[:4]) or 'the ledger'} differ; name in `kept` all that a later step depends on"
        )
    return f"saved after {HALF} of {LENGTH} samples, the same bits at the end"


def _repeats(build: Build) -> str:
    first, second = build(), build()
    _feed(first, 0, LENGTH)
    torch.rand(3)  # global draws in between must not matter
    np.random.default_rng().random()
    _feed(second, 0, LENGTH)
    wrong = _differing(state.tensors_of(first), state.tensors_of(second))
    if wrong:
        raise _Failed(
            f"the same seed gave other bits ({', '.join(wrong[:4])}): draw from the generator that is passed in, or "
            'from self.learner.generator("technique")'
        )
    return "twice the same bits"


def _frozen(build: Build) -> str:
    learner = build()
    rested = 0
    for number, (image, label) in enumerate(stream(problem=learner.problem)):
        before = {name: tensor.clone() for name, tensor in learner.model.named_parameters()}
        steps = learner.steps
        learner.learn(image, label)
        if learner.steps != steps + 1 or learner.last is None or not learner.last.frozen:
            continue
        rested += 1
        for block in learner.last.frozen:
            for name in learner.freezing.chain.owned(block):
                if not torch.equal(before[name], learner.model.get_parameter(name)):
                    raise _Failed(f"after sample {number} {name} of a block that rested has moved: leave it alone")
    return f"blocks rested in {rested} steps and did not move" if rested else "nothing rests"


def _growth(build: Build) -> str:
    try:
        learner = build(facts=DataFacts(SHAPE, (0.5,), (0.25,), samples=LENGTH))
    except BudgetedError as refused:
        return f"classes must be declared, and it says so ({refused})"
    _feed(learner, 0, LENGTH)
    if len(learner.class_labels) != CLASSES:
        raise _Failed(f"{CLASSES} classes came, {len(learner.class_labels)} are known")
    predicted = learner.predict(stacked([image for image, _ in stream(8, learner.problem)]))
    if isinstance(learner.problem, Classification) and not set(predicted.tolist()) <= set(range(CLASSES)):
        raise _Failed(f"it predicts {predicted.tolist()}, which are no classes that came")
    return f"{CLASSES} classes that nobody declared were learned"


def _bad_input(build: Build) -> str:
    learner = build()
    _feed(learner, 0, 12)
    before = state.tensors_of(learner)
    good = next(stream(1, learner.problem))[0]
    bad = at(good, slice(0, 0)) if isinstance(good, Tensor) else {"nothing": torch.zeros(1)}
    for sample, label in ((bad, 0), ("a picture", 0), (good, 2.9), (good, "3"), (good, None)):
        try:
            learner.learn(sample, label)
        except BudgetedError as refused:
            if "\n" in str(refused):
                raise _Failed(f"a refusal must be one line: {refused}") from refused
            continue
        raise _Failed(f"{str(sample)[:60]} with label {label!r} was taken")
    wrong = _differing(before, state.tensors_of(learner))
    if wrong:
        raise _Failed(f"a sample that was refused has changed {', '.join(wrong[:4])}")
    loss = learner.last.loss if learner.last is not None else 0.0
    if not math.isfinite(loss):
        raise _Failed(f"the loss is {loss}")
    return "refused in one line each, nothing changed"


_CHECKS: dict[str, Callable[[Build], str]] = {
    "ledger = executed": _executed,
    "bytes as counted": _bytes,
    "exact resume": _resume,
    "same seed, same run": _repeats,
    "frozen means not computed": _frozen,
    "growth": _growth,
    "bad input": _bad_input,
}
