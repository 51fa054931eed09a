"""What the tests of single methods share: a small stream, a small learner, and what every method must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from budgeted import models
from budgeted.audit import ExecutedOps
from budgeted.learner import Learner, LearnerSettings, Settings, load, save
from budgeted.learner.state import tensors_of
from budgeted.methods import METHODS, Method
from tests.bright_rows import FACTS, SHAPE, samples
from tests.nets import seeded


class RealOps(ExecutedOps):
    """The audit, less what a trace runs on tensors without data: a new batch shape is priced inside its first step."""

    def _record(self, func: Any, rule: Any, args: Any, kwargs: Any, out: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        if not any(isinstance(tensor, FakeTensor) or tensor.device.type == "meta" for tensor in tensors):
            super()._record(func, rule, args, kwargs, out)


class Tiny(nn.Module):
    """Three convolutions and a head: blocks with maps, and quickly priced."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(24, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()
        )
        self.head = nn.Linear(32, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(images)).mean((2, 3)))
        return logits


def body_of(module: nn.Module) -> tuple[nn.Conv2d, nn.BatchNorm2d, nn.Conv2d]:
    """The layers of a body of `tiny` that have weights."""
    assert isinstance(module, nn.Sequential)
    first, norm, second = module[0], module[1], module[3]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert isinstance(second, nn.Conv2d)
    return first, norm, second


def network(name: str = "mlp", seed: int = 0) -> nn.Module:
    """A model by name; `tiny` is none of the package's."""
    return seeded(Tiny, seed) if name == "tiny" else models.build(name, classes=1, input_shape=SHAPE, seed=seed)


def learner_of(method: Method | type[Method], model: str = "mlp", batch_size: int = 8, **more: Any) -> Learner:
    own = Settings(LearnerSettings(batch_size=batch_size, learning_rate=1e-3), method=more.pop("own", {}))
    given = {"slots": 12, "seed": 0, "settings": own, **more}
    kind: type[Learner] = given.pop("kind", Learner)
    return kind(network(model), method, given.pop("facts", FACTS), **given)


def feed(learner: Learner, start: int, end: int, task: int | None = None) -> None:
    """Samples start … end - 1 of the stream; a task ends after every `task` of them."""
    for i, (image, label) in enumerate(samples(end)):
        if i >= start:
            learner.learn(image, label)
            if task and (i + 1) % task == 0:
                learner.end_task()


def assert_charged_as_executed(learner: Learner, count: int = 36, task: int | None = None) -> None:
    """Everything that runs between the first sample and the last is in the ledger, step by step."""
    with RealOps() as executed:
        for i in range(count):
            before, charged = executed.total, learner.ledger.spent.real
            feed(learner, i, i + 1, task)
            ran = executed.total - before
            if ran > 10_000 and learner.steps > 1:  # in the first step a closed form may be checked, once
                assert learner.ledger.spent.real - charged == pytest.approx(ran, rel=0.01)
    assert learner.ledger.spent.real == pytest.approx(executed.total, rel=0.01)


def assert_resumes_exactly(
    learner: Learner, folder: Path, at: int, end: int, task: int | None = None, model: str = "mlp"
) -> None:
    """Saved in the middle and loaded into a model of another seed, it goes on as if nothing had happened."""
    feed(learner, 0, at, task)
    save(learner, folder)
    own = None if learner.method.name in METHODS else learner.method
    again = load(folder, network(model, seed=9), own)
    for each in (learner, again):
        feed(each, at, end, task)
    mine, other = tensors_of(learner), tensors_of(again)
    assert mine.keys() == other.keys()
    for name in mine:
        assert torch.equal(mine[name].nan_to_num(-7.0), other[name].nan_to_num(-7.0)), name
    assert again.ledger.spent == learner.ledger.spent
    assert again.nbytes_by_item() == learner.nbytes_by_item()
