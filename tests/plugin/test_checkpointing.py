"""Gradient checkpointing: right gradients under freezing, recomputation priced as executed, reentrant refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from budgeted.audit import ExecutedOps
from budgeted.budget import UnpricedOperator, total
from budgeted.plugin import AdaptiveFreezing
from tests.nets import DecoderLayer, Separable, seeded
from tests.plugin.charged import most_frozen

again = partial(checkpoint, use_reentrant=False)


class Images(nn.Module):
    """Convolutions with batch norm, every stage checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.blocks = nn.ModuleList([Separable(16, 16), Separable(16, 32, 2), Separable(32, 32)])
        self.head = nn.Linear(32, 10)
        self.checkpointed = True

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            x = again(block, x) if self.checkpointed else block(x)
        return self.head(x.mean((2, 3)))


class Words(nn.Module):
    """A language model with dropout, two layers in one region, and a region with residuals outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.layers = nn.ModuleList(DecoderLayer(32, 4) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 40)
        self.checkpointed = True

    def pair(self, x: Tensor) -> Tensor:
        out: Tensor = F.dropout(self.layers[2](self.layers[1](x)), 0.1)
        return out

    def forward(self, tokens: Tensor) -> Any:
        x = self.embed(tokens)
        run: Any = again if self.checkpointed else lambda function, *inputs: function(*inputs)
        x = run(self.layers[0], x)
        x = x + run(self.pair, x)
        return self.head(self.norm(run(self.layers[3], x)))


_draws = torch.Generator().manual_seed(3)
CASES: dict[str, tuple[type[nn.Module], Tensor, Tensor]] = {
    "images": (Images, torch.randn(4, 3, 32, 32, generator=_draws), torch.randint(0, 10, (4,), generator=_draws)),
    "words": (Words, torch.randint(0, 40, (4, 12), generator=_draws), torch.randint(0, 40, (4, 12), generator=_draws)),
}


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_price_is_what_is_executed_for_every_prefix(name: str, early_stop: bool) -> None:
    build, inputs, targets = CASES[name]
    model = seeded(build)
    prices = []
    with set_checkpoint_early_stop(early_stop):
        for n in range(5 if name == "images" else 6):
            freezing = AdaptiveFreezing(model, policy="constant", n=n)
            model.zero_grad()
            with ExecutedOps() as forward:
                loss = loss_of(model(inputs), targets)
            with ExecutedOps() as backward:
                done = freezing.backward(loss)
            assert done.costs["forward"].real == pytest.approx(forward.total, rel=0.01)
            assert done.costs["backward"].real == pytest.approx(backward.total, rel=0.01), n
            prices.append(done.costs["backward"].real)
            freezing.remove()
    assert prices == sorted(prices, reverse=True)


def test_a_wholly_frozen_prefix_is_not_run_again() -> None:
    build, inputs, targets = CASES["images"]
    model = seeded(build)
    runs = [0, 0, 0]
    for number, block in enumerate(model.blocks):  # type: ignore[arg-type]

        def count(*_: Any, number: int = number) -> None:
            runs[number] += 1

        block.register_forward_hook(count)
    freezing = AdaptiveFreezing(model, policy="constant", n=3, example=inputs)  # stem and two of three blocks
    runs[:] = [0, 0, 0]
    freezing.backward(loss_of(model(inputs), targets))
    # the last region is entered again, but stops before its block ends: nothing after the last saved tensor is needed
    assert runs == [1, 1, 1]
    plain = total(freezing.engine.price(inputs).backward)
    frozen = total(freezing.engine.price(inputs, [0, 1, 2]).backward)
    blocks = freezing.engine.price(inputs).forward
    assert plain.real - frozen.real > blocks[1].real + blocks[2].real


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_without_checkpoints(name: str) -> None:
    build, inputs, targets = CASES[name]
    dropout = torch.get_rng_state()
    model = seeded(build)
    model.checkpointed = False  # type: ignore[assignment]
    loss_of(model(inputs), targets).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    model.checkpointed = True  # type: ignore[assignment]
    for n in range(5):
        torch.set_rng_state(dropout)
        model.zero_grad()
        freezing = AdaptiveFreezing(model, policy="constant", n=n, example=inputs)
        freezing.backward(loss_of(model(inputs), targets))
        resting = freezing.chain.frozen_parameters(range(n))
        for parameter_name, parameter in model.named_parameters():
            if parameter_name in resting:
                assert parameter.grad is None
            else:
                torch.testing.assert_close(parameter.grad, full[parameter_name], rtol=1e-4, atol=1e-6)
        freezing.remove()


def test_adaptive_freezing_trains_with_checkpoints() -> None:
    build, inputs, targets = CASES["images"]
    model = seeded(build)
    assert most_frozen(model, loss_of, inputs, targets, steps=6) > 0


class Reentrant(nn.Module):
    def __init__(self, first: bool, kind: str) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.first, self.kind = first, kind

    def forward(self, x: Tensor) -> Any:
        if self.kind == "sequential":
            return self.head(checkpoint_sequential(nn.Sequential(self.stem, self.body), 2, x, use_reentrant=True))
        if self.kind == "nested":
            return self.head(again(lambda y: again(self.body, self.stem(y)), x))
        if self.kind == "selective":
            policy = lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE  # noqa: E731
            contexts = partial(create_selective_checkpoint_contexts, policy)
            return self.head(again(lambda y: self.body(self.stem(y)).relu(), x, context_fn=contexts))
        if self.first:
            return self.head(self.body(checkpoint(self.stem, x, use_reentrant=True)))
        return self.head(checkpoint(self.body, self.stem(x), use_reentrant=True))


@pytest.mark.parametrize(
    ("first", "kind", "reason"),
    [
        (True, "plain", "use_reentrant=False"),
        (False, "plain", "use_reentrant=False"),
        (False, "sequential", "use_reentrant=False"),
        (False, "nested", "nests"),
        (False, "selective", "selective"),
    ],
)
def test_what_cannot_be_priced_is_refused_with_the_reason(first: bool, kind: str, reason: str) -> None:
    model = Reentrant(first, kind)
    AdaptiveFreezing(model)
    with pytest.raises(UnpricedOperator, match=reason):
        model(torch.ones(4, 6))


def test_refusing_leaves_torch_as_it_was() -> None:
    model = Reentrant(False, "plain")
    loss = model(torch.ones(4, 6, requires_grad=True)).sum()
    loss.backward()
    assert model.body.weight.grad is not None
