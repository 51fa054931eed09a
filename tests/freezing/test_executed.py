"""Invariant 1: what a step charges under rule `real` is what was executed, within 1 %."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import pytest
import torch

from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger, total
from budgeted.freezing import (
    AdaptivePrefix,
    ConstantPrefix,
    FreezingPolicy,
    LayerFreezing,
    LinearPrefix,
    NeverFreeze,
    RandomPrefix,
    StepView,
)
from tests.nets import NETS, loss_of, seeded


@dataclass(frozen=True)
class Given(NeverFreeze):
    """Freeze a given set."""

    blocks: Collection[int] = ()

    def decide(self, view: StepView) -> frozenset[int]:
        return frozenset(self.blocks)


POLICIES: dict[str, Callable[[], FreezingPolicy]] = {
    "none": NeverFreeze,
    "constant": lambda: ConstantPrefix(2),
    "everything": lambda: ConstantPrefix(99),
    "linear": lambda: LinearPrefix(4, steps=5),
    "random": lambda: RandomPrefix(4, seed=3),
    # moving averages that follow at once, so that a short run freezes
    "adaptive": lambda: AdaptivePrefix(ema=1.0, ema_start="first"),
    "middle": lambda: Given((1, 2)),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("net", NETS)
def test_every_step_charges_what_it_executes(net: str, policy: str) -> None:
    generator = torch.Generator().manual_seed(1)
    model = seeded(NETS[net].build)
    inputs, targets = NETS[net].batch(generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, foreach=False)
    ledger = Ledger()
    freezing = LayerFreezing(model, POLICIES[policy](), (inputs,), optimizer=optimizer, ledger=ledger)
    frozen_sizes = set()
    for step in range(6):
        optimizer.zero_grad()
        before = ledger.spent
        with ExecutedOps() as executed:
            logits = model(inputs)
            loss = loss_of(logits, targets)
            if step % 2 or net == "tied decoder":
                done = freezing.backward(loss)
            else:
                done = freezing.backward(loss, logits, targets)
            optimizer.step()
        frozen_sizes.add(len(done.frozen))
        charged = (ledger.spent - before).real
        assert total(done.costs.values()).real == charged
        assert charged == pytest.approx(executed.total, rel=0.01)
    if policy in ("linear", "random"):
        assert len(frozen_sizes) > 1
    if policy == "everything":
        assert frozen_sizes == {NETS[net].blocks - 1}
    freezing.remove()


def test_adaptive_freezes_in_the_test_above() -> None:
    """The adaptive case is no case of freezing nothing."""
    generator = torch.Generator().manual_seed(1)
    model = seeded(NETS["plain cnn"].build)
    inputs, targets = NETS["plain cnn"].batch(generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    freezing = LayerFreezing(model, AdaptivePrefix(ema=1.0, ema_start="first"), (inputs,))
    sizes = []
    for _ in range(12):
        optimizer.zero_grad()
        sizes.append(len(freezing.backward(loss_of(model(inputs), targets)).frozen))
        optimizer.step()
    assert max(sizes) > 0
    assert sizes[::4] == [0, 0, 0]  # every fourth step refreshes the Fisher traces


@pytest.mark.parametrize("net", NETS)
def test_blocks(net: str) -> None:
    model = seeded(NETS[net].build)
    inputs, _ = NETS[net].batch(torch.Generator().manual_seed(0))
    freezing = LayerFreezing(model, NeverFreeze(), (inputs,))
    chain = freezing.chain
    assert len(chain) == NETS[net].blocks
    assert "head" in chain.blocks[-1].name
    names = [name for block in range(len(chain)) for name in chain.owned(block)]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())  # each once, none lost
