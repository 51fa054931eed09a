"""Prices at shapes that were never traced: to the last operation those of a fresh trace, from three traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from budgeted.budget import Rule, UnpricedOperatorWarning
from budgeted.budget import trace as trace_of
from budgeted.freezing import StepPrices, step_prices
from tests.nets import seeded
from tests.plugin.architectures import TEN_ARCHITECTURES, Architecture
from tests.plugin.unseen import UNSEEN

ARCHITECTURES = {**TEN_ARCHITECTURES, **UNSEEN}
BATCHES = (4, 6, 3, 2, 15)
LENGTHS = (12, 7, 10, 3, 16)
RULES: tuple[Rule, ...] = ("paper", "real")


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the traces of step prices."""
    count = [0]

    def counting(*arguments: Any) -> Any:
        count[0] += 1
        return trace_of(*arguments)

    monkeypatch.setattr(step_prices, "trace", counting)
    return count


def reshaped(case: Architecture, batch: int, length: int | None = None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The case's inputs with so many samples, and so many words where they are words."""

    def one(tensor: Any) -> Any:
        if not isinstance(tensor, Tensor):
            return tensor
        rest = tensor.shape[1:] if length is None else (length, *tensor.shape[2:])
        return torch.zeros(batch, *rest, dtype=tensor.dtype)

    return tuple(map(one, case.inputs)), {name: one(value) for name, value in case.keywords.items()}


def same(prices: StepPrices, model: nn.Module, inputs: tuple[Tensor, ...], keywords: dict[str, Any]) -> None:
    """Everything that is asked of prices equals what a fresh trace says."""
    fresh = StepPrices(model, prices.loss)
    forward, reference = prices.forward(inputs, keywords), fresh.forward(inputs, keywords)
    blocks = len(fresh.chain(reference))
    assert prices.chain(forward).blocks == fresh.chain(reference).blocks
    for frozen in (*(range(n) for n in range(blocks)), (1,) if blocks > 2 else ()):
        assert prices.of(forward, frozen) == fresh.of(reference, frozen)
    assert prices.to_feature(forward) == fresh.to_feature(reference)
    assert prices.most(forward) == fresh.most(reference)
    for rule in RULES:
        assert prices.saved(forward, rule) == fresh.saved(reference, rule)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_batch_sizes_follow_from_three_traces(name: str, traces: list[int]) -> None:
    case = ARCHITECTURES[name]
    model = seeded(case.build)
    prices = StepPrices(model)
    for batch in BATCHES:
        inputs, keywords = reshaped(case, batch)
        before = traces[0]
        prices.chain(prices.forward(inputs, keywords))
        mine = traces[0] - before
        assert mine == (1 if batch in BATCHES[:3] else 0)
        if not mine:
            same(prices, model, inputs, keywords)


@pytest.mark.parametrize(
    "name", [name for name, case in ARCHITECTURES.items() if not case.inputs or case.inputs[0].dtype == torch.long]
)
def test_lengths_and_batch_sizes_together(name: str, traces: list[int]) -> None:
    case = ARCHITECTURES[name]
    model = seeded(case.build)
    prices = StepPrices(model)
    traced = 0
    for length, batch in zip(LENGTHS, BATCHES, strict=False):
        inputs, keywords = reshaped(case, batch, length)
        before = traces[0]
        prices.chain(prices.forward(inputs, keywords))
        traced += traces[0] - before
        if traced == 3:
            same(prices, model, inputs, keywords)
    assert traced == 3


def follow(model: nn.Module, shapes: Iterable[tuple[int, ...]], traces: list[int]) -> list[bool]:
    """Which of these shapes were traced; the prices of all are those of a fresh trace."""
    prices, traced = StepPrices(model), []
    for shape in shapes:
        before = traces[0]
        prices.chain(prices.forward([torch.zeros(shape)]))
        traced.append(traces[0] > before)
        same(prices, model, (torch.zeros(shape),), {})
    return traced


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


def test_a_size_that_a_stride_rounds_is_traced_where_the_rounding_is_another(traces: list[int]) -> None:
    """Strides of 4 in all: sizes 8 apart round alike, 33 and 35 round as nobody has seen."""
    sides = (32, 40, 48, 56, 64, 33, 35)
    assert follow(convolutions(), [(2, 3, side, side) for side in sides], traces)[:5] == [True] * 3 + [False] * 2


class AnotherWay(nn.Module):
    """Long inputs go through one layer more, short ones are cut to a whole number of eights."""

    def __init__(self, longest: int, cut: bool) -> None:
        super().__init__()
        self.longest, self.cut = longest, cut
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.more, self.head = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.cut:
            x = x[:, : x.shape[1] // 8 * 8]
        x = self.layers(x)
        if x.shape[1] > self.longest:
            x = self.more(x)
        out: Tensor = self.head(x.mean(1))
        return out


def test_where_no_polynomial_holds_every_shape_is_traced(traces: list[int]) -> None:
    assert all(follow(AnotherWay(1000, True), [(2, length, 8) for length in (16, 17, 26, 35, 44, 53, 62)], traces))


def test_sizes_in_between_are_looked_at_before_they_are_believed(traces: list[int]) -> None:
    """All were multiples of 8 that nothing is cut from, until one comes that is cut."""
    lengths = (16, 24, 40, 64, 33, 34)
    assert follow(AnotherWay(1000, True), [(2, length, 8) for length in lengths], traces) == [
        True, True, True, False, True, True,
    ]  # fmt: skip


def test_far_beyond_what_was_traced_a_shape_is_traced_again(traces: list[int]) -> None:
    """At 90 the forward takes another way: eight times the longest that was traced is believed, more is looked at."""
    assert follow(AnotherWay(90, False), [(2, length, 8) for length in (10, 11, 9, 80, 97)], traces) == [
        True, True, True, False, True,
    ]  # fmt: skip


def test_a_single_sample_is_always_traced_and_helps_to_learn_the_others(traces: list[int]) -> None:
    """Its size of 1 is broadcast like no other, so it is never derived: here a batch's parameter becomes no sum."""

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.first, self.head = nn.Linear(4, 4), nn.Parameter(torch.zeros(1, 4)), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.layer(x) * self.first)
            return out

    assert follow(Summed(), [(batch, 4) for batch in (1, 2, 3, 4, 7)], traces) == [True] * 3 + [False] * 2
    assert follow(Summed(), [(batch, 4) for batch in (2, 3, 4, 1)], traces) == [True] * 4


def test_a_head_that_grows_is_one_size_more(traces: list[int]) -> None:
    """Rows come one by one, batches differ: three traces teach the rest."""
    model = convolutions()
    prices = StepPrices(model)
    traced = []
    for rows, batch in ((1, 2), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6)):
        head = nn.Linear(4, rows)
        model[5].weight, model[5].bias, model[5].out_features = head.weight, head.bias, rows  # type: ignore[index]
        prices.forget()
        before = traces[0]
        prices.chain(prices.forward([torch.zeros(batch, 3, 16, 16)]))
        traced.append(traces[0] - before)
        same(prices, model, (torch.zeros(batch, 3, 16, 16),), {})
        assert prices.chain(prices.forward([torch.zeros(batch, 3, 16, 16)])).trace.parameters[-1] is model[5].bias  # type: ignore[index]
    assert traced == [1, 1, 1, 0, 0, 0]


def test_a_changed_model_of_the_same_sizes_is_traced_anew(traces: list[int]) -> None:
    model = convolutions()
    prices = StepPrices(model)
    for batch in (2, 3, 4):
        prices.chain(prices.forward([torch.zeros(batch, 3, 16, 16)]))
    model[0].stride = (1, 1)  # type: ignore[index]
    prices.forget()
    same(prices, model, (torch.zeros(5, 3, 16, 16),), {})


def test_what_is_left_out_of_the_price_is_said_by_traces_alone() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = torch.special.i0(self.layers(x))
            return out

    prices = StepPrices(Odd(), unpriced="warn")
    for batch in (2, 3, 4):
        with pytest.warns(UnpricedOperatorWarning, match="i0"):
            prices.chain(prices.forward([torch.zeros(batch, 4)]))
    prices.of(prices.forward([torch.zeros(5, 4)]))


def test_batch_and_side_that_changed_together_are_told_apart() -> None:
    """A side halved by a stride, met with one sample more, might as well be eight less twice the batch; a growing head
    must not vouch for that."""
    model = seeded(lambda: nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(2), Mean(), nn.Linear(4, 1)))
    prices = StepPrices(model)
    same(prices, model, (torch.zeros(2, 1, 8, 8),), {})
    model[4].weight, model[4].bias = nn.Linear(4, 4).parameters()
    prices.forget()
    for batch, side in ((4, 8), (2, 8), (3, 4), (4, 4), (50, 4), (50, 8), (7, 8), (7, 4)):
        same(prices, model, (torch.zeros(batch, 1, side, side),), {})


class Mean(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.mean(2)
