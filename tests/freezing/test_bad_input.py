"""Every mistake gets one line that says what to do, and loses nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from budgeted import models
from budgeted.budget import (
    BudgetSpent,
    CannotTrace,
    Compute,
    Ledger,
    UnpricedOperator,
    UnpricedOperatorWarning,
)
from budgeted.errors import BudgetedError, UnknownName
from budgeted.freezing import (
    AdaptivePrefix,
    BadLoss,
    ConstantPrefix,
    FreezingPolicy,
    LayerFreezing,
    LinearPrefix,
    NeverFreeze,
    NoBlockChain,
    StepView,
    block_chain,
    policy,
)
from budgeted.freezing.feature_gradient import NotPlainCrossEntropy
from tests.nets import images, loss_of


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return images(torch.Generator().manual_seed(0))


@pytest.fixture
def model() -> nn.Module:
    return models.build("cnn8", classes=10)


def one_line(error: pytest.ExceptionInfo[BudgetedError]) -> bool:
    return "\n" not in str(error.value) and len(str(error.value)) > 20


def test_unknown_policy_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'adaptive'") as error:
        policy("adaptve")
    assert one_line(error)
    with pytest.raises(BudgetedError, match="unknown setting"):
        policy("constant", m=3)
    with pytest.raises(BudgetedError, match="0 or more"):
        policy("constant", n=-1)
    with pytest.raises(BudgetedError, match="at least 1"):
        LinearPrefix(2, steps=0)
    with pytest.raises(BudgetedError, match="ema"):
        AdaptivePrefix(ema=0)
    assert isinstance(policy("none"), NeverFreeze)


class Duck:
    """Decides, but is made from nothing."""

    def decide(self, view: StepView) -> frozenset[int]:
        return frozenset()


class NoDecision(FreezingPolicy):
    """Decides nothing."""


def test_what_is_no_policy_is_refused_and_one_needs_its_decision_alone(
    model: nn.Module, batch: tuple[Tensor, Tensor]
) -> None:
    for wrong in (Duck(), Duck, NeverFreeze, None, 3):
        with pytest.raises(BudgetedError, match="or one made from FreezingPolicy") as error:
            LayerFreezing(model, wrong, batch[:1])  # type: ignore[arg-type]
        assert one_line(error)
    with pytest.raises(TypeError, match="decide"):
        NoDecision()  # type: ignore[abstract]

    class First(FreezingPolicy):
        def decide(self, view: StepView) -> frozenset[int]:
            return view.prefix(1)

    freezing = LayerFreezing(model, First(), batch[:1])
    assert freezing.backward(loss_of(model(batch[0]), batch[1])).frozen == {0}
    assert freezing.nbytes() == 0
    again = LayerFreezing(model, First(), batch[:1])
    again.load_state_dict(freezing.state_dict())
    assert again.step == 1


def test_wrong_shape(model: nn.Module) -> None:
    with pytest.raises(CannotTrace, match="does not run on input 4x1x32x32") as error:
        LayerFreezing(model, NeverFreeze(), (torch.zeros(4, 1, 32, 32),))
    assert one_line(error)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_changes_nothing(model: nn.Module, batch: tuple[Tensor, Tensor], value: float) -> None:
    freezing = LayerFreezing(model, AdaptivePrefix(), batch[:1], ledger=Ledger())
    loss = loss_of(model(batch[0]), batch[1]) * value
    state = freezing.state_dict()
    with pytest.raises(BadLoss, match="lower the learning rate") as error:
        freezing.backward(loss)
    assert one_line(error)
    assert freezing.state_dict() == state
    assert freezing.ledger is not None
    assert freezing.ledger.spent.real == 0
    assert all(p.grad is None for p in model.parameters())


def test_losses_that_are_not_the_models(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    freezing = LayerFreezing(model, NeverFreeze(), batch[:1])
    with pytest.raises(BadLoss, match="without a training forward"):
        freezing.backward(torch.ones((), requires_grad=True))
    logits = model(batch[0])
    with pytest.raises(BadLoss, match="does not depend on the model"):
        freezing.backward(loss_of(logits, batch[1]).detach())
    with pytest.raises(BadLoss, match="does not depend on the model"):
        freezing.backward(torch.ones((), requires_grad=True) * 2)
    with pytest.raises(BadLoss, match="reduce it"):
        freezing.backward(F.cross_entropy(logits, batch[1], reduction="none"))
    freezing.backward(loss_of(logits, batch[1]))  # and the right one still works


def test_another_loss_does_not_pass_for_cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    freezing = LayerFreezing(model, AdaptivePrefix(), batch[:1])
    logits = model(batch[0])
    smoothed = F.cross_entropy(logits, batch[1], label_smoothing=0.3)
    with pytest.raises(NotPlainCrossEntropy, match="leave them out") as error:
        freezing.backward(smoothed, logits, batch[1])
    assert one_line(error)
    freezing.backward(smoothed)
    logits = model(batch[0])
    with pytest.raises(BudgetedError, match="both logits and targets"):
        freezing.backward(smoothed, logits)


def test_the_head_cannot_be_frozen(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    freezing = LayerFreezing(model, NeverFreeze(), batch[:1])
    with pytest.raises(BudgetedError, match="block 7 is the head"):
        freezing.price(batch[:1], [7])


def test_a_step_that_cannot_be_paid_is_not_run(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    ledger = Ledger(Compute(1000, "real"))
    freezing = LayerFreezing(model, ConstantPrefix(1), batch[:1], ledger=ledger)
    with pytest.raises(BudgetSpent, match="raise the compute budget"):
        freezing.backward(loss_of(model(batch[0]), batch[1]))
    assert ledger.spent.real == 0
    assert all(p.grad is None for p in model.parameters())


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        out: Tensor = 3 * x**2 * gradient
        return out


class Odd(nn.Module):
    """An operator that nobody prices, or a custom function, between two layers."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.first, self.second, self.what = nn.Linear(4, 4), nn.Linear(4, 2), what

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = torch.special.i0(x) if self.what == "operator" else Cube.apply(x)  # type: ignore[no-untyped-call]
        out: Tensor = self.second(x)
        return out


@pytest.mark.parametrize(("what", "name"), [("operator", "i0"), ("function", "autograd.Function")])
def test_what_has_no_price_is_named(what: str, name: str) -> None:
    with pytest.raises(UnpricedOperator, match=name) as error:
        LayerFreezing(Odd(what), NeverFreeze(), (torch.zeros(3, 4),)).price([torch.zeros(3, 4)])
    assert one_line(error)


def test_what_has_no_price_may_be_left_out_with_a_warning() -> None:
    example = (torch.zeros(3, 4),)
    with pytest.warns(UnpricedOperatorWarning, match="i0"):
        freezing = LayerFreezing(Odd("operator"), NeverFreeze(), example, unpriced="warn")
    assert freezing.price(example).total.real > 0


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.cell: nn.Module = nn.Linear(4, 4)
        if kind != "reused layer":
            self.cell = nn.GRUCell(4, 4) if kind == "cell" else nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "lstm":
            state = self.cell(x)[0][:, -1]
        else:
            state = torch.zeros(len(x), 4)
            for step in range(x.shape[1]):
                state = (
                    self.cell(x[:, step], state) if self.kind == "cell" else torch.tanh(self.cell(x[:, step] + state))
                )
        out: Tensor = self.head(state)
        return out


@pytest.mark.parametrize("kind", ["cell", "lstm", "reused layer"])
def test_recurrent_nets_are_refused_with_the_reason(kind: str) -> None:
    with pytest.raises(NoBlockChain, match=r"is recurrent .*cell") as error:
        block_chain(Recurrent(kind), (torch.zeros(2, 3, 4),))
    assert one_line(error)


def test_nothing_to_freeze() -> None:
    with pytest.raises(NoBlockChain, match="single block"):
        block_chain(nn.Linear(3, 2), (torch.zeros(2, 3),))
    with pytest.raises(NoBlockChain, match="no layer with a weight"):
        block_chain(nn.ReLU(), (torch.zeros(2, 3),))


def test_a_state_of_another_policy_is_refused(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    freezing = LayerFreezing(model, NeverFreeze(), batch[:1])
    with pytest.raises(BudgetedError, match="AdaptivePrefix"):
        freezing.load_state_dict(LayerFreezing(model, AdaptivePrefix(), batch[:1]).state_dict())
