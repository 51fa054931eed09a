"""Freezing inside Lightning: charged as executed, what rests does not move, exact resume, a budget stops it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from budgeted.audit import ExecutedOnData
from budgeted.errors import BudgetedError
from budgeted.freezing import AdaptivePrefix

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what Lightning's own imports warn of
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    from budgeted.integrations.lightning import FreezingCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on workers, and its use of what torch deprecates


class Learner(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, number: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3, foreach=False)


class CallsTheNet(Learner):
    def training_step(self, batch: Any, number: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    yield
    for one, level in zip(loggers, levels, strict=True):
        one.setLevel(level)


def data() -> Any:
    inputs = torch.randn(256, 20, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(inputs, inputs[:, :4].argmax(1)), batch_size=32)


def made(kind: type[Learner] = Learner) -> Learner:
    torch.manual_seed(0)
    return kind()


def trainer(
    folder: Path, freezing: FreezingCallback, steps: int, save_every: int | None = None, **more: Any
) -> lightning.Trainer:
    saving = (
        [] if save_every is None else [ModelCheckpoint(folder, "{step}", every_n_train_steps=save_every, save_top_k=-1)]
    )
    return lightning.Trainer(
        max_steps=steps, callbacks=[freezing, *saving], accelerator="cpu", logger=False,
        enable_checkpointing=bool(saving), enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, **more,
    )  # fmt: skip


@pytest.mark.parametrize("kind", [Learner, CallsTheNet])
def test_what_is_charged_is_executed_and_what_rests_does_not_move(tmp_path: Path, kind: type[Learner]) -> None:
    model = made(kind)
    freezing = FreezingCallback("constant", n=1, module="net" if kind is CallsTheNet else "")
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fitting = trainer(tmp_path, freezing, 5)
    with ExecutedOnData() as executed:
        fitting.fit(model, data())
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.01)
    assert freezing.engine.step == 5
    assert len(freezing.chain) == 3
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    assert still == {"net.0.weight", "net.0.bias"}
    assert float(fitting.callback_metrics["frozen_share"]) == pytest.approx(freezing.frozen_share)
    assert float(fitting.callback_metrics["spent_flop"]) == pytest.approx(freezing.spent.real)
    assert "backward" not in vars(model)
    assert not model._forward_pre_hooks
    assert not model.net._forward_pre_hooks


def test_accumulation_is_one_decision(tmp_path: Path) -> None:
    freezing = FreezingCallback("random", n_max=2)
    trainer(tmp_path, freezing, 3, accumulate_grad_batches=2).fit(made(), data())
    assert freezing.engine.step == freezing.ledger.steps == 3


def test_resumed_exactly(tmp_path: Path) -> None:
    def policy() -> AdaptivePrefix:
        return AdaptivePrefix(ema=0.5, ema_start="corrected")

    whole, freezing = made(), FreezingCallback(policy())
    trainer(tmp_path, freezing, 16, save_every=8).fit(whole, data())
    assert freezing.frozen_share > 0
    resumed, again = made(), FreezingCallback(policy())
    trainer(tmp_path, again, 16).fit(resumed, data(), ckpt_path=tmp_path / "step=8.ckpt")
    assert again.spent == freezing.spent
    assert again.frozen_share == freezing.frozen_share
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_budget_stops_it_and_the_step_that_is_not_paid_moves_nothing(tmp_path: Path) -> None:
    freezing = FreezingCallback("none", budget="20MFLOP")
    model = made()
    trainer(tmp_path, freezing, 100).fit(model, data())
    assert freezing.budget_spent
    assert 0 < freezing.spent.real <= 20e6
    paid, plain = freezing.engine.step, made()
    assert paid < 100
    trainer(tmp_path, FreezingCallback("none"), paid).fit(plain, data())
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_what_is_not_covered_is_said(tmp_path: Path) -> None:
    with pytest.raises(BudgetedError, match="give module='ITS NAME'"):
        trainer(tmp_path, FreezingCallback("none"), 1).fit(made(CallsTheNet), data())
    with pytest.raises(BudgetedError, match="has no module 'nett'"):
        trainer(tmp_path, FreezingCallback("none", module="nett"), 1).fit(made(), data())
    manual = made()
    manual.automatic_optimization = False
    with pytest.raises(BudgetedError, match="does not cover manual optimization"):
        trainer(tmp_path, FreezingCallback("none"), 1).fit(manual, data())
    with pytest.raises(BudgetedError, match="did you mean 'refresh_every'"):
        FreezingCallback("adaptive", refresh_evry=3)
