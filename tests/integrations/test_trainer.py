"""Freezing inside the Trainer: equal to the plain one where nothing rests, cheaper where it does, resumed exactly."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from budgeted.audit import ExecutedOps
from budgeted.errors import BudgetedError
from budgeted.freezing import AdaptivePrefix, ConstantPrefix, StepView
from budgeted.integrations.trainer import KEY, TrainerFreezing, freeze_in

WORDS, LENGTH = 30, 12


SMALL: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64,
}  # fmt: skip
TEXT: dict[str, Any] = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": LENGTH}
TWO: dict[str, Any] = {"num_labels": 2}


def bert() -> nn.Module:
    torch.manual_seed(0)
    return drawn(BertForSequenceClassification, BertConfig(**TEXT, **TWO))


def llama() -> nn.Module:
    torch.manual_seed(0)
    return drawn(LlamaForCausalLM, LlamaConfig(**TEXT, num_key_value_heads=1, tie_word_embeddings=True))


def vit() -> nn.Module:
    torch.manual_seed(0)
    config = ViTConfig(**SMALL, **TWO, image_size=8, patch_size=2, num_channels=1)
    return drawn(ViTForImageClassification, config)


def drawn(kind: Callable[[Any], nn.Module], config: Any) -> nn.Module:
    return kind(config)


def examples(kind: Callable[[], nn.Module], count: int = 64) -> list[dict[str, Tensor]]:
    """Learnable from the first word: whether it is a high one; which words follow it; how bright the picture is."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(0, WORDS, (count,), generator=generator)
    label = (first >= WORDS // 2).long()
    if kind is vit:
        pictures = torch.randn(count, 1, 8, 8, generator=generator) + label.view(-1, 1, 1, 1)
        return [{"pixel_values": picture, "labels": y} for picture, y in zip(pictures, label, strict=True)]
    text = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    text[:, 0] = first
    if kind is bert:
        return [{"input_ids": words, "labels": y} for words, y in zip(text, label, strict=True)]
    text = (first.view(-1, 1) + torch.arange(LENGTH)) % WORDS
    ignored = text.clone()
    ignored[:, :2] = -100
    return [{"input_ids": words, "labels": y} for words, y in zip(text, ignored, strict=True)]


def trainer_of(kind: Callable[[], nn.Module], folder: Path, **more: Any) -> Trainer:
    given: dict[str, Any] = {
        "per_device_train_batch_size": 8, "max_steps": 12, "learning_rate": 2e-3, "logging_steps": 2,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "seed": 3, "disable_tqdm": True,
    }  # fmt: skip
    arguments = TrainingArguments(str(folder), **{**given, **more})
    return Trainer(kind(), arguments, train_dataset=examples(kind))


def weights(trainer: Trainer) -> dict[str, Tensor]:
    assert isinstance(trainer.model, nn.Module)
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def keen() -> AdaptivePrefix:
    """Averages that follow soon, so that a short run freezes."""
    return AdaptivePrefix(ema=0.5, ema_start="corrected")


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "accumulated": (bert, {"gradient_accumulation_steps": 3}),
    "checkpointed": (bert, {"gradient_checkpointing": True}),
    "decoder in half precision": (llama, {"bf16": True, "gradient_accumulation_steps": 2}),
    "vit": (vit, {"label_smoothing_factor": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_equal_where_nothing_rests_and_cheaper_where_something_does(case: str, tmp_path: Path) -> None:
    kind, more = CASES[case]
    plain = trainer_of(kind, tmp_path, max_steps=6, **more)
    with ExecutedOps() as everything:
        plain.train()

    watched = trainer_of(kind, tmp_path, max_steps=6, **more)
    freezing = freeze_in(watched, "none")
    watched.train()
    assert equal(weights(plain), weights(watched))
    assert losses(plain) == losses(watched)
    assert freezing.frozen_share == 0

    frozen = trainer_of(kind, tmp_path, max_steps=6, **more)
    freezing = freeze_in(frozen, keen() if kind is not llama else ConstantPrefix(2))
    with ExecutedOps() as executed:
        frozen.train()
    assert freezing.frozen_share > 0.05
    assert executed.total < 0.95 * everything.total
    assert freezing.spent.real == pytest.approx(executed.total, rel=0.01)  # everything is charged
    entry = next(entry for entry in reversed(frozen.state.log_history) if "loss" in entry)
    assert (entry["spent_flop"], entry["spent_mac"]) == (freezing.spent.real, freezing.spent.paper)
    assert entry["frozen_share"] == freezing.frozen_share


def test_it_learns_beside_the_plain_run(tmp_path: Path) -> None:
    plain = trainer_of(bert, tmp_path, max_steps=60, logging_steps=6)
    plain.train()
    frozen = trainer_of(bert, tmp_path, max_steps=60, logging_steps=6)
    freezing = freeze_in(frozen, keen())
    frozen.train()
    assert freezing.frozen_share > 0.3
    assert losses(frozen)[0] == pytest.approx(math.log(2), rel=0.3)
    assert losses(plain)[-1] < 0.5 * losses(plain)[0]
    assert losses(frozen)[-1] < 0.5 * losses(frozen)[0]


class Counted(ConstantPrefix):
    """Three blocks rest; how often it is asked, and whether a frozen step moved them, is noted."""

    asked: ClassVar[list[int]] = []

    def decide(self, view: StepView) -> frozenset[int]:
        self.asked.append(view.step)
        return super().decide(view)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_one_decision_per_optimizer_step_and_frozen_blocks_do_not_move(accumulate: int, tmp_path: Path) -> None:
    Counted.asked = []
    trainer = trainer_of(bert, tmp_path, gradient_accumulation_steps=accumulate, weight_decay=0.1)
    before = weights(trainer)
    freezing = freeze_in(trainer, Counted(3))
    trainer.train()
    assert Counted.asked == list(range(12))
    assert freezing.engine.step == freezing.ledger.steps == 12
    assert [block.name for block in freezing.chain.blocks][:3] == [
        "bert.embeddings.word_embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1",
    ]  # fmt: skip
    after = weights(trainer)
    resting = {name for block in freezing.chain.blocks[:3] for name in block.parameters}
    assert equal({name: before[name] for name in resting}, after)
    assert not any(torch.equal(before[name], after[name]) for name in before if "layer.2" in name and "weight" in name)


# -- checkpoints ---------------------------------------------------------------------------------------------------


class Killed(Exception):
    pass


class KillAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Killed


@pytest.mark.parametrize("restore", [False, True])
def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(restore: bool, tmp_path: Path) -> None:
    def build(name: str) -> tuple[Trainer, TrainerFreezing]:
        trainer = trainer_of(
            bert, tmp_path / name, save_strategy="steps", save_steps=4, max_steps=8, gradient_accumulation_steps=2,
            restore_callback_states_from_checkpoint=restore,
        )  # fmt: skip
        return trainer, freeze_in(trainer, keen())

    whole, whole_freezing = build("whole")
    whole.train()
    part, _ = build("part")
    part.add_callback(KillAt(6))
    with pytest.raises(Killed):
        part.train()
    resumed, resumed_freezing = build("part")
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 8
    assert equal(weights(whole), weights(resumed))
    assert losses(whole) == losses(resumed)
    assert resumed_freezing.spent == whole_freezing.spent
    assert resumed_freezing.frozen_share == whole_freezing.frozen_share
    assert resumed_freezing.engine.state_dict() == whole_freezing.engine.state_dict()
    assert 0 < whole_freezing.frozen_share < 1
    saved = json.loads((tmp_path / "part" / "checkpoint-4" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"][KEY]["freezing"]["step"] == 4


def test_a_checkpoint_made_without_freezing_starts_it_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer_of(bert, tmp_path, max_steps=4, save_strategy="steps", save_steps=4).train()
    trainer = trainer_of(bert, tmp_path, max_steps=6)
    freezing = freeze_in(trainer, keen())
    with caplog.at_level(logging.WARNING, "budgeted"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert "made without freezing" in caplog.text
    assert freezing.engine.step == 2


def test_another_policy_is_refused_on_resume(tmp_path: Path) -> None:
    first = trainer_of(bert, tmp_path, max_steps=4, save_strategy="steps", save_steps=4)
    freeze_in(first, keen())
    first.train()
    second = trainer_of(bert, tmp_path, max_steps=6)
    freeze_in(second, "constant", n=2)
    with pytest.raises(BudgetedError, match="the saved state is of policy AdaptivePrefix"):
        second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_train_again_starts_again(tmp_path: Path) -> None:
    trainer = trainer_of(bert, tmp_path, max_steps=4)
    freezing = freeze_in(trainer, keen())
    trainer.train()
    spent = freezing.spent
    trainer.train()
    assert freezing.engine.step == 4
    assert 0 < freezing.spent.real <= 1.5 * spent.real


# -- the budget ----------------------------------------------------------------------------------------------------


def test_training_stops_when_the_budget_is_spent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    free = trainer_of(bert, tmp_path, gradient_accumulation_steps=2)
    unlimited = freeze_in(free, "none")
    free.train()
    amount = unlimited.spent.real * 55 // 120  # five steps and a half
    trainer = trainer_of(bert, tmp_path, gradient_accumulation_steps=2)
    freezing = freeze_in(trainer, "none", budget=f"{amount}FLOP")
    with caplog.at_level(logging.WARNING, "budgeted"):
        trainer.train()
    assert freezing.budget_spent
    assert "training stops in step 5" in caplog.text
    assert trainer.state.global_step == 6  # the one that could not be paid moved nothing
    assert freezing.spent.real <= amount
    same = trainer_of(bert, tmp_path, gradient_accumulation_steps=2)
    same.add_callback(StopAfter(5))
    same.train()
    assert equal(weights(same), weights(trainer))


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


# -- putting in, taking out ------------------------------------------------------------------------------------------


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    trainer = trainer_of(bert, tmp_path, max_steps=2)
    before = list(trainer.callback_handler.callbacks)
    freezing = freeze_in(trainer, "constant", n=2)
    with pytest.raises(BudgetedError, match="freezes already"):
        freeze_in(trainer)
    with pytest.raises(BudgetedError, match="not known yet"):
        freezing.chain  # noqa: B018
    trainer.train()
    assert "backward" not in vars(trainer.accelerator)
    freezing.remove()
    assert trainer.callback_handler.callbacks == before
    assert isinstance(trainer.model, nn.Module)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in trainer.model.modules())
    trainer.train()
    assert freezing.ledger.steps == 2


def test_what_is_not_covered_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(bert, tmp_path)
    with pytest.raises(BudgetedError, match="n: settings go with a policy's name"):
        freeze_in(trainer, ConstantPrefix(2), n=3)
    freeze_in(trainer)
    trainer.args.torch_compile = True
    with pytest.raises(BudgetedError, match="does not cover torch_compile"):
        trainer.train()
