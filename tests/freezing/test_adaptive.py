"""The criterion against a brute-force evaluation of the paper's equations, and the policy's bookkeeping."""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from budgeted.errors import BudgetedError
from budgeted.freezing import AdaptivePrefix, StepView, criterion
from budgeted.freezing.feature_gradient import by_autograd, closed_form, mean_square

amounts = st.floats(0, 1e6, allow_nan=False, width=32)


@st.composite
def nets(draw: st.DrawFn) -> tuple[list[float], list[int], list[int]]:
    layers = draw(st.integers(2, 12))
    fisher = draw(st.lists(amounts, min_size=layers, max_size=layers))
    forward = draw(st.lists(st.integers(1, 10**9), min_size=layers, max_size=layers))
    backward = draw(st.lists(st.integers(1, 10**9), min_size=layers, max_size=layers))
    return fisher, forward, backward


@given(nets(), st.floats(0, 1e4), st.booleans())
def test_criterion_is_the_papers(net: tuple[list[float], list[int], list[int]], ratio: float, head: bool) -> None:
    fisher, forward, backward = net
    layers = len(fisher)
    saved = [sum(backward[:n]) for n in range(layers)]
    found = criterion(fisher, saved, sum(forward) + sum(backward), ratio, head)
    counted = fisher if head else [*fisher[:-1], 0.0]
    # equation (4), equation (5): layers are numbered from 1 in the paper, so "1 to n" is [:n]
    per_compute = [sum(counted[n:]) / (sum(forward) + sum(backward[n:])) for n in range(layers)]
    bfc = [max(per_compute) * sum(backward[:n]) - sum(ratio * trace for trace in fisher[:n]) for n in range(layers)]
    scale = max(1.0, *(abs(value) for value in bfc), ratio * sum(fisher))
    assert found.information_per_compute == pytest.approx(per_compute, rel=1e-9, abs=1e-12)
    assert found.bfc == pytest.approx(bfc, rel=1e-9, abs=1e-9 * scale)
    assert 0 <= found.n <= layers - 1
    assert bfc[found.n] == pytest.approx(max(bfc), rel=1e-9, abs=1e-9 * scale)
    assert found.bfc[found.n] == max(found.bfc)
    assert found.n == found.bfc.index(max(found.bfc))  # fewest blocks on a tie


@given(nets(), st.floats(0, 1e4), st.booleans(), st.data())
def test_criterion_stops_before_the_last_block_that_trains(
    net: tuple[list[float], list[int], list[int]], ratio: float, head: bool, data: st.DataObject
) -> None:
    fisher, forward, backward = net
    most = data.draw(st.integers(0, len(fisher) - 1))
    fisher = [*fisher[: most + 1], *[0.0] * (len(fisher) - most - 1)]  # what is not trained has no gradient
    total = sum(forward) + sum(backward)
    saved = [sum(backward[:n]) for n in range(len(fisher))]
    found = criterion(fisher, saved, total, ratio, head, most=most)
    counted = fisher if head else [*fisher[:-1], 0.0]
    rates = [sum(counted[n:]) / (total - saved[n]) for n in range(most + 1)]
    bfc = [max(rates) * saved[n] - ratio * sum(fisher[:n]) for n in range(most + 1)]
    scale = max(1.0, *(abs(value) for value in bfc), ratio * sum(fisher))
    assert found.bfc == pytest.approx(bfc, rel=1e-9, abs=1e-9 * scale)
    assert found.n == found.bfc.index(max(found.bfc)) <= most


@given(nets(), st.floats(0, 1e4), st.booleans())
def test_criterion_without_the_stems_fisher(
    net: tuple[list[float], list[int], list[int]], ratio: float, head: bool
) -> None:
    fisher, forward, backward = net
    layers, total = len(fisher), sum(forward) + sum(backward)
    saved = [sum(backward[:n]) for n in range(layers)]
    found = criterion(fisher, saved, total, ratio, head, stem_fisher=False)
    counted = fisher if head else [*fisher[:-1], 0.0]
    rates, bfc = [], []
    for n in range(layers):
        gained = 0 if n < 2 else sum(backward[:n])  # the stem alone is no gain
        rates.append(sum(counted[max(n, 1) :]) / (total - gained))
    for n in range(layers):
        bfc.append(0.0 if n < 2 else max(rates) * sum(backward[:n]) - ratio * sum(fisher[1:n]))
    scale = max(1.0, *(abs(value) for value in bfc), ratio * sum(fisher))
    assert found.information_per_compute == pytest.approx(rates, rel=1e-9, abs=1e-9)
    assert found.bfc == pytest.approx(bfc, rel=1e-9, abs=1e-9 * scale)
    assert found.n != 1
    assert found.n == found.bfc.index(max(found.bfc))


@given(nets(), st.floats(0, 1e4))
def test_without_stem_and_head_it_ranks_as_the_published_score(
    net: tuple[list[float], list[int], list[int]], ratio: float
) -> None:
    """Block 0 is out of all sums of its score; ours keeps the stem's cost, so the stem costs nothing here."""
    fisher, forward, backward = net
    forward, backward = [0, *forward[1:]], [0, *backward[1:]]
    layers = len(fisher)
    known, cost = sum(fisher[1:-1]), sum(forward) + sum(backward)
    if known < 1e-3:
        return  # it divides by this
    saved = [sum(backward[:n]) for n in range(layers)]
    found = criterion(fisher, saved, cost, ratio, head_fisher=False, stem_fisher=False)
    left = [(known - sum(fisher[1 : 1 + k])) / known for k in range(layers - 1)]  # k blocks after the stem
    spared = [sum(backward[1 : 1 + k]) for k in range(layers - 1)]
    best = max(cost / (cost - spared[k]) * left[k] for k in range(layers - 1))
    score = [ratio * left[k] + spared[k] / cost * best for k in range(layers - 1)]
    chosen = max(found.n - 1, 0)  # freezing k of them freezes the stem too
    assert score[chosen] == pytest.approx(max(score), rel=1e-9, abs=1e-9 * max(1.0, ratio))


@pytest.mark.parametrize("stem", [True, False])
@pytest.mark.parametrize("normaliser", ["mean_square", "square_of_mean"])
@pytest.mark.parametrize("start", ["zero", "first", "corrected"])
def test_readings_against_brute_force_and_over_a_saved_state(stem: bool, normaliser: str, start: str) -> None:
    def build() -> AdaptivePrefix:
        return AdaptivePrefix(ema=0.1, stem_fisher=stem, normaliser=normaliser, ema_start=start)  # type: ignore[arg-type]

    policy, resumed = build(), build()
    sizes = [4.0, 1.0, 2.0, 0.5, 3.0, 0.1, 0.2, 9.0, 0.3, 0.1, 5.0, 0.01]
    squares = [6.0, 1.0, 0.5, 4.0]
    saved = [0, 100, 300, 500]
    seen: list[float] = []
    frozen_sizes = set()
    for step, size in enumerate(sizes):
        resumed.load_written(json.loads(json.dumps(policy.written()[0])), {})
        frozen = policy.decide(view(step, size, squares))
        assert resumed.decide(view(step, size, squares)) == frozen
        if step % 4:
            norms = [value if normaliser == "mean_square" else math.sqrt(value) for value in seen]
            weights = [0.1 * 0.9 ** (len(norms) - 1 - place) for place in range(len(norms))]
            if start == "first":
                weights[0] /= 0.1
            average = sum(w * norm for w, norm in zip(weights, norms, strict=True))
            average /= sum(weights) if start == "corrected" else 1.0
            ratio = size / (average if normaliser == "mean_square" else average**2)
            updates = 1 + step // 4
            traces = [trace * (1 - 0.9**updates if start == "zero" else 1.0) for trace in squares]
            counted = traces if stem else [0.0, *traces[1:]]
            gains = saved if stem else [0, 0, *saved[2:]]
            rate = max(sum(counted[n:]) / (1000 - gains[n]) for n in range(4))
            bfc = [rate * gains[n] - ratio * sum(counted[:n]) for n in range(4)]
            assert policy.last is not None
            assert policy.last.bfc == pytest.approx(bfc)
            assert frozen == frozenset(range(policy.last.n))
            frozen_sizes.add(len(frozen))
        policy.after_backward(view(step, size, squares), frozen)
        seen.append(size)
    assert len(frozen_sizes) > 1


def test_the_two_normalisers_differ() -> None:
    policies = [AdaptivePrefix(ema=0.5), AdaptivePrefix(ema=0.5, normaliser="square_of_mean")]
    for policy in policies:
        for step, size in enumerate([9.0, 1.0, 4.0, 1.0]):
            policy.decide(view(step, size, []))
    assert policies[0].gradient == pytest.approx(0.5 * 1 + 0.25 * 4 + 0.125 * 1 + 0.0625 * 9)
    assert policies[1].gradient == pytest.approx(0.5 * 1 + 0.25 * 2 + 0.125 * 1 + 0.0625 * 3)
    with pytest.raises(BudgetedError, match="square_of_mean"):
        AdaptivePrefix(normaliser="square_of_means")  # type: ignore[arg-type]


def view(step: int, size: float, squares: list[float]) -> StepView:
    return StepView(step, 4, lambda: 1000, lambda: [0, 100, 300, 500], lambda: size, lambda: squares)


def test_averages_follow_the_algorithm() -> None:
    policy = AdaptivePrefix(refresh_every=4, ema=0.1)
    sizes = [4.0, 1.0, 2.0, 0.5, 3.0, 0.1, 0.1, 0.1]
    squares = [1.0, 2.0, 3.0, 4.0]
    gradient, fisher = 0.0, [0.0] * 4
    for step, size in enumerate(sizes):
        frozen = policy.decide(view(step, size, squares))
        if step % 4 == 0:
            assert frozen == frozenset()
            assert policy.last is None
        else:
            expected = criterion(fisher, [0, 100, 300, 500], 1000, size / gradient, True)
            assert policy.last == expected
            assert frozen == frozenset(range(expected.n))
        policy.after_backward(view(step, size, squares), frozen)
        gradient = 0.9 * gradient + 0.1 * size
        if step % 4 == 0:
            fisher = [0.9 * old + 0.1 * new for old, new in zip(fisher, squares, strict=True)]
        assert policy.gradient == pytest.approx(gradient)
        assert [*policy.fisher.values()] == pytest.approx(fisher if policy.fisher else [])


def test_no_average_yet_freezes_nothing() -> None:
    policy = AdaptivePrefix(refresh_every=2)
    assert policy.decide(view(1, 1.0, [])) == frozenset()
    assert policy.last is not None
    assert policy.last.bfc[0] == 0.0


def test_head_fisher_lets_more_freeze() -> None:
    with_head = criterion([5.0, 1.0, 1.0, 60.0], [0, 100, 300, 500], 1000, 1.0, True)
    without = criterion([5.0, 1.0, 1.0, 60.0], [0, 100, 300, 500], 1000, 1.0, False)
    assert with_head.n > without.n


@pytest.mark.parametrize("start", ["zero", "first", "corrected"])
def test_starts_of_the_averages(start: str) -> None:
    policy = AdaptivePrefix(ema=0.1, ema_start=start)  # type: ignore[arg-type]
    policy.decide(view(0, 2.0, [1.0] * 4))
    assert policy.gradient == pytest.approx({"zero": 0.2, "first": 2.0, "corrected": 0.2}[start])
    assert policy._average(policy.gradient, "gradient") == pytest.approx(0.2 if start == "zero" else 2.0)


def test_the_first_value_is_the_first_above_zero() -> None:
    first, corrected = AdaptivePrefix(ema=0.1, ema_start="first"), AdaptivePrefix(ema=0.1, ema_start="corrected")
    sizes = [0.0, 0.0, 3.0, 1.0]  # one class: no gradient; then a second comes
    for policy in (first, corrected):
        for step, size in enumerate(sizes):
            frozen = policy.decide(view(step, size, []))
            policy.after_backward(view(0, size, [size] * 4), frozen)
    assert first.gradient == pytest.approx(0.9 * 3.0 + 0.1 * 1.0)
    assert [*first.fisher.values()] == pytest.approx([first.gradient] * 4)
    of_two = (0.9 * 3.0 + 1.0) / 1.9  # weights 0.09 and 0.1, of 0.19
    assert corrected._average(corrected.gradient, "gradient") == pytest.approx(of_two)
    assert corrected._average(corrected.fisher["0"], "fisher") == pytest.approx(of_two)


def test_bernoulli_refresh_has_the_right_rate_and_repeats() -> None:
    policy, again = (AdaptivePrefix(refresh_every=4, refresh="bernoulli", seed=7) for _ in range(2))
    drawn = [policy._refreshes(step) for step in range(20_000)]
    assert drawn == [again._refreshes(step) for step in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.25, abs=4 * math.sqrt(0.25 * 0.75 / 20_000))


@given(st.integers(1, 6), st.integers(2, 7), st.integers(1, 9), st.integers(0, 2**31))
def test_closed_form_is_the_gradient_of_each_samples_loss(batch: int, classes: int, features: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    feature = torch.randn(batch, features, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, classes, (batch,), generator=generator)
    logits = feature @ weight.T
    rows = closed_form(logits, targets, weight)
    for i in range(batch):
        loss = F.cross_entropy(logits[i : i + 1], targets[i : i + 1])
        (expected,) = torch.autograd.grad(loss, feature, retain_graph=True)
        torch.testing.assert_close(rows[i].double(), expected[i], rtol=1e-4, atol=1e-5)
    by_graph = by_autograd(F.cross_entropy(logits, targets), feature)
    assert mean_square(rows) == pytest.approx(mean_square(by_graph), rel=1e-4, abs=1e-9)
    norms = [float(row.double().square().sum()) for row in rows]
    assert mean_square(rows) == pytest.approx(sum(norms) / batch, rel=1e-5, abs=1e-9)  # not |mean g|^2


def test_ignored_targets_are_left_out() -> None:
    logits, weight = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), torch.eye(5)
    targets = torch.tensor([[1, -100, 2], [-100, -100, 4]])
    assert closed_form(logits, targets, weight).shape == (3, 5)
