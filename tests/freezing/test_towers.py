"""Towers side by side: a chain through both, in the order of execution, found by looking once at each module."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from budgeted.audit import ExecutedOps
from budgeted.budget import Ledger
from budgeted.freezing import ConstantPrefix, LayerFreezing, block_chain
from budgeted.freezing.units import _Tree
from tests.nets import seeded


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(torch.relu(self.up(x)))
        return made


class Seeing(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.patches = nn.Linear(6, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for layer in self.layers:
            x = layer(x)
        return x


class Reading(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)
        self.layers = nn.ModuleList(Layer(12) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Both(nn.Module):
    """Words are looked up, pictures go into the places of the word 0, and on together."""

    def __init__(self, seeing: int, reading: int) -> None:
        super().__init__()
        self.seeing, self.projector, self.reading = Seeing(seeing), nn.Linear(8, 12), Reading(reading)

    def forward(self, words: Tensor, pictures: Tensor) -> Tensor:
        text = self.reading.words(words)
        seen = self.projector(self.seeing(pictures))
        made: Tensor = self.reading(text.masked_scatter((words == 0).unsqueeze(-1), seen))
        return made


class Model(nn.Module):
    def __init__(self, seeing: int = 3, reading: int = 2) -> None:
        super().__init__()
        self.model, self.head = Both(seeing, reading), nn.Linear(12, 20)

    def forward(self, words: Tensor, pictures: Tensor) -> Tensor:
        made: Tensor = self.head(self.model(words, pictures))
        return made


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(1, 20, (4, 9), generator=generator)
    words[:, 2:5] = 0
    return words, torch.randn(4 * 3, 6, generator=generator)


def test_the_chain_goes_through_both() -> None:
    chain = block_chain(seeded(Model), inputs())
    assert " ".join(block.name.removeprefix("model.") for block in chain.blocks) == (
        "reading.words seeing.patches seeing.layers.0 seeing.layers.1 seeing.layers.2 projector "
        "reading.layers.0 reading.layers.1 head"
    )
    assert sorted(name for block in chain.blocks for name in block.parameters) == sorted(chain.trace.parameter_names)


@pytest.mark.parametrize("always", [(), ("projector",)], ids=["prefix", "projector always"])
@pytest.mark.parametrize("frozen", range(8))
def test_every_prefix_is_charged_as_executed(frozen: int, always: tuple[str, ...]) -> None:
    model, ledger = seeded(Model), Ledger()
    freezing = LayerFreezing(model, ConstantPrefix(frozen), inputs(), loss="graph", ledger=ledger, always=always)
    targets = torch.zeros(36, dtype=torch.long)
    with ExecutedOps() as executed:
        step = freezing.backward(cross_entropy(model(*inputs()).flatten(0, 1), targets))
    assert ledger.spent.real == pytest.approx(executed.total, rel=0.01)
    assert (5 in step.frozen) == (frozen > 5 and not always)
    assert (model.model.projector.weight.grad is None) == (frozen > 5 and not always)
    assert model.model.seeing.patches.weight.grad is None or frozen < 2


def test_each_module_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked anew for every layer below it, and each answer read the whole trace: faster than quadratic."""
    asked: Counter[str] = Counter()
    read: Counter[int] = Counter()
    opens, passing = _Tree._opens, _Tree._passing

    def counted(self: Any, path: str) -> bool:
        asked[path] += 1
        return opens(self, path)

    def reading(self: Any, boundaries: list[int], end: int) -> list[int]:
        read[len(self.trace.ops)] += max(0, end - boundaries[0])
        return passing(self, boundaries, end)

    monkeypatch.setattr(_Tree, "_opens", counted)
    monkeypatch.setattr(_Tree, "_passing", reading)
    for layers in (4, 8, 16):
        asked.clear()
        model = Model(layers, layers)
        chain = block_chain(model, inputs())
        assert len(chain) == 2 * layers + 4
        assert set(asked.values()) == {1}
    assert all(operators <= 6 * length for length, operators in read.items())  # at most once a level of the tree
