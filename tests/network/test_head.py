"""The growing head: nothing that was learned moves, under any method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from budgeted.methods import METHODS
from budgeted.network.head import grow
from tests.bright_rows import samples
from tests.learner.small import images, make, tiny


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_growing_keeps_old_rows_and_what_the_optimizer_knows(kind: str, bias: bool) -> None:
    head = nn.Linear(6, 2, bias=bias)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(head.parameters(), 0.1) if kind == "adam" else torch.optim.SGD(head.parameters(), 0.1, 0.9)
    )
    inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        optimizer.zero_grad()
        head(inputs).square().sum().backward()
        optimizer.step()
    logits = head(inputs).detach()
    before = [
        (parameter.detach().clone(), {key: torch.as_tensor(value) for key, value in optimizer.state[parameter].items()})
        for parameter in head.parameters()
    ]
    grow(head, 5, optimizer, np.random.default_rng(0))
    assert head.out_features == 5
    torch.testing.assert_close(head(inputs)[:, :2], logits)
    assert [id(p) for group in optimizer.param_groups for p in group["params"]] == [id(p) for p in head.parameters()]
    assert len(optimizer.state) == len(before)
    for parameter, (old, moments) in zip(head.parameters(), before, strict=True):
        assert torch.equal(parameter[:2], old)
        assert parameter[2:].detach().abs().max() <= 6**-0.5
        assert parameter[2:].detach().abs().min() > 0
        assert set(optimizer.state[parameter]) == set(moments)
        for key, moment in moments.items():
            kept = torch.as_tensor(optimizer.state[parameter][key])
            if moment.shape == old.shape:
                assert torch.equal(kept[:2], moment)
                assert not kept[2:].any()
            else:
                assert torch.equal(kept, moment)
    grow(head, 3, optimizer, np.random.default_rng(0))  # never back
    assert head.out_features == 5


def test_the_head_grows_alike_under_every_method() -> None:
    heads = []
    for name in METHODS:
        learner = make(name, tiny(), iterations=0.0)
        if METHODS[name].whole_head:  # drawn at once
            assert learner.head.out_features == 4
            continue
        for image, label in samples(30):
            learner.learn(image, label)
        assert learner.class_labels == [0, 1, 2, 3]
        heads.append(learner.head.weight.detach())
    assert all(torch.equal(head, heads[0]) for head in heads)


@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].whole_head])
def test_a_class_that_appears_late_moves_nothing_learned(name: str) -> None:
    learner = make(name, tiny(), iterations=1.0)
    for image, label in samples(10, classes=2):
        learner.learn(image, label)
    learner.before_prediction()
    weight, state = learner.head.weight.detach().clone(), dict(learner.optimizer.state[learner.head.weight])
    assert state or name == "gdumb"  # which starts every training with an optimizer that remembers nothing
    learner.iterations = 0.0
    learner.pace.reset()
    learner.learn(images(1)[0], 77)
    assert learner.class_labels[-1] == 77
    assert learner.rows_of([77, 5]) == [2, -1]
    assert torch.equal(learner.head.weight[:-1], weight)
    for key in ("exp_avg", "exp_avg_sq") if state else ():
        assert torch.equal(learner.optimizer.state[learner.head.weight][key][:-1], state[key])
        assert not learner.optimizer.state[learner.head.weight][key][-1].any()
    assert set(learner.predict(images(8)).tolist()) <= {0, 1, 77}
