"""Any loss: the closed form is found where it holds, autograd answers elsewhere, and the price is what is executed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted.audit import ExecutedOps
from budgeted.budget import UnpricedOperator, UnpricedOperatorWarning
from budgeted.errors import BudgetedError
from budgeted.freezing.feature_gradient import FeatureGradient, mean_square, of_cross_entropy
from budgeted.freezing.loss_graph import LossGraph
from budgeted.plugin import AdaptiveFreezing
from tests.nets import SmallDecoder, seeded
from tests.plugin.charged import most_frozen

Loss = Callable[[Tensor], Tensor]
_draws = torch.Generator().manual_seed(4)
FEATURES = torch.randn(40, 16, generator=_draws)
CLASSES = torch.randint(0, 30, (40,), generator=_draws)
NUMBERS = torch.rand(40, 30, generator=_draws)
SOME = torch.where(torch.rand(40, generator=_draws) < 0.3, -100, CLASSES)
SHARES, BITS, TENS = NUMBERS / NUMBERS.sum(1, keepdim=True), NUMBERS.round(), CLASSES % 10

CROSS_ENTROPIES: dict[str, Loss] = {
    "mean": lambda o: F.cross_entropy(o, CLASSES),
    "divided": lambda o: F.cross_entropy(o, CLASSES) / 4,
    "multiplied": lambda o: 0.3 * F.cross_entropy(o, CLASSES) * torch.tensor(2.0),
    "sum": lambda o: F.cross_entropy(o, CLASSES, reduction="sum"),
    "ignored": lambda o: F.cross_entropy(o, SOME),
    "other label ignored": lambda o: F.cross_entropy(o, CLASSES, ignore_index=int(CLASSES[0])),
    "in two": lambda o: F.nll_loss(F.log_softmax(o, -1), CLASSES),
    "tokens": lambda o: F.cross_entropy(o.view(8, 5, 30).reshape(-1, 30), CLASSES),
}
OTHERS: dict[str, Loss] = {
    "smoothed": lambda o: F.cross_entropy(o, CLASSES, label_smoothing=0.1),
    "soft labels": lambda o: F.cross_entropy(o, SHARES),
    "squared error": lambda o: F.mse_loss(o, NUMBERS),
    "absolute error": lambda o: F.l1_loss(o, NUMBERS),
    "smooth absolute error": lambda o: F.smooth_l1_loss(o, NUMBERS),
    "multi-label": lambda o: F.binary_cross_entropy_with_logits(o, BITS),
    "two terms": lambda o: F.cross_entropy(o, CLASSES) + 0.5 * o.square().mean(),
    "focal": lambda o: ((1 - o.softmax(1)) ** 2 * -o.log_softmax(1)).gather(1, CLASSES[:, None]).mean(),
    "contrastive": lambda o: F.cross_entropy(o @ o.t(), torch.arange(40)),
    "a part of the logits": lambda o: F.cross_entropy(o[:, :10], TENS),
}
PER_SAMPLE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "cross-entropy": lambda row, i: F.cross_entropy(row, CLASSES[i]),
    "squared error": lambda row, i: F.mse_loss(row, NUMBERS[i]),
    "multi-label": lambda row, i: F.binary_cross_entropy_with_logits(row, NUMBERS[i]),
}


def head() -> nn.Linear:
    made = seeded(lambda: nn.Linear(16, 30))
    assert isinstance(made, nn.Linear)
    return made


def watched() -> tuple[nn.Linear, LossGraph, Tensor]:
    model = head()
    graph = LossGraph(model)
    output = model(FEATURES.requires_grad_())
    graph.mark_head(output)
    graph.mark_outputs(1, [output])
    return model, graph, output


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_cross_entropy_is_found_and_its_closed_form_is_the_gradient(name: str) -> None:
    model, graph, output = watched()
    loss = CROSS_ENTROPIES[name](output)
    found = graph.cross_entropy(loss)
    assert found is not None
    rows = of_cross_entropy(found, model.weight)
    (gradient,) = torch.autograd.grad(loss, FEATURES)
    reached = gradient[gradient.abs().sum(1) > 0]
    torch.testing.assert_close(rows / len(rows), reached, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_passes_for_cross_entropy(name: str) -> None:
    _, graph, output = watched()
    assert graph.cross_entropy(OTHERS[name](output)) is None


def test_cross_entropy_of_something_else_than_the_heads_output_is_not_taken() -> None:
    model, graph, output = watched()
    assert graph.cross_entropy(F.cross_entropy(output * 2, CLASSES)) is None
    assert graph.cross_entropy(F.cross_entropy(output.tanh(), CLASSES)) is None
    assert graph.cross_entropy(F.cross_entropy(output.view(40, 2, 15).reshape(80, 15), CLASSES.repeat(2) % 15)) is None
    assert graph.cross_entropy(F.cross_entropy(model(FEATURES), CLASSES)) is None  # a forward that nobody marked


@pytest.mark.parametrize("name", [*CROSS_ENTROPIES, *OTHERS])
def test_price_of_the_loss_is_what_is_executed(name: str) -> None:
    _, graph, output = watched()
    with ExecutedOps() as forward:
        loss = {**CROSS_ENTROPIES, **OTHERS}[name](output)
    price = graph.price(loss)
    with ExecutedOps() as backward:
        torch.autograd.grad(loss, output)
    assert price.outputs == {(1, 0)}
    assert price.forward.real == pytest.approx(forward.total, rel=0.03)
    assert price.backward.real == pytest.approx(backward.total, rel=0.03)


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_size_at_the_feature_is_the_mean_over_each_samples_own_loss(name: str) -> None:
    """Against torch.func: every sample's own gradient at its own feature."""
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 30)))
    graph = LossGraph(model)
    features = FeatureGradient(model, "2", graph)
    loss = torch.stack([PER_SAMPLE[name](row, i) for i, row in enumerate(model(FEATURES.detach()))]).mean()
    size = features.size(loss, None, None, lambda: 0)
    hidden = model[:2](FEATURES.detach())
    own = [torch.func.grad(lambda h, i=i: PER_SAMPLE[name](model[2](h), i))(hidden[i]) for i in range(40)]
    assert size.rows == 40
    assert size.mean == pytest.approx(mean_square(torch.stack(own).detach()), rel=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_tokens_with_ignored_labels(reduction: str) -> None:
    """A language model: the closed form from the graph equals autograd's rows, ignored tokens left out."""
    model = seeded(lambda: SmallDecoder(words=64, width=32))
    generator = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(0, 64, (2, 3, 24), generator=generator)
    labels = torch.where(torch.rand(3, 24, generator=generator) < 0.4, -100, labels)
    graph = LossGraph(model)
    sizes = []
    for features in (FeatureGradient(model, "head", graph), FeatureGradient(model, "head")):
        loss = F.cross_entropy(model(tokens).view(-1, 64), labels.view(-1), reduction=reduction)
        sizes.append(features.size(loss, None, None, lambda: 10**9))
        features.remove()
    closed, autograd = sizes
    assert closed.operations < 10**9 <= autograd.operations
    assert closed.rows == autograd.rows == int((labels != -100).sum())
    assert closed.mean == pytest.approx(autograd.mean, rel=1e-4)


@pytest.mark.parametrize("name", ["regression", "multi-label", "maps"])
def test_training_with_other_losses_freezes_and_charges_what_it_executes(name: str) -> None:
    generator = torch.Generator().manual_seed(0)

    def build() -> nn.Module:
        body = [nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU()]
        last = [nn.Conv2d(8, 4, 1)] if name == "maps" else [nn.Flatten(), nn.Linear(8 * 144, 5)]
        return nn.Sequential(*body, *last)

    model = seeded(build)
    targets = torch.rand(4, 5, generator=generator)
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.mse_loss
    if name == "maps":
        targets, loss_of = torch.randint(0, 4, (4, 12, 12), generator=generator), F.cross_entropy
    elif name == "multi-label":
        loss_of = F.binary_cross_entropy_with_logits
    inputs = torch.randn(4, 3, 12, 12, generator=generator)
    assert most_frozen(model, loss_of, inputs, targets, steps=8) > 0


def test_losses_without_a_price_are_refused_or_left_out() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 30)))

    def loss(output: Tensor) -> Tensor:
        out: Tensor = torch.special.i0(output).mean()
        return out

    freezing = AdaptiveFreezing(model)
    with pytest.raises(UnpricedOperator, match="in the loss"):
        freezing.backward(loss(model(FEATURES.detach())))
    freezing.remove()
    freezing = AdaptiveFreezing(model, unpriced="warn")
    with pytest.warns(UnpricedOperatorWarning, match="i0"):
        freezing.backward(loss(model(FEATURES.detach())))
    freezing.remove()
    freezing = AdaptiveFreezing(model, loss=None)
    freezing.backward(loss(model(FEATURES.detach())))
    freezing.remove()
    kept: list[Tensor] = []
    handle = model.get_submodule("0").register_forward_hook(lambda m, i, o: kept.append(o))
    freezing = AdaptiveFreezing(model)
    output = model(FEATURES.detach())
    with pytest.raises(UnpricedOperator, match="from inside"):
        freezing.backward(F.cross_entropy(output, CLASSES) + kept[-1].square().mean())
    handle.remove()


def test_parameters_of_the_loss_itself_are_trained() -> None:
    """A learned temperature and another module behind the model: `backward(inputs=...)` must not forget them."""
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 8)))
    behind = seeded(lambda: nn.Linear(8, 30))
    temperature = nn.Parameter(torch.tensor(2.0))
    everything = [*model.parameters(), *behind.parameters(), temperature]
    inputs = FEATURES.detach()

    def loss() -> Tensor:
        penalty = sum((p.square().sum() for p in model.parameters()), torch.zeros(()))
        return F.cross_entropy(behind(model(inputs)) * temperature, CLASSES) + 1e-3 * penalty

    loss().backward()
    full = [p.grad for p in everything]
    for parameter in everything:
        parameter.grad = None
    optimizer = torch.optim.SGD(everything, lr=0.1, momentum=0.9, foreach=False)
    freezing = AdaptiveFreezing(model, optimizer, policy="constant", n=1)
    before = [p.detach().clone() for p in everything]
    with ExecutedOps() as executed:
        freezing.backward(loss())
        optimizer.step()
    for number, (parameter, gradient) in enumerate(zip(everything, full, strict=True)):
        if number < 2:  # the frozen block, penalty or not
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, gradient)
        assert torch.equal(parameter, before[number]) == (number < 2)
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.02)


def test_inputs_with_a_gradient_are_refused() -> None:
    below, model = nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 30))
    AdaptiveFreezing(model)
    with pytest.raises(BudgetedError, match="into one module"):
        model(below(FEATURES.detach()))


class FunctionalHead(nn.Module):
    """The head is no module: a product with the words' own matrix, in the forward of the model or of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(40, 16), nn.LayerNorm(16)
        self.body = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.body:
            x = x + layer(x)
        return F.linear(self.norm(x), self.words.weight)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = FunctionalHead()

    def forward(self, tokens: Tensor) -> Any:
        return self.inner(tokens)


@pytest.mark.parametrize("build", [FunctionalHead, Outer])
def test_a_head_that_is_no_module(build: Callable[[], nn.Module]) -> None:
    model = seeded(build)
    tokens = torch.randint(0, 40, (3, 8), generator=torch.Generator().manual_seed(2))
    freezing = AdaptiveFreezing(model, ema=1.0)
    kept: list[Tensor] = []
    norm = next(module for module in model.modules() if isinstance(module, nn.LayerNorm))
    for _ in range(2):
        model.zero_grad()
        with ExecutedOps() as executed:
            handle = norm.register_forward_hook(lambda m, i, o: kept.append(o))
            loss = F.cross_entropy(model(tokens).view(-1, 40), tokens.view(-1))
            before = freezing.spent
            (expected,) = torch.autograd.grad(loss, kept[-1], retain_graph=True)
            again = executed.total
            freezing.backward(loss)
            handle.remove()
        size = float((expected * 24).square().sum() / 24)
        assert freezing.policy.gradient == pytest.approx(size, rel=1e-4)  # type: ignore[attr-defined]
        assert (freezing.spent - before).real < executed.total < again + (freezing.spent - before).real
